"""ReAd: a reply whose advantage is below a threshold is refused, and its agent is asked again.

After the abstract and the project page of Zhang et al., https://arxiv.org/abs/2405.14314; we have not read the full text.

    A(o, a) = Q(o, a) - Q(o, WAIT),   played: the first a with A >= threshold, else the best of those asked

A team's agents act one after the other, and o holds what was said before: Q(o, WAIT) is what the team reaches if the
agent adds nothing, and the A of a turn add up to the joint advantage. WAIT is an empty reply. Q is learned as in the
paper, by regression on the returns of recorded play. In environments whose rewards measure the distance to a solution,
A may be the reward itself, of a copy that plays the reply. That score knows the solution, and looks one reply ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pettingllms.envs.boards import BoardEnv
from pettingllms.envs.several import parts_of
from pettingllms.errors import ConfigError, RunFolderError
from pettingllms.evaluation.compare import folder_and_team
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.folder import digest, read_settings
from pettingllms.methods.critic import Critics
from pettingllms.methods.q_tree import followed
from pettingllms.models import shipped
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.engine import GatedReply, Routed
from pettingllms.rollout.episode import Episode
from pettingllms.rollout.files import TRAJECTORIES
from pettingllms.rollout.pairs import read_episodes, said
from pettingllms.rollout.trajectory import Trajectory, in_order
from pettingllms.runs import CONFIG, read_config
from pettingllms.samplers.base import Sampler, is_partner
from pettingllms.types import Conversation

if TYPE_CHECKING:
    from pettingllms.evaluation.run import EvalPlan

GATED = "gated"
"""Title of the team whose replies are refused."""
REWARDS = "rewards"
LATEST = 4096
"""Episodes that a critic learns from, the last of a record."""
REFUSED = (
    "Your earlier answers were refused, because their advantage was too low:\n{refused}\n"
    "Give an answer with a higher advantage."
)


@dataclass
class Gated:
    """Refuses replies of a team; has the hooks of `Ensemble`, and those of `RolloutEngine.gate`.

    Args:
        source: `rewards`, or the folder of the record that a critic learns from, with its team.
        replies: asked for at most at a decision; 1 is plain play.
        threshold: least advantage of a reply that is played at once.
        tell: whether an agent that is asked again reads its refused replies with their advantages.
        critics: not learned yet; None for `rewards`.
    """

    source: str
    replies: int
    threshold: float
    tell: bool = True
    critics: Critics | None = None
    seats: ClassVar[Mapping[str, str]] = {}
    _learned: Any = field(default=None, repr=False)
    """The policies whose base models the critics have learned to read."""

    @property
    def gate(self) -> Gated:
        """What decides on replies."""
        return self

    def described(self) -> dict[str, Any]:
        """Returns the rule as JSON has it, with a digest of what the critic learns from."""
        record = folder_and_team(self.source)[0] / TRAJECTORIES
        return {
            "gate": self.source,
            "record": None if self.critics is None else digest(record),
            "replies": self.replies,
            "threshold": self.threshold,
            "feedback": self.tell,
        }

    def sampler(self, policies: Sampler) -> Sampler:
        """Returns `policies`; the critics learn to read them first."""
        if self.critics is not None and self._learned is not policies:
            assert isinstance(policies, PolicySet)
            self.critics.load_state_dict({})
            self.critics.policies = self._learned = policies
            learn(self.critics, recorded(self.source), policies)
        return policies

    def route(self, episode: Episode, policy: str) -> Routed:
        """Returns the agent's own policy."""
        del episode
        return Routed(policy)

    def advantages(self, attempts: Sequence[GatedReply]) -> list[float]:
        """A of each reply.

        Raises:
            NonFiniteError: a critic predicts a value that is not finite.
        """
        if self.critics is None:
            return [attempt.branch.result.reward for attempt in attempts]
        pairs = [
            [(a.policy, a.prompt_ids, ids) for ids in (a.branch.completion.token_ids[:-1], ())]
            for a in attempts
        ]
        rows = {text: row for row, text in enumerate(dict.fromkeys(chain.from_iterable(pairs)))}
        features = self.critics.features([(p, [prompt, prompt + ids]) for p, prompt, ids in rows])
        q = self.critics.values(len(rows), features).tolist()
        return [q[rows[reply]] - q[rows[wait]] for reply, wait in pairs]

    def played(self, advantages: Sequence[float]) -> int | None:
        """The first reply that is good enough, else the first of the best once `replies` are asked."""
        if advantages[-1] >= self.threshold:
            return len(advantages) - 1
        return None if len(advantages) < self.replies else advantages.index(max(advantages))

    def feedback(self, prompt: str, refused: Sequence[tuple[str, float]]) -> str:
        """The prompt with the refused replies and their advantages at its end."""
        if not self.tell:
            return prompt
        lines = "\n".join(
            f"{advantage:+.2f}: {said('user', text)[0]['content'].strip()}"
            for text, advantage in refused
        )
        told = REFUSED.format(refused=lines)
        if not isinstance(prompt, Conversation):
            return f"{prompt}\n\n{told}"
        # Into the last message, because templates may refuse two of one role in a row.
        *before, last = prompt.messages
        return Conversation.of(
            [*before, {**last, "content": f"{last['content']}\n\n{told}"}], prompt.tools
        )


