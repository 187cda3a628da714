"""The records that cross a package border, one per stage, in the order in which data flows.

    Task -> observation -> Completion -> Candidate -> Group -> Sample -> loss

All are frozen: a later stage reads the record of an earlier one and never writes back. Token
ids and log-probabilities are those of sampling; text exists for the environment only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from pettingllms.errors import GroupError, UnknownNameError, did_you_mean

LIMITS: Mapping[str, tuple[float, int]] = {
    "cpu_s": (0.001, 86_400),
    "wall_s": (0.001, 86_400),
    "memory_mib": (1, 1 << 20),
    "output_kib": (1, 1 << 17),
    "processes": (1, 1 << 15),
    "tmp_mib": (1, 1 << 20),
    "open_files": (1, 1 << 14),
}
"""The limits of a program's run (`pettingllms.sandbox.Limits`), from the least to the most that each may be."""
MAX_INPUT_BYTES = 16 << 20
"""Of a program's standard input, and of a function's arguments."""

Advantage = float | tuple[float, ...]
"""A number for a whole completion, or one for each of its tokens."""


def role_of(agent: str) -> str:
    """Returns the role of an agent: `coder` of `coder_0`; a name without a number is a role."""
    match = re.fullmatch(r"(.+)_\d+", agent)
    return match[1] if match else agent


PARTNER = "api:"
"""What the names of policies begin with that another server's model plays; the model follows."""


def is_partner(policy: str) -> bool:
    """Returns whether a model behind an API plays the policy: prompted in text, never trained."""
    return policy.startswith(PARTNER)


def policy_of(role: str, roles_to_policies: Mapping[str, str]) -> str:
    """The policy that plays a role, or an agent: its own, or else that of its role.

    Raises:
        UnknownNameError: none of these plays it.
    """
    policy = roles_to_policies.get(role) or roles_to_policies.get(role_of(role))
    if policy is None:
        hint = did_you_mean(role, roles_to_policies)
        raise UnknownNameError(f"no policy plays the role {role!r}; {hint}")
    return policy


TOOL_CALL = ("<tool_call>", "</tool_call>")
"""The tags around a call of a tool in what environments see; JSON with name and arguments is between."""


JsonObject = dict[str, Any]
"""An object as JSON has it."""
Messages = Sequence[Mapping[str, Any]]
"""Messages or tools, as in OpenAI's chat completions, contents and arguments of calls as text."""


class Conversation(str):
    """An observation of several messages: as text for people, with the messages for a chat template.

    It goes wherever the text of an observation goes, and arrives as what it is.
    """

    __slots__ = ("messages", "tools")
    messages: Messages
    tools: Messages
    """Functions that the agent may call."""

    def __new__(cls, text: str, messages: Messages, tools: Messages = ()) -> Self:
        """`text` is what people and records see of it."""
        made = super().__new__(cls, text)
        made.messages, made.tools = messages, tools
        return made

    @classmethod
    def of(cls, messages: Messages, tools: Messages = ()) -> Self:
        """The conversation with the text that people see: the names of the tools, then each message."""
        parts = [_readable(message) for message in messages]
        if tools:
            names = ", ".join(str(tool["function"].get("name")) for tool in tools)
            parts.insert(0, f"[tools] {names}")
        return cls("\n\n".join(parts), messages, tools)

    def continues(self, earlier: str) -> bool:
        """Returns whether it begins with the messages of another observation and a reply to them."""
        before = (
            list(earlier.messages)
            if isinstance(earlier, Conversation)
            else [{"role": "user", "content": earlier}]
        )
        later = self.messages[len(before) :]
        return (
            bool(later)
            and later[0]["role"] == "assistant"
            and list(self.messages[: len(before)]) == before
        )

    def __str__(self) -> str:
        # `str(text)` would forget the messages.
        return self

    def __reduce__(self) -> Any:
        return Conversation, (str.__str__(self), self.messages, self.tools)


def _readable(message: Mapping[str, Any]) -> str:
    called = [
        f"{call['function']['name']}({call['function']['arguments']})"
        for call in message.get("tool_calls", ())
    ]
    return f"[{message['role']}] " + "\n".join(filter(None, [message["content"], *called]))


class Task(NamedTuple):
    """One problem instance, which `env.reset(seed=...)` turns into an episode."""

    id: str
    """Unique within a run, e.g. `coding:train:17`."""
    seed: int
    """Handed to `reset`; decides the instance, together with `options`."""
    options: Mapping[str, Any] | None = None
    """Handed to `reset`, too: a question of a user's own, for example."""
    size: str = ""
    """Name of the size that it is of, where a training draws sizes (`pettingllms.trainers.difficulty`), or
    of its environment, where there are several (`pettingllms.envs.several`)."""


