"""Evaluates line-ups on held-out tasks: one completion a decision, no branching, no training.

Episodes are rolled out in chunks (`evaluation/chunks.py`). Every completion draws from random
numbers of its own, and a chunk shares no batch with another. So a chunk that is rolled out again
comes out the same, on one machine and one version of its libraries: that is how an interrupted
evaluation resumes, and why more samples of each task can be added to a finished one.

A completion may have `max_new_tokens` tokens, whatever its prompt. An episode whose next prompt
leaves less room in the model's context ends there: it keeps what it has earned, is no success, and
counts in the score `overlong`. Nothing is sampled beyond the context, and no prompt is shortened.

`--swap coder=tester` makes two roles exchange their policies. `--swap all` gives every role every
other role's policy, one at a time: with the plain line-up the N x N matrix of policies in roles.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pettingllms.envs.aec import roles_of, seats_of
from pettingllms.envs.several import SeveralEnvs
from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean
from pettingllms.evaluation.chunks import Chunk, Sampling, chunks
from pettingllms.evaluation.folder import EvalFolder
from pettingllms.evaluation.scores import Evaluation, summarise
from pettingllms.names import is_partner, role_of
from pettingllms.rollout.engine import RolloutEngine, longest_prompts
from pettingllms.rollout.episode import AnyEnv
from pettingllms.rollout.shapes import RolloutShape
from pettingllms.rollout.trajectory import Trajectory, check_room
from pettingllms.samplers.base import Sampler
from pettingllms.types import Task

if TYPE_CHECKING:
    from pettingllms.evaluation.ensembles import Ensemble
    from pettingllms.evaluation.gate import Gated
    from pettingllms.evaluation.step import Teacher

BASE, ADAPTERS, SWAPPED, PARTNERS = "base", "adapters", "swapped", "api"
HELD_OUT = {"val": 1 << 31, "test": (1 << 31) + (1 << 30)}
"""First seed of held-out tasks where an environment has no splits; no training step uses it."""
Verdicts = Sequence[bool | None]
"""The success of each finished episode; None if the environment does not report it."""


class Play(Protocol):
    """Rolls out chunks, in this process or in others; see `pettingllms.evaluation.playing`."""

    def __call__(
        self, lineup: Lineup, missing: Sequence[Chunk], on_batch: Callable[[Verdicts], None]
    ) -> Iterator[list[Trajectory]]:
        """The episodes of each chunk, in order."""


def evaluate(
    env: AnyEnv,
    policies: Sampler,
    *,
    tasks: Sequence[Task],
    max_new_tokens: int,
    samples: int = 1,
    greedy: bool = False,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    swap: Mapping[str, str] | None = None,
    scoring_threads: int = 16,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Evaluation:
    """Rolls out `samples` episodes of each task without branching, and scores them.

    Args:
        env: of the split to evaluate; copied, never stepped itself.
        policies: sample the completions.
        tasks: for example `held_out(env, "test", 100)`.
        max_new_tokens: of a completion.
        samples: episodes of each task.
        greedy: always take the likeliest token.
        temperature: of sampling.
        top_p: sample from the likeliest tokens that together reach this probability.
        seed: of sampling and of the bootstrap.
        swap: role -> the role whose policy answers for it.
        scoring_threads: prompts whose completions are scored at the same time.
        on_progress: called with finished and all episodes before every batch; may raise to stop.

    Raises:
        ConfigError: no tasks or no samples, or no task fits into the model's context.
        UnknownNameError: `swap` names an unknown role.
    """
    if not tasks or samples < 1:
        raise ConfigError(f"nothing to evaluate: {len(tasks)} tasks, {samples} samples of each")
    sampling = Sampling(max_new_tokens, samples, greedy, temperature, top_p, seed)
    seats_to_policies = policies_by_seat(policies, env, swap)
    total, episodes = len(tasks) * samples, list[Trajectory]()

    def on_batch(verdicts: Verdicts) -> None:
        on_progress(len(episodes) + len(verdicts), total)

    with ThreadPoolExecutor(scoring_threads) as pool:
        for chunk in chunks(tasks, sampling):
            episodes += roll_out(env, policies, seats_to_policies, pool, chunk, sampling, on_batch)
    on_progress(total, total)
    check_room(episodes, max_new_tokens)
    return summarise(episodes, roles_of(env), samples=samples, greedy=greedy, seed=seed)


def roll_out(
    env: AnyEnv,
    policies: Sampler,
    seats_to_policies: Mapping[str, str],
    pool: Executor,
    chunk: Chunk,
    sampling: Sampling,
    on_batch: Callable[[Verdicts], None] = lambda _verdicts: None,
    ensemble: Ensemble | Gated | Teacher | None = None,
) -> list[Trajectory]:
    """Rolls out the episodes of one chunk, one completion a turn; those of each task in order.

    Args:
        env: a template, copied for every episode.
        policies: samples the completions.
        seats_to_policies: agent or role -> the policy that answers for it.
        pool: scores completions at the same time.
        chunk: the tasks, and which samples of each.
        sampling: how completions are drawn.
        on_batch: called before every batch with how the finished episodes ended; may raise to stop.
        ensemble: several teams, or one with its teacher or its gate, of which it says who answers.

    Raises:
        ConfigError: the context of the model has no room for any prompt.
    """
    engine = RolloutEngine(
        env,
        policies if ensemble is None else ensemble.sampler(policies),
        pool,
        # What an episode draws follows from its index, so that samples that are added later
        # continue the numbers.
        shape=RolloutShape(episodes=len(chunk.samples), first=chunk.samples.start),
        settings={
            "greedy": sampling.greedy,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_new_tokens": sampling.max_new_tokens,
        },
        seed=(sampling.seed, "evaluation"),
        policies={**seats_to_policies, **(ensemble.seats if ensemble else {})},
        longest=longest_prompts(policies, sampling.max_new_tokens),
        route=None if ensemble is None else ensemble.route,
    )
    return engine.run(
        chunk.tasks, lambda over: on_batch([episode.trajectory().success for episode in over])
    )


def held_out(env: AnyEnv, split: str, count: int | None = None) -> list[Task]:
    """The first `count` tasks of a split, or all of a smaller data set.

    None stands for a whole data set, and for 100 tasks of a generator. An environment without
    splits, or of another split, gets seeds that training never uses. Of several environments, each
    has an equal share of `count`.

    Raises:
        ConfigError: `env` has the rows of another split only.
    """
    plain: Any = env.unwrapped
    if isinstance(plain, SeveralEnvs):
        share, more = divmod(count or 0, len(plain.parts))
        return [
            task._replace(id=f"{name}:{task.id}", size=name)
            for place, (name, part) in enumerate(plain.parts.items())
            for task in held_out(part, split, None if count is None else share + (place < more))
        ]
    rows = getattr(plain, "num_tasks", None)
    env_split = getattr(plain, "split", None)
    if env_split not in (None, split) and rows is not None:
        raise ConfigError(
            f"{env} holds the split {env_split!r} of a data set, not {split!r}; give what makes it, such "
            "as its class, in place of the environment"
        )
    # An environment that knows the split deals from its own tasks, from the first one on.
    first = 0 if env_split == split else HELD_OUT.get(split, 0)
    wanted = (rows or 100) if count is None else count
    numbers = range(first, first + (wanted if rows is None else min(wanted, rows)))
    return [Task(f"{split}:{number}", number) for number in numbers]


def policies_by_seat(
    policies: Sampler, env: AnyEnv, swap: Mapping[str, str] | None
) -> dict[str, str]:
    """Agent -> policy, after the exchange `swap`: role or agent -> whose policy answers for it.

    Raises:
        UnknownNameError: an unknown role, or one without a policy.
    """
    swap, (roles, agents) = swap or {}, seats_of(env)
    for name in {**swap, **dict.fromkeys(swap.values())}:
        if name not in (*roles, *agents):
            raise UnknownNameError(
                f"swap names the unknown role {name!r}; {did_you_mean(name, [*roles, *agents])}"
            )
    played = {agent: swap.get(agent) or swap.get(role_of(agent)) or agent for agent in agents}
    return {agent: policies.policy_for(name) for agent, name in played.items()}


# ----------------------------------------------------------------------------------- line-ups


class ClosableSampler(Sampler, Protocol):
    """A sampler that plays an evaluation: a `PolicySet`, or `ApiPartners` alone."""

    def close(self) -> None:
        """Frees what it holds."""


class Lineup(NamedTuple):
    """The policies of an evaluation: adapters or the base model, and which role uses whose."""

    title: str
    adapters: bool
    swap: Mapping[str, str] | None = None
    """Role -> the role whose policy answers for it."""
    ensemble: Ensemble | Gated | Teacher | None = None
    """Several teams with their adapters, or one with its teacher or its gate, of which it says who answers."""

    def described(self) -> dict[str, Any]:
        """Returns what it plays with, as JSON has it."""
        return dict(self.swap or {}) | (self.ensemble.described() if self.ensemble else {})


def lineups_of(
    roles_to_policies: Mapping[str, str],
    *,
    adapters: bool,
    base: bool = True,
    swap: str | None = None,
) -> list[Lineup]:
    """The line-ups to evaluate; the others are compared with the first.

    Args:
        roles_to_policies: role -> policy.
        adapters: whether there are any; else only the base model is evaluated.
        base: whether the base model is evaluated beside the adapters.
        swap: `all`, pairs of roles such as `coder=tester`, or None.

    Raises:
        ConfigError: `swap` is neither, or exchanges nothing.
        UnknownNameError: `swap` names an unknown role.
    """
    partners = [policy for policy in roles_to_policies.values() if is_partner(policy)]
    if not adapters:
        if swap is not None and not partners:
            raise ConfigError(
                f"swap {swap!r} exchanges adapters, and there are none: every role uses "
                "the base model; give --adapters"
            )
        title = PARTNERS if len(partners) == len(roles_to_policies) else BASE
        return [Lineup(title, False), *_swapped(swap, roles_to_policies, adapters=False)]
    lineups = [Lineup(BASE, adapters=False)] if base else []
    swapped = _swapped(swap, roles_to_policies, adapters=True)
    return [*lineups, Lineup(ADAPTERS, adapters=True), *swapped]


def title_of_swap(role: str, other: str) -> str:
    """The title of the line-up in which `role` alone uses the policy of `other`."""
    return f"{role} by {other}"


def _swapped(
    spec: str | None, roles_to_policies: Mapping[str, str], *, adapters: bool
) -> list[Lineup]:
    if spec is None:
        return []
    if spec == "all":
        lineups = [
            Lineup(title_of_swap(role, other), adapters, swap={role: other})
            for role, other in itertools.permutations(roles_to_policies, 2)
            # Two roles of one policy would only repeat the plain line-up.
            if roles_to_policies[role] != roles_to_policies[other]
        ]
    else:
        swap = _exchanged(spec, list(roles_to_policies))
        changes = any(
            roles_to_policies[role] != roles_to_policies[other] for role, other in swap.items()
        )
        lineups = [Lineup(SWAPPED, adapters, swap=swap)] if changes else []
    if not lineups:
        shown = ", ".join(f"{role}={policy}" for role, policy in roles_to_policies.items())
        raise ConfigError(
            f"swap {spec!r} exchanges nothing: the policies are {shown}; leave it out"
        )
    return lineups


def _exchanged(spec: str, roles: Sequence[str]) -> dict[str, str]:
    """Role -> the role whose policy it uses, in both directions."""
    swap: dict[str, str] = {}
    for pair in spec.split(","):
        one, equals, other = (name.strip() for name in pair.partition("="))
        if not equals:
            raise ConfigError(f"swap must be all, or pairs like coder=tester, got {spec!r}")
        for role in (one, other):
            if role not in roles:
                raise UnknownNameError(f"swap: unknown role {role!r}; {did_you_mean(role, roles)}")
            if role in swap:
                raise ConfigError(f"swap names the role {role!r} twice, in {spec!r}")
        swap |= {one: other, other: one}
    return swap


def evaluate_lineups(
    lineups: Sequence[Lineup],
    tasks: Sequence[Task],
    sampling: Sampling,
    *,
    play: Play,
    folder: EvalFolder | None = None,
    on_progress: Callable[[str, Verdicts], None] = lambda _title, _verdicts: None,
) -> dict[str, list[Trajectory]]:
    """Plays the same tasks with every line-up.

    Adapters come before the base model, so that unusable adapters are found first.

    Args:
        lineups: what to evaluate.
        tasks: the same for every line-up.
        sampling: how completions are drawn.
        play: rolls out chunks, here or in other processes.
        folder: keeps the episodes; those that it has are not rolled out again.
        on_progress: called before every batch with a title and how its finished episodes ended.

    Returns:
        Title -> episodes by task and sample, in the order of `lineups`.

    Raises:
        ConfigError: no task fits into the model's context.
        RunFolderError: the folder cannot be written, or has other episodes.
    """
    done: dict[str, list[Trajectory]] = {lineup.title: [] for lineup in lineups}
    if folder:
        folder.expect(list(done), tasks, sampling.samples)
    for lineup in sorted(lineups, key=lambda lineup: not lineup.adapters):
        episodes = done[lineup.title]

        # Bound as defaults, because the loop gives these names other values later.
        def on_batch(
            verdicts: Verdicts, title: str = lineup.title, before: list[Trajectory] = episodes
        ) -> None:
            on_progress(title, [*(episode.success for episode in before), *verdicts])

        every = chunks(tasks, sampling)
        # Before the first chunk is rolled out: an incomplete one is cut off the log, which only
        # grows from then on.
        kept = [folder.take(lineup.title, *chunk) if folder else [] for chunk in every]
        missing = [
            chunk for chunk, trajectories in zip(every, kept, strict=True) if not trajectories
        ]
        played = iter(play(lineup, missing, on_batch))
        for trajectories in kept:
            if not trajectories:
                trajectories += next(played)
                if folder:
                    folder.add(lineup.title, trajectories)
            episodes += trajectories
        # Shows what was known already, where nothing was left to roll out.
        on_batch([])
        check_room(episodes, sampling.max_new_tokens)
    return {title: by_task(episodes, tasks) for title, episodes in done.items()}


def by_task(episodes: Sequence[Trajectory], tasks: Sequence[Task]) -> list[Trajectory]:
    """All samples of the first task, then those of the second, ..."""
    places = {task.id: place for place, task in enumerate(tasks)}
    return sorted(episodes, key=lambda each: (places[each.task.id], each.episode))