def learn(critics: Critics, record: Sequence[Trajectory], policies: PolicySet) -> None:
    """Regression of Q on what followed each recorded reply, its own reward counted.

    Play has no empty replies. WAIT changes nothing, so Q(o, WAIT) is what o is worth: the mean of what followed in o.
    """
    groups = in_order(record)
    rows = [
        (policies.policy_for(group.key.agent), [group.prompt_ids, group.prompt_ids + ids])
        for group in groups
        for ids in (group.chosen.completion.token_ids[:-1], ())
    ]
    targets_N = followed(groups, 1.0)
    targets_N += targets_N.new_tensor([group.chosen.reward for group in groups])
    critics.fit(critics.features(rows), targets_N.repeat_interleave(2))


def recorded(source: str) -> list[Trajectory]:
    """The last episodes of a run, or of a team of an evaluation.

    Raises:
        ConfigError: no decisions, or those of several teams.
        RunFolderError: no record there, or a damaged line.
    """
    folder, team = folder_and_team(source)
    episodes, teams = deque[Trajectory](maxlen=LATEST), set[str]()
    for row, episode in read_episodes(folder):
        if team in ("", row.get("team", "")):
            teams.add(row.get("team", ""))
            episodes.append(episode)
    if len(teams) > 1:
        raise ConfigError(f"gate {source} has the teams {', '.join(sorted(teams))}; add :TEAM")
    if not any(episode.groups for episode in episodes):
        raise ConfigError(f"gate {source} has no decisions{f' of {team}' if team else ''}")
    return list(episodes)


def check_gate(options: EvalConfig) -> None:
    """Refuses settings that exclude each other.

    Raises:
        ConfigError: settings of a gate without one, or others that a gate does not go with.
    """
    if options.gate is None:
        for name in ("gate_replies", "gate_threshold", "gate_feedback"):
            if getattr(options, name) != getattr(EvalConfig, name):
                raise ConfigError(f"{name} is for a gate; say what scores replies: --gate")
        return
    for name in ("members", "swap", "teacher"):
        if getattr(options, name) is not None:
            raise ConfigError(f"gate is for one team as it is; leave out --{name}")
    if options.over.get("workers"):
        raise ConfigError("gate plays in one process; leave out --workers")
    if options.greedy and not options.gate_feedback and options.gate_replies > 1:
        raise ConfigError("greedy gives the same reply again; leave out --no-gate-feedback")


def gate_of(options: EvalConfig, plan: EvalPlan) -> Gated | None:
    """The gate that the settings ask for, if they do.

    Raises:
        ConfigError: nothing that scores replies, or a record of other tasks or models.
        RunFolderError: no record there, or a damaged line.
    """
    if options.gate is None:
        return None
    gate = Gated(options.gate, options.gate_replies, options.gate_threshold, options.gate_feedback)
    if gate.source == REWARDS:
        _check_rewards(plan)
        return gate
    _check_record(plan, folder_and_team(gate.source)[0])
    recorded(gate.source)
    gate.critics = Critics(plan.config, by_policy=True, learning_rate=1e-3, epochs=30)
    return gate


def _check_rewards(plan: EvalPlan) -> None:
    for env in (part.unwrapped for part in parts_of(plan.env)):
        if not isinstance(env, BoardEnv) or env.rewards_scheme != "paper":
            raise ConfigError(
                "gate rewards is for boards with --env-args.rewards paper, whose rewards measure the distance to a "
                f"solution, and {env} has none of that kind; name a run or an evaluation on --split train whose "
                "returns a critic can learn, such as --gate runs/latest"
            )


def _check_record(plan: EvalPlan, folder: Path) -> None:
    """Compares what a critic learns from with what it will judge."""
    config = plan.config
    if config.full or any(map(is_partner, plan.roles_to_policies.values())):
        raise ConfigError(
            "the critic of gate reads the frozen base models of all roles, and there are "
            f"{'full policies' if config.full else 'models behind an API'}; use --gate rewards on boards"
        )
    if not (folder / TRAJECTORIES).is_file():
        raise RunFolderError(
            f"gate {str(folder)!r} is no run and no evaluation; name one with {TRAJECTORIES}, or {REWARDS} on boards"
        )
    if (folder / CONFIG).is_file():
        run = read_config(folder)
        env, model, split = str(run.env), run.model, "train"
    else:
        settings = read_settings(folder)
        env, model, split = (str(settings.get(name)) for name in ("env", "model", "split"))
    if env != config.env or (shipped(model) or model) != (shipped(config.model) or config.model):
        raise ConfigError(
            f"gate {folder} is a record of {env} by {model}, and this is {config.env} by {config.model}; a critic "
            "learns the returns of one environment from the states of one base model"
        )
    if split == plan.split:
        raise ConfigError(
            f"gate {folder} was played on the split {split}, where its critic has seen the answers; evaluate another "
            "split, or record one on --split train"
        )