class GroupKey(NamedTuple):
    """Place of a decision in a rollout. Estimators group by some of these fields."""

    task: str
    episode: int
    """0 in a tree rollout; the index of the parallel episode otherwise."""
    agent: str
    role: str
    turn: int
    parent: int
    """Decisions taken before this one in its episode: the depth of the node it hangs from."""
    state_hash: str
    """Digest of the prompt tokens, equal exactly where the prompts are."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt for one policy."""

    policy: str
    prompt_ids: tuple[int, ...]
    seed: int
    """All randomness of its completions; between -2**63 and 2**62, ignored when greedy."""
    memory: Any = field(default=None, compare=False, repr=False)
    """A `Memory` (`pettingllms.samplers.base`) of the conversation that the prompt may go on from."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Answer of a policy to a prompt: the sampled tokens and their log-probabilities."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """Sampled ids, the end-of-turn token included unless `truncated`."""
    logprobs: tuple[float, ...]
    """Natural log, one per token id, under the distribution that was sampled from. Empty in a
    record that was read back from a file."""
    text: str
    """Decoded tokens without the special ones, for the environment."""
    truncated: bool
    """Whether it was cut at the token limit."""
    version: int
    """Version of the policy's weights that sampled it."""
    refused: bool = False
    """Whether a model behind an API refused, or answered without a text."""
    notes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """More entries for the info of the record, as JSON has them."""


class Later(NamedTuple):
    """Rewards and tokens that followed a candidate, in a look-ahead tree or a forest."""

    rewards: tuple[float, ...]
    """Paid at each decision after the candidate's own, to the team, or to the agent where returns are
    its own: along the episode the mean over the candidates of each node, else what one episode earned."""
    tokens: int
    """Generated to find out, beside those of the record."""

    @property
    def reward(self) -> float:
        """All that was paid."""
        return self.worth(1.0)

    def worth(self, gamma: float) -> float:
        """Rewards of each decision, times `gamma` for every one since the first of them."""
        return sum(gamma**n * paid for n, paid in enumerate(self.rewards))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A completion and its rewards on its own copy of the environment."""

    completion: Completion
    reward: float
    """alpha * team_reward + local_reward."""
    team_reward: float
    local_reward: float
    chosen: bool
    """Whether an episode continued from this one: the first of several did in this record, the
    others in those of its forks."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """The environment's info of this step (success, parse_error, ...), as JSON has it."""
    advantage: Advantage | None = None
    """The estimator's value; None where it compared nothing."""
    credited: float | None = None
    """The reward that the estimator saw, where a reward transform had changed it."""
    later: Later | None = None
    """What followed, where other candidates were continued from or looked ahead from as well."""


class Unplayed(NamedTuple):
    """A prompt that nobody answered, because the limit on turns ended the episode there."""

    policy: str
    """That would have answered."""
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A decision: the candidates that answered one prompt at one node.

    Raises:
        GroupError: the candidates do not all carry exactly `prompt_ids`, or were sampled from
            different versions of the policy, or there is none.
    """

    key: GroupKey
    policy: str
    prompt: str
    """The observation, without the chat template."""
    prompt_ids: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    late_reward: float = 0.0
    """Paid to this agent at other agents' steps, after this decision and before its next."""
    episode_return: float = 0.0
    """Sum of the agent's rewards in the episode, once it is over; of the team's where it is shared."""
    cooperative: bool = False
    """Whether the agents of the episode share one return."""
    earlier: float = 0.0
    """The part of that return that was paid before this decision."""
    unplayed: Unplayed | None = None
    """What would have come next in a chain that the limit on turns cut here: of the team where the agents
    share one return, else of the agent. Only for estimators that ask for it (`RolloutShape.bootstraps`)."""
    privileged: str = ""
    """What the environment knows of the task and did not tell the agent; not written to files."""

    @property
    def chosen(self) -> Candidate:
        """The candidate that the episode continued from."""
        return next(candidate for candidate in self.candidates if candidate.chosen)

    def return_by(self, candidate: Candidate) -> float:
        """The return of the episode that continues from `candidate`.

        Where several continue from it or after it, the mean over the candidates of each decision.
        """
        if candidate.later is None:
            return self.episode_return
        return self.earlier + candidate.reward + candidate.later.reward

    def __post_init__(self) -> None:
        if not self.candidates:
            raise GroupError(f"group {self.key} has no candidates; sample at least one")
        for index, candidate in enumerate(self.candidates):
            # An advantage compares candidates, which means something for one and the same prompt
            # only.
            if candidate.completion.prompt_ids != self.prompt_ids:
                raise GroupError(
                    f"candidate {index} of group {self.key} answered another prompt "
                    f"({len(candidate.completion.prompt_ids)} tokens, the group's has "
                    f"{len(self.prompt_ids)}); only completions of identical prompt tokens may share "
                    "a group"
                )
        versions = {candidate.completion.version for candidate in self.candidates}
        if len(versions) > 1:
            raise GroupError(
                f"group {self.key} mixes versions {sorted(versions)} of policy {self.policy!r}; "
                "publish new weights only between rollouts"
            )


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sample: a completion, its advantage and its multiplicity in the group."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: Advantage
    count: int = 1
    """Identical completions of a group have identical rewards; they are computed once."""
    role: str = ""
    """The role that it completed a prompt of; policies may play several."""
