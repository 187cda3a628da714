"""LLM-Ens: which of several teams' policies is best in which situation, and who answers.

After the description of https://arxiv.org/abs/2505.15306, whose full text we have not read. The environment names
situations s. For the policies p of a role a table is made on training tasks:

    table[s][p] = mean r over the decisions of p in s,   p(s) = argmax_p table[s][p]

In a situation that is unknown, or in which no policy has `LEAST` decisions, the policy with the best mean over
all of its decisions answers; ties go to the one that is named first. The baseline is a vote: all policies
answer, and the most frequent reply is played.

`--members` names the teams, `--route-out FILE` writes the tables, and `--route FILE` plays by them. All members
are in memory at once, on one base model.
"""

from __future__ import annotations

import json
import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from pettingllms.assembly import check_adapters
from pettingllms.data.rows import digest
from pettingllms.envs.aec import seats_of
from pettingllms.errors import ConfigError
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.folder import write_file
from pettingllms.evaluation.rollouts import Lineup
from pettingllms.evaluation.scores import majority
from pettingllms.names import check_policy_name, is_own, pairs_of, parse_policies
from pettingllms.policies.sources import adapter_folders, is_adapter, is_folder, located_adapters
from pettingllms.rollout.engine import Routed
from pettingllms.rollout.episode import Episode
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs import CONFIG, read_config
from pettingllms.samplers.base import Sampler
from pettingllms.types import Completion, Request

if TYPE_CHECKING:
    from pettingllms.evaluation.run import EvalPlan

LEAST = 20
"""Decisions below which a mean says nothing."""
ROUTED, VOTE = "routed", "vote"


class Cell(NamedTuple):
    """Mean reward of a policy in a situation."""

    mean: float
    n: int
    """Decisions."""


