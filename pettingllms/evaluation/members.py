"""`--members`: an evaluation of several teams, each alone and all together.

`--route-out FILE` writes what each is worth in each situation, and `--route FILE` lets that decide who
answers; see `pettingllms.evaluation.ensembles`. All members are in memory at once, on one base model.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pettingllms.assembly import check_adapters
from pettingllms.errors import ConfigError
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.ensembles import NAMER, ROUTED, VOTE, Ensemble, Route, routes_of
from pettingllms.evaluation.folder import digest, write_file
from pettingllms.evaluation.rollouts import Lineup, seats_of
from pettingllms.policies.roles import BASE, check_policy_name, is_own, parse_policies
from pettingllms.policies.sources import adapter_folders, is_adapter, is_folder, located_adapters
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs import CONFIG, read_config

if TYPE_CHECKING:
    from pettingllms.evaluation.run import EvalPlan


def with_members(options: EvalConfig) -> tuple[EvalConfig, dict[str, str]]:
    """The settings with the adapters of the first member, beside which the others are loaded.

    Returns:
        The settings, and name -> adapters of each member, as `located_adapters` returns them; none
        without `members`.

    Raises:
        ConfigError: an option that needs members or forbids them, a bad name, or a single member.
    """
    if options.members is None:
        for name in ("route", "route_out", "vote", "situations"):
            if getattr(options, name):
                shown = name.replace("_", "-")
                raise ConfigError(
                    f"{name} is for an ensemble; name its teams: --members (--{shown})"
                )
        return options, {}
    for name in ("adapters", "swap"):
        if getattr(options, name) is not None:
            raise ConfigError(f"members have adapters of their own; leave out --{name}")
    found = _named(options.members)
    if len(found) < 2:
        raise ConfigError(f"members: {options.members!r} is one team; use --adapters, or name more")
    if options.route_out is not None and options.split != "train":
        raise ConfigError(
            f"route_out is made on training tasks, and split is {options.split}; add --split train"
        )
    return dataclasses.replace(options, adapters=next(iter(found.values()))), found


def _named(spec: str) -> dict[str, str]:
    """Name -> adapters of each member."""
    found: dict[str, str] = {}
    for item in spec.split(","):
        name, equals, source = (part.strip() for part in item.partition("="))
        if not (name and equals and source):
            raise ConfigError(f"members: {item!r} is not NAME=RUN, in {spec!r}")
        check_policy_name(name)
        if name in (*found, ROUTED, VOTE):
            raise ConfigError(f"members: the name {name!r} is taken; choose another")
        found[name] = located_adapters(source)
    return found


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
        given = plan.config.policies if "policies" in options.over else _policies_of(source)
        own = parse_policies(given, roles, agents)
        if set(own) != set(seats):
            raise ConfigError(
                f"members: {member} has policies for {', '.join(own)}, the first member for "
                f"{', '.join(seats)}; give both alike"
            )
        saved = adapter_folders(source, own)
        policies[member] = {}
        for seat, policy in own.items():
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
    if options.situations is not None:
        # The base model names situations, so that no member decides in which of them it is best.
        everyone[NAMER] = BASE
    spec = ",".join(f"{place}={folder}" for place, folder in folders.items())
    config = dataclasses.replace(plan.config, adapters=spec)
    found = dataclasses.replace(
        plan,
        config=config,
        roles_to_policies=everyone,
        adapters=check_adapters(config, everyone),
        route_out=None if options.route_out is None else Path(options.route_out),
    )
    names = tuple(each.strip() for each in (options.situations or "").split(",") if each.strip())
    return dataclasses.replace(found, teams=_teams(found, policies, options, names))


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
    situations: tuple[str, ...],
) -> list[Lineup]:
    def lineup(who: str, routes: Mapping[str, Route] | None = None) -> Lineup:
        ensemble = Ensemble(policies, who, routes or {}, situations)
        return Lineup(who, adapters=True, ensemble=ensemble)

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
    alone = {title: own for title, own in episodes.items() if title not in (ROUTED, VOTE)}
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
    known = {policy for route in routes.values() for policy in route.overall}
    if known != set(members):
        raise ConfigError(
            f"route {path} is of the members {', '.join(sorted(known))}, and these are "
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
