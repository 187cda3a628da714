"""The one loop of training, evaluation and benchmarks: prompt -> completions -> rewards -> next decision.

An episode proceeds as soon as its own completions are sampled and scored. How prompts form a batch
depends on the sampler:

- One that batches requests itself (`continuous`, a vLLM server) is given whatever is ready.
- Any other rounds differently in batches of other shapes. Its batches follow from the tasks alone:
  episodes are divided into fixed cohorts, and a cohort is sampled as one batch when all of its
  episodes are scored. Cohorts overtake each other freely.

Nothing random depends on the order in which things become ready: every decision draws from the
number that `Episode.seed` gives it. Scoring runs on threads beside the sampling.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from pettingllms.errors import ConfigError
from pettingllms.names import role_of
from pettingllms.rollout.episode import AnyEnv, Branch, Episode, records, score
from pettingllms.rollout.shapes import Move, Plan, RolloutShape
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.samplers.base import DEFAULT_TOKENS_PER_BATCH, Memory, Sampler
from pettingllms.types import Candidate, Completion, Conversation, Group, Request, Task, Unplayed

BLANK = Completion((), (), (), "", truncated=False, version=0)
"""The reply of an agent that a copy of an episode does without."""


class Routed(NamedTuple):
    """The policy that answers a prompt."""

    policy: str
    notes: Mapping[str, Any] = MappingProxyType({})
    """More entries for the info of the record."""
    reply: str | None = None
    """The reply of a policy that is no model; None where the sampler is asked."""


@dataclass(frozen=True)
class RolloutEngine:
    """Rolls out episodes of an environment.

    Args:
        env: a template, copied for every episode and never stepped itself.
        sampler: answers prompts.
        pool: scores completions at the same time.
        shape: what is sampled of each task.
        settings: of `Sampler.sample`: max_new_tokens, temperature, ...
        seed: prefix of the seed of every decision, e.g. (seed of the run, step).
        policies: agent or role -> policy, the agent's own first; one that is missing has the policy
            that the sampler gives it.
        wide: policies whose decisions `shape` plans; None for all. Others get one completion.
        exchanged: opened around the sampling for half of the prompts, drawn by their seeds.
        cohort: episodes of a batch with a sampler that is not continuous; None for all.
        longest: policy -> most tokens of a prompt; an episode whose next prompt has more ends there,
            and its record says so (`Trajectory.overlong`). One that is missing has no bound: a model
            behind an API has a context of its own, which its server knows.
        room: tokens of conversations that a cohort's memories may have, of a sampler that is not continuous.
        route: the policy that answers in place of the one that the agent has, and what the record says
            of that.
        timed: opened around "sample", and around "score" while nothing else is left to do.
    """

    env: AnyEnv
    sampler: Sampler
    pool: Executor
    shape: RolloutShape
    settings: Mapping[str, Any]
    seed: tuple[object, ...]
    policies: Mapping[str, str] | None = None
    wide: Collection[str] | None = None
    exchanged: Callable[[], contextlib.AbstractContextManager[Any]] | None = None
    cohort: int | None = None
    longest: Mapping[str, int] = field(default_factory=dict)
    room: int = DEFAULT_TOKENS_PER_BATCH
    route: Callable[[Episode, str], Routed] | None = None
    timed: Callable[[str], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    def run(
        self,
        tasks: Sequence[Task],
        on_batch: Callable[[Sequence[Episode]], None] = lambda _finished: None,
    ) -> list[Trajectory]:
        """Rolls out all episodes of the tasks to their ends; their records in the order of the tasks.

        Args:
            tasks: each is rolled out `shape.episodes` times.
            on_batch: called before every batch with the finished episodes; raises to stop the rollout.

        Raises:
            NonFiniteError: the environment paid a reward that is not finite.
            SandboxUnavailable, SamplerUnavailable: the sandbox or the sampler failed.
        """
        first, count = self.shape.first, self.shape.episodes
        episodes = [Episode(self.env, t, first + n) for t in tasks for n in range(count)]
        ready = deque(self._cohorts(episodes))
        scoring: list[_Cohort] = []
        # Sampling runs on this thread and scoring on the pool's, so that the sandbox works on one
        # cohort while the sampler works on the next.
        try:
            while ready or scoring:
                if ready:
                    on_batch([episode for episode in episodes if episode.over])
                    merged = len(ready) if self.sampler.continuous else 1
                    taken = [ready.popleft() for _ in range(merged)]
                    scoring += taken
                    with self.timed("sample"):
                        self._sample(taken)
                if ready:
                    done = self._scored(scoring)
                else:  # nothing to sample until some cohort is scored
                    with self.timed("score"):
                        done = self._scored(scoring, wait_for_one=True)
                for cohort in done:
                    cohort.advance(self._advance)
                ready += [cohort for cohort in done if cohort.live()]
        finally:
            # The pool outlives this call: after an error nothing of it may be left to run there.
            for cohort in scoring:
                for decision in cohort.pending:
                    for scored in decision.scored.values():
                        scored.cancel()
        return records(episodes)

    def _cohorts(self, episodes: Sequence[Episode]) -> list[_Cohort]:
        # A cohort of one may proceed by itself; see the module docstring.
        size = 1 if self.sampler.continuous else self.cohort or max(1, len(episodes))
        starts = range(0, len(episodes), size)
        cut = [_Cohort(episodes[start : start + size]) for start in starts]
        return [cohort for cohort in cut if cohort.live()]

    # ------------------------------------------------------------------------------ sampling

    def _sample(self, cohorts: Sequence[_Cohort]) -> None:
        """Samples for all live episodes in one batch a width, and starts scoring."""
        asked: list[_Pending] = []
        for cohort in cohorts:
            cohort.make_room(self.room)
        for cohort, episode in [(c, episode) for c in cohorts for episode in c.live()]:
            if episode.agent in episode.blanked:
                cohort.pending.append(_Pending(episode, "", Request("", (), 0), Plan(), {}))
                cohort.pending[-1].complete([BLANK], self.pool)
                continue
            prompt = episode.prompt()
            policy_name = self._given_to(episode.agent or "")
            routed = Routed(policy_name) if self.route is None else self.route(episode, policy_name)
            policy, notes, reply = routed
            seed = episode.seed(*self.seed, "sampling")
            ids = self.sampler.prompt_ids(self._reader(episode.agent or "", policy), prompt)
            if len(ids) > (longest := self.longest.get(policy, len(ids))):
                episode.end_overlong(len(ids), longest)
                continue
            memory = None
            if isinstance(prompt, Conversation) and not self.sampler.continuous and reply is None:
                memory = cohort.memory(episode, len(ids))
            request = Request(policy, ids, seed, memory)
            plan = self._plan(episode, policy)
            # By the prompt: completions of one are compared, and have to be of the same weights.
            other = self.exchanged is not None and random.Random(f"{seed} other").random() < 0.5
            decision = _Pending(episode, prompt, request, plan, notes, other)
            cohort.pending.append(decision)
            if reply is None:
                asked.append(decision)
            else:
                decision.complete([replace(BLANK, prompt_ids=ids, text=reply)], self.pool)
        # Frozen policies get one completion while trained ones get K, and a call of the sampler has
        # one `n`.
        for other, n in sorted({(d.other, d.plan.draw) for d in asked}):
            with self.exchanged() if other and self.exchanged else contextlib.nullcontext():
                self._ask([d for d in asked if (d.other, d.plan.draw) == (other, n)], n)

    def _ask(self, asked: Sequence[_Pending], n: int) -> None:
        """Samples for decisions, and has completions scored as they come, where the sampler tells."""

        def early(place: int, _number: int, completion: Completion) -> None:
            asked[place].score([completion], self.pool)

        more: dict[str, Any] = {}
        # Reward functions are given the completions of a prompt together.
        together = bool(getattr(self.env.unwrapped, "reward_funcs", ()))
        if getattr(self.sampler, "early", False) and not together:
            more["on_completion"] = early
        requests = [decision.request for decision in asked]
        answers = self.sampler.sample(requests, n, **self.settings, **more)
        for decision, completions in zip(asked, answers, strict=True):
            decision.complete(completions, self.pool)

    def _given_to(self, agent: str) -> str:
        policies = self.policies or {}
        return policies.get(agent) or policies.get(role_of(agent)) or self.sampler.policy_for(agent)

    def _plan(self, episode: Episode, policy: str) -> Plan:
        if episode.probe or (self.wide is not None and policy not in self.wide):
            # A policy that does not learn has nothing to compare, and a probe only shows one
            # continuation.
            return Plan()
        agents, blanked = len(episode.env.possible_agents), len(episode.blanked)
        move = Move(episode.task.id, episode.agent or "", episode.depth, agents, blanked)
        plan = self.shape.plan(move)
        return Plan(blanks=plan.blanks) if blanked else plan

    def _reader(self, agent: str, policy: str) -> str:
        """Returns the role as which `policy` reads a prompt: its own where roles swap policies."""
        roles = (role for role in self.policies or {} if self.sampler.policy_for(role) == policy)
        return agent if self.sampler.policy_for(agent) == policy else next(roles, agent)

    # ------------------------------------------------------------------------------- scoring

    def _scored(self, scoring: list[_Cohort], *, wait_for_one: bool = False) -> list[_Cohort]:
        """Takes the cohorts whose scores have all arrived."""
        while not (done := [cohort for cohort in scoring if cohort.scored()]) and wait_for_one:
            jobs = {job for cohort in scoring for d in cohort.pending for job in d.scored.values()}
            wait([job for job in jobs if not job.done()], return_when=FIRST_COMPLETED)
        for cohort in done:
            scoring.remove(cohort)
        return done

    def _advance(self, decision: _Pending) -> list[Episode]:
        """Records the candidates of a decision, and continues the episode from one of them.

        Returns the forks or probes that continue from the others, if there are any.
        """
        episode, branches = decision.episode, decision.branches()
        rewards = [branch.result.reward for branch in branches]
        # Ties are common; always taking the first would bias which states are seen next. The
        # draw has its own seed, so that it does not shift what is sampled.
        best = [k for k, reward in enumerate(rewards) if reward == max(rewards)]
        # With forks every candidate is continued from, and this record takes the first.
        branch = "first" if decision.plan.forks else self.shape.branch
        among = {"best": best, "sample": range(len(rewards)), "first": [0]}[branch]
        chosen = random.Random(episode.seed(*self.seed, "branching")).choice(among)
        candidates = tuple(
            Candidate(
                branch.completion,
                branch.result.reward,
                branch.result.team,
                branch.result.local,
                chosen=k == chosen or decision.plan.forks,
                info={**branch.result.info, **branch.completion.notes, **decision.notes},
            )
            for k, branch in enumerate(branches)
        )
        request = decision.request
        key = episode.key(request.prompt_ids)
        group = Group(
            key,
            request.policy,
            decision.prompt,
            request.prompt_ids,
            candidates,
            privileged=episode.privileged(),
        )
        others = [episode.without()] if decision.plan.blanks and key.turn == 0 else []
        # Before `advance`, while the episode still stands at the decision that the others leave
        # from.
        if decision.plan.probes:
            others += episode.branching.look_ahead(branches, chosen)
        elif decision.plan.forks:
            others += episode.branching.fork(branches, chosen)
        episode.advance(group, branches[chosen])
        if self.shape.bootstraps:
            episode.unplayed = dict(self._unplayed(episode.cut()))
        return others

    def _unplayed(self, prompts: Mapping[str, str]) -> Iterator[tuple[str, Unplayed]]:
        for agent, prompt in prompts.items():
            policy = self._given_to(agent)
            ids = self.sampler.prompt_ids(self._reader(agent, policy), prompt)
            # A prompt without room would have ended the episode, so that nothing is to be expected
            # after it.
            if len(ids) <= self.longest.get(policy, len(ids)):
                yield agent, Unplayed(policy, ids)


@dataclass(eq=False)
class _Pending:
    """A decision whose completions are being sampled and scored."""

    episode: Episode
    prompt: str
    request: Request
    plan: Plan
    notes: Mapping[str, Any]
    other: bool = False
    completions: Sequence[Completion] = ()
    scored: dict[str, Future[list[Branch]]] = field(default_factory=dict)
    """Text -> the job that scores it; equal completions are scored once."""

    def score(self, completions: Sequence[Completion], pool: Executor) -> None:
        """Has those scored, as one job, whose texts are new."""
        new = {c.text: c for c in completions if c.text not in self.scored}
        if new:
            self.scored |= dict.fromkeys(new, pool.submit(score, self.episode, [*new.values()]))

    def complete(self, completions: Sequence[Completion], pool: Executor) -> None:
        """Takes all completions, and has the rest of them scored."""
        self.completions = completions
        self.score(completions, pool)

    def branches(self) -> list[Branch]:
        """The completions and what they led to; raises what scoring raised."""
        scored = {
            branch.completion.text: branch
            for job in {self.scored[c.text] for c in self.completions}
            for branch in job.result()
        }
        # Equal texts may have been sampled as other tokens, which the record and the loss need.
        return [scored[c.text]._replace(completion=c) for c in self.completions]


class _Cohort:
    """Episodes that share batches: all of them advance, then the next batch is sampled."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        self._episodes = list(episodes)
        self.pending: list[_Pending] = []
        self._room = 0

    def make_room(self, room: int) -> None:
        """Forgets the conversations of finished episodes; `room` is of all tokens that may be remembered."""
        for episode in self._episodes:
            if episode.over:
                episode.memories.clear()
        kept = [memory for episode in self._episodes for memory in episode.memories.values()]
        # Copies of an episode share what they remember until they go on.
        sizes = {id(memory.states): len(memory.prompt_ids) for memory in kept if memory.states}
        self._room = room - sum(sizes.values())

    def memory(self, episode: Episode, tokens: int) -> Memory | None:
        """What is remembered of the agent's conversation; None where `tokens` more have no room."""
        agent = episode.agent or ""
        if tokens > self._room:
            episode.memories.pop(agent, None)
            return None
        self._room -= tokens
        return episode.memories[agent]

    def advance(self, one: Callable[[_Pending], Sequence[Episode]]) -> None:
        """Takes all pending decisions.

        Args:
            one: takes a decision; returns further episodes, which share the batches from now on.
        """
        for decision in self.pending:
            # Forks and probes join the cohort, so that a batch still follows from the tasks alone.
            self._episodes += one(decision)
        self.pending.clear()

    def live(self) -> list[Episode]:
        """Episodes that are not over."""
        return [episode for episode in self._episodes if not episode.over]

    def scored(self) -> bool:
        """Returns whether all pending decisions have their scores."""
        return all(job.done() for decision in self.pending for job in decision.scored.values())


def longest_prompts(sampler: Sampler, max_new_tokens: int) -> dict[str, int]:
    """Policy -> the most tokens that its prompts may have; without those that have no known bound.

    Raises:
        ConfigError: there is no room for any prompt of a policy.
    """
    # Samplers without a model, such as a scripted one, have no context that could be exceeded.
    contexts: Mapping[str, int] = getattr(sampler, "contexts", {})
    for policy, context in contexts.items():
        if context <= max_new_tokens:
            whose = f", which plays {policy}" if len(set(contexts.values())) > 1 else ""
            raise ConfigError(
                f"completions of {max_new_tokens} tokens leave no room for a prompt in the model's "
                f"context of {context}{whose}; lower --max-completion-length to {context // 2} or less"
            )
    return {policy: context - max_new_tokens for policy, context in contexts.items()}