@dataclass(frozen=True)
class Route:
    """The table of a role.

    Args:
        cells: situation -> policy -> what it earned.
        overall: policy -> what it earned in all situations; in the order in which ties are decided.
        least: decisions below which a cell counts as empty.
    """

    cells: Mapping[str, Mapping[str, Cell]]
    overall: Mapping[str, Cell]
    least: int = LEAST

    @classmethod
    def of(
        cls,
        records: Iterable[tuple[str | None, str, float]],
        policies: Sequence[str],
        least: int = LEAST,
    ) -> Self:
        """The table of records (situation, policy, reward).

        Raises:
            ConfigError: a policy with fewer than `least` decisions in all.
        """
        table: dict[str | None, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        overall: dict[str, list[float]] = {policy: [] for policy in policies}
        for situation, policy, reward in records:
            table[situation][policy].append(reward)
            overall[policy].append(reward)
        for policy, rewards in overall.items():
            if len(rewards) < least:
                raise ConfigError(
                    f"{policy} has {len(rewards)} decisions, and a table needs {least} of each; give "
                    "more tasks, --limit"
                )
        cells = {
            situation: {policy: _cell(row[policy]) for policy in policies if row[policy]}
            for situation, row in table.items()
            if situation is not None
        }
        return cls(cells, {policy: _cell(rewards) for policy, rewards in overall.items()}, least)

    def best(self, situation: str | None) -> str:
        """The policy that answers in a situation."""
        row = self.cells.get(situation or "", {})
        sure = {p: row[p].mean for p in self.overall if p in row and row[p].n >= self.least}
        means = sure or {policy: cell.mean for policy, cell in self.overall.items()}
        return max(means, key=lambda policy: means[policy])  # the first of equals

    def row(self) -> dict[str, Any]:
        """The table as JSON has it, with the policy that answers in each situation."""
        return {
            "best": {situation: self.best(situation) for situation in self.cells},
            "otherwise": self.best(None),
            "least": self.least,
            "overall": {policy: list(cell) for policy, cell in self.overall.items()},
            "situations": {
                situation: {policy: list(cell) for policy, cell in row.items()}
                for situation, row in self.cells.items()
            },
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """The inverse of `row`.

        Raises:
            LookupError, TypeError: it is none.
        """
        cells = {
            situation: {policy: Cell(*cell) for policy, cell in by_policy.items()}
            for situation, by_policy in row["situations"].items()
        }
        return cls(cells, {p: Cell(*cell) for p, cell in row["overall"].items()}, row["least"])


def _cell(rewards: Sequence[float]) -> Cell:
    return Cell(sum(rewards) / len(rewards), len(rewards))


def routes_of(episodes: Mapping[str, Sequence[Trajectory]], least: int = LEAST) -> dict[str, Route]:
    """Role -> its table, of the episodes that each member has played alone.

    Raises:
        ConfigError: too few decisions.
    """
    records: dict[str, list[tuple[str | None, str, float]]] = defaultdict(list)
    for member, trajectories in episodes.items():
        for group in (group for episode in trajectories for group in episode.groups):
            # What other agents' steps paid for this decision is part of its worth.
            paid = group.chosen.reward + group.late_reward
            records[group.key.role].append((group.chosen.info.get("situation"), member, paid))
    return {role: Route.of(rows, tuple(episodes), least) for role, rows in records.items()}


@dataclass(frozen=True)
class Ensemble:
    """Several teams, and the rule that decides which of them answers.

    Args:
        policies: member -> policy of the first member -> its own in that place.
        who: a member, which answers always; `routed`, by `routes`; or `vote`.
        routes: role -> its table.
    """

    policies: Mapping[str, Mapping[str, str]]
    who: str
    routes: Mapping[str, Route] = field(default_factory=dict)
    seats: ClassVar[Mapping[str, str]] = {}
    """Places beside those of the agents, whose prompts a policy reads; see `Teacher`."""

    def described(self) -> dict[str, Any]:
        """Returns the rule and the tables as JSON has them."""
        return {"who": self.who, "routes": {role: r.row() for role, r in self.routes.items()}}

    def sampler(self, policies: Sampler) -> Sampler:
        """Returns the sampler that completes the prompts: `policies`, or a vote among them."""
        if self.who != VOTE:
            return policies
        return Voting(policies, [dict(policy_map) for policy_map in self.policies.values()])

    def route(self, episode: Episode, policy: str) -> Routed:
        """Returns the policy that answers, for `RolloutEngine.route`."""
        agent, env = episode.agent or "", episode.env
        situation = env.infos.get(agent, {}).get("situation")
        if situation is None and callable(name := getattr(env.unwrapped, "situation", None)):
            situation = name(agent)
        situation = None if situation is None else str(situation)
        member = self.who
        if self.who == ROUTED:
            member = self.routes[episode.role].best(situation)
        # A vote is asked for as the first member's.
        answering = policy if self.who == VOTE else self.policies[member][policy]
        return Routed(answering, {"situation": situation, "member": member})


class Wrapper:
    """A sampler that completes prompts by asking `policies`."""

    def __init__(self, policies: Sampler) -> None:
        self._policies = policies
        self.continuous, self.policy_for = policies.continuous, policies.policy_for

    def prompt_ids(self, role: str, text: str) -> tuple[int, ...]:
        """Returns what the policies return."""
        return self._policies.prompt_ids(role, text)


class Voting(Wrapper):
    """A sampler in which all members answer, and the most frequent text is played.

    The record of an episode has the reply that was played, and not those of the others.

    Args:
        policies: completes the prompts.
        members: for each, policy of the first member -> its own in that place.
    """

    def __init__(self, policies: Sampler, members: Sequence[Mapping[str, str]]) -> None:
        super().__init__(policies)
        self._members = members

    def sample(
        self, requests: Sequence[Request], n: int, **settings: Any
    ) -> list[list[Completion]]:
        """The completion with most votes for every request, `n` times; ties to the first member."""
        # Members draw apart: with equal numbers, equal policies would always agree.
        asked = [
            replace(request, policy=member[request.policy], seed=(request.seed + at) % (1 << 62))
            for request in requests
            for at, member in enumerate(self._members)
        ]
        answers = self._policies.sample(asked, n, **settings)
        width = len(self._members)
        chosen = []
        for start in range(0, len(answers), width):
            replies = answers[start : start + width]
            votes = [[member[k].text for member in replies] for k in range(n)]
            chosen.append([replies[majority(v, operator.eq)][k] for k, v in enumerate(votes)])
        return chosen


# ------------------------------------------------------------------------------------- the options


def with_members(options: EvalConfig) -> tuple[EvalConfig, dict[str, str]]:
    """The settings with the adapters of the first member, beside which the others are loaded.

    Returns:
        The settings, and name -> adapters of each member, as `located_adapters` returns them; none
        without `members`.

    Raises:
        ConfigError: an option that needs members or forbids them, a bad name, or a single member.
    """
    if options.members is None:
        for name in ("route", "route_out", "vote"):
            if getattr(options, name):
                raise ConfigError(f"{name} is for an ensemble; name its teams: --members")
        return options, {}
    if options.adapters is not None:
        raise ConfigError("members have adapters of their own; leave out --adapters")
    members = pairs_of("members", options.members, "NAME=RUN")
    if len(members) < 2:
        raise ConfigError(f"members: {options.members!r} is one team; use --adapters, or name more")
    for name in members:
        check_policy_name(name)
        if name in (ROUTED, VOTE):
            raise ConfigError(f"members: the name {name!r} is taken; choose another")
    members = {name: located_adapters(source) for name, source in members.items()}
    if options.route_out is not None and options.split != "train":
        raise ConfigError(
            f"route_out is made on training tasks, and split is {options.split}; add --split train"
        )
    return replace(options, adapters=next(iter(members.values()))), members


def plan_with(plan: EvalPlan, members: Mapping[str, str], options: EvalConfig) -> EvalPlan:
    """The plan of the first member, with the others loaded beside it and played.

    Raises:
        ConfigError: a member without an adapter for a role, or on another base; a table of other
            members, of another environment, or made on these tasks.
    """
    seats = dict(plan.roles_to_policies)
    policies: dict[str, dict[str, str]] = {}
    everyone: dict[str, str] = {}
    folders: dict[str, Path] = {}
    for member, source in members.items():
        roles, agents = seats_of(plan.env)
        setting = plan.config.policies if "policies" in options.over else _policies_of(source)
        seats_to_policies = parse_policies(setting, roles, agents)
        if set(seats_to_policies) != set(seats):
            raise ConfigError(
                f"members: {member} has policies for {', '.join(seats_to_policies)}, the first member for "
                f"{', '.join(seats)}; give both alike"
            )
        saved = adapter_folders(source, seats_to_policies)
        policies[member] = {}
        for seat, policy in seats_to_policies.items():
            # Members may use the same names for their policies, which are adapters of one base
            # here.
            name = f"{member}-{policy}" if is_own(policy) else policy
            # The first member's have the seats; the others' are loaded under names of their own.
            place = seat if member == next(iter(members)) else f"{member}/{seat}"
            everyone[place] = name
            if policy in saved:
                folders[place] = saved[policy]
            first = everyone[seat]
            if policies[member].setdefault(first, name) != name:
                raise ConfigError(
                    f"members: {member} plays {seat} with a policy of its own, and the first member "
                    "does not; give both alike"
                )
    spec = ",".join(f"{place}={folder}" for place, folder in folders.items())
    config = replace(plan.config, adapters=spec)
    whole = replace(
        plan,
        config=config,
        roles_to_policies=everyone,
        adapters=check_adapters(config, everyone),
        route_out=None if options.route_out is None else Path(options.route_out),
    )
    return replace(whole, teams=_teams(whole, policies, options))


def _policies_of(adapters: str) -> str:
    """The setting `policies` of the run that adapters are from."""
    if is_folder(adapters):
        if is_adapter(adapters):
            return "shared"
        config = Path(adapters).parent / CONFIG
        if config.is_file():
            return read_config(config.parent).policies
    return "per-role"


def _teams(
    plan: EvalPlan,
    policies: Mapping[str, Mapping[str, str]],
    options: EvalConfig,
) -> list[Lineup]:
    def lineup(who: str, routes: Mapping[str, Route] | None = None) -> Lineup:
        return Lineup(who, adapters=True, ensemble=Ensemble(policies, who, routes or {}))

    together = []
    if options.vote:
        together.append(lineup(VOTE))
    if options.route is not None:
        together.append(lineup(ROUTED, read_routes(Path(options.route), plan, tuple(policies))))
    if together and not options.base:
        return together
    return [*(lineup(member) for member in policies), *together]


def write_routes(path: Path, plan: EvalPlan, episodes: Mapping[str, Sequence[Trajectory]]) -> None:
    """Writes the table of what each member is worth in each situation.

    Raises:
        ConfigError: too few decisions.
        RunFolderError: it cannot be written.
    """
    # What members did together says nothing about each of them.
    alone = {
        title: trajectories
        for title, trajectories in episodes.items()
        if title not in (ROUTED, VOTE)
    }
    content = {
        "env": plan.config.env,
        "split": plan.split,
        "tasks": len(plan.tasks),
        "adapters": _digests(plan),
        "roles": {role: route.row() for role, route in routes_of(alone).items()},
    }
    write_file(path, json.dumps(content, indent=2) + "\n")


def read_routes(path: Path, plan: EvalPlan, members: Sequence[str]) -> dict[str, Route]:
    """Role -> its table, of a file that `write_routes` has written for these members.

    Raises:
        ConfigError: it cannot be read, or is of other members, weights or another environment, or
            made on the split that is evaluated.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        routes = {role: Route.from_row(row) for role, row in content["roles"].items()}
        made = {name: content[name] for name in ("env", "split", "adapters")}
    except OSError as error:
        raise ConfigError(f"route {path} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"route {path} is no table of --route-out: {error!r}") from error
    policies = {policy for route in routes.values() for policy in route.overall}
    if policies != set(members):
        raise ConfigError(
            f"route {path} is of the members {', '.join(sorted(policies))}, and these are "
            f"{', '.join(members)}; make one of them with --route-out"
        )
    if made["env"] != plan.config.env:
        raise ConfigError(f"route {path} is of {made['env']}, and this is {plan.config.env}")
    if made["split"] == plan.split:
        raise ConfigError(
            f"route {path} was made on the split {plan.split}, where it would only repeat what it has "
            "seen; evaluate another, such as --split test"
        )
    # A run of the same name may have been trained on since.
    if made["adapters"] != _digests(plan):
        raise ConfigError(
            f"route {path} was made with other weights of {', '.join(members)}; make it again with "
            "--route-out"
        )
    return routes


def _digests(plan: EvalPlan) -> dict[str, str]:
    return {policy: digest(folder) for policy, folder in sorted(plan.adapters.items())}
