"""The records that cross a package border, one per stage, in the order in which data flows.

    Task -> observation -> Completion -> Candidate -> Group -> Sample -> loss

All are frozen: a later stage reads the record of an earlier one and never writes back. Token
ids and log-probabilities are those of sampling; text exists for the environment only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from pettingllms.errors import GroupError

LIMITS: Mapping[str, tuple[float, int]] = {
    "cpu_s": (0.001, 86_400),
    "wall_s": (0.001, 86_400),
    "memory_mib": (1, 1 << 20),
    "output_kib": (1, 1 << 17),
    "processes": (1, 1 << 15),
    "tmp_mib": (1, 1 << 20),
    "open_files": (1, 1 << 14),
}
"""Smallest and largest value of each limit of a program (`pettingllms.sandbox.Limits`)."""
MAX_INPUT_BYTES = 16 << 20
"""Largest size of a program's standard input, and of a function's arguments."""

Advantage = float | tuple[float, ...]
"""A number for a whole completion, or one for each of its tokens."""


TOOL_CALL = ("<tool_call>", "</tool_call>")
"""Tags around a tool call (JSON with name and arguments) in the texts that environments get."""


JsonObject = dict[str, Any]
"""An object as JSON has it."""
Messages = Sequence[Mapping[str, Any]]
"""Messages or tools, as in OpenAI's chat completions, contents and arguments of calls as text."""


class Conversation(str):
    """An observation of several messages: as text for people, with the messages for a chat template.

    It can be used wherever the text of an observation can.
    """

    __slots__ = ("messages", "tools")
    messages: Messages
    tools: Messages
    """Functions that the agent may call."""

    def __new__(cls, text: str, messages: Messages, tools: Messages = ()) -> Self:
        """`text` is the form for people and records."""
        made = super().__new__(cls, text)
        made.messages, made.tools = messages, tools
        return made

    @classmethod
    def of(cls, messages: Messages, tools: Messages = ()) -> Self:
        """Makes a conversation whose text lists the names of the tools, then each message."""
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


def with_text(prompt: str, before: str = "", behind: str = "") -> str:
    """Returns a prompt with more text in its first and last messages: templates may refuse two of one role in a row."""
    if not isinstance(prompt, Conversation):
        return before + prompt + behind
    messages = [{**message} for message in prompt.messages]
    messages[0]["content"] = f"{before}{messages[0]['content']}"
    messages[-1]["content"] = f"{messages[-1]['content']}{behind}"
    return Conversation.of(messages, prompt.tools)


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
    """Seed for `reset`; with `options` it determines the instance."""
    options: Mapping[str, Any] | None = None
    """Options for `reset`, for example a user's question."""
    size: str = ""
    """Name of its size (`pettingllms.trainers.difficulty`), or, with several environments, of its
    environment (`pettingllms.envs.several`)."""


class GroupKey(NamedTuple):
    """Place of a decision in a rollout. Estimators group by some of these fields."""

    task: str
    episode: int
    """0 in a tree rollout; the index of the parallel episode otherwise."""
    agent: str
    role: str
    turn: int
    parent: int
    """Number of earlier decisions in the episode: the depth of the node above it."""
    state_hash: str
    """Digest of the prompt tokens; equal digests mean equal prompts."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt for one policy."""

    policy: str
    prompt_ids: tuple[int, ...]
    seed: int
    """Seed of the completions, between -2**63 and 2**62; ignored when greedy."""
    memory: Any = field(default=None, compare=False, repr=False)
    """A `Memory` (`pettingllms.samplers.base`) of the conversation that the prompt may continue."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled tokens for a prompt, with their log-probabilities."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """Sampled ids, including the end-of-turn token unless `truncated`."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each token id under the sampling distribution. Empty in records read
    from a file."""
    text: str
    """Decoded text without special tokens, for the environment."""
    truncated: bool
    """Whether it was cut off at the token limit."""
    version: int
    """Version of the weights that sampled it."""
    refused: bool = False
    """Whether a model behind an API refused, or answered without a text."""
    notes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """More entries for `info` in the record; JSON values."""


class Later(NamedTuple):
    """Rewards and tokens that followed a candidate, in a look-ahead tree or a forest."""

    rewards: tuple[float, ...]
    """Rewards at each later decision, of the team, or of the agent if agents have returns of their own.
    Along the episode: means over the candidates of each node; else: rewards of one episode."""
    tokens: int
    """Tokens generated for them in addition to those of the record."""

    @property
    def reward(self) -> float:
        """Sum of the rewards."""
        return self.worth(1.0)

    def worth(self, gamma: float) -> float:
        """Returns the sum of the rewards, discounted by `gamma` for each decision after the first."""
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
    """Whether an episode continued from this one. Of several in a group, the first continued in this
    record, the others in records of forks."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """`info` of this step from the environment (success, parse_error, ...); JSON values."""
    advantage: Advantage | None = None
    """Advantage from the method; None if it was not compared."""
    credited: float | None = None
    """Reward that the method compared, if its `credit` changed it."""
    later: Later | None = None
    """Rewards that followed, if episodes continued from several candidates or looked ahead."""


class Unplayed(NamedTuple):
    """A prompt without an answer, because the limit on turns ended the episode."""

    policy: str
    """Policy that would have answered."""
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A decision: all candidates for one prompt.

    Raises:
        GroupError: there is no candidate, one has other `prompt_ids`, or they come from different
            versions of the policy.
    """

    key: GroupKey
    policy: str
    prompt: str
    """The observation, without the chat template."""
    prompt_ids: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    late_reward: float = 0.0
    """Reward of this agent at other agents' steps between this decision and its next."""
    episode_return: float = 0.0
    """Sum of the agent's rewards in the complete episode; of the team's if it is shared."""
    cooperative: bool = False
    """Whether the agents of the episode share one return."""
    earlier: float = 0.0
    """Part of that return from before this decision."""
    unplayed: Unplayed | None = None
    """Next prompt after a cut by the limit on turns: the team's if agents share one return, else the
    agent's. Only for methods that ask for it (`RolloutShape.bootstraps`)."""
    privileged: str = ""
    """Facts of the task that the agent does not see, such as the solution; not written to files."""

    @property
    def chosen(self) -> Candidate:
        """The candidate with which the episode continued."""
        return next(candidate for candidate in self.candidates if candidate.chosen)

    def return_by(self, candidate: Candidate) -> float:
        """Returns the return of the episode that continues from `candidate`.

        If several episodes do, it is the mean over the candidates of each decision.
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
    """A training sample: a completion, its advantage, and its multiplicity in the group."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: Advantage
    count: int = 1
    """Number of identical completions in the group, which are computed once."""
    role: str = ""
    """Role of the prompt; a policy may play several."""
