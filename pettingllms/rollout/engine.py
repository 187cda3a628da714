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
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from pettingllms.rollout.episode import AnyEnv, Branch, Episode, records, score
from pettingllms.rollout.shapes import Move, Plan, RolloutShape
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.samplers.base import Sampler
from pettingllms.types import Candidate, Completion, Group, Request, Task, Unplayed, role_of


class Routed(NamedTuple):
    """Who answers a prompt."""

    policy: str
    notes: Mapping[str, Any] = MappingProxyType({})
    """More entries for the info of the record."""


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
        cohort: episodes of a batch with a sampler that is not continuous; None for all.
        longest: policy -> most tokens of a prompt; an episode whose next prompt has more ends there,
            and its record says so (`Trajectory.overlong`). One that is missing has no bound: a model
            behind an API has a context of its own, which its server knows.
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
    cohort: int | None = None
    longest: Mapping[str, int] = field(default_factory=dict)
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
                    with self.timed("sample"):
                        self._sample(taken)
                    scoring += taken
                if ready:
                    ready += self._scored(scoring)
                else:  # nothing to sample until some cohort is scored
                    with self.timed("score"):
                        ready += self._scored(scoring, wait_for_one=True)
        finally:
            # The pool outlives this call: after an error nothing of it may be left to run there.
            for cohort in scoring:
                for decision in cohort.pending:
                    decision.scored.cancel()
        return records(episodes)

    def _cohorts(self, episodes: Sequence[Episode]) -> list[_Cohort]:
        # A cohort of one may proceed by itself; see the module docstring.
        size = 1 if self.sampler.continuous else self.cohort or max(1, len(episodes))
        cut = [_Cohort(episodes[start : start + size]) for start in range(0, len(episodes), size)]
        return [cohort for cohort in cut if cohort.live()]

    # ------------------------------------------------------------------------------ sampling

    def _sample(self, cohorts: Sequence[_Cohort]) -> None:
        """Samples for all live episodes in one batch a width, and starts scoring."""
        live: list[tuple[_Cohort, Episode]] = []
        prompts, requests, plans = list[str](), list[Request](), list[Plan]()
        noted = list[Mapping[str, Any]]()
        for cohort, episode in [(c, episode) for c in cohorts for episode in c.live()]:
            prompt = episode.prompt()
            policy, notes = self._policy_for(episode)
            seed = episode.seed(*self.seed, "sampling")
            ids = self.sampler.prompt_ids(self._reader(episode.agent or "", policy), prompt)
            if len(ids) > (longest := self.longest.get(policy, len(ids))):
                episode.end_overlong(len(ids), longest)
                continue
            live.append((cohort, episode))
            prompts.append(prompt)
            requests.append(Request(policy, ids, seed))
            plans.append(self._plan(episode, policy))
            noted.append(notes)
        completions: list[list[Completion]] = [[] for _ in live]
        # Frozen policies get one completion while trained ones get K, and a call of the sampler has
        # one `n`.
        for n in sorted({plan.draw for plan in plans}):
            places = [i for i, plan in enumerate(plans) if plan.draw == n]
            answers = self.sampler.sample([requests[i] for i in places], n, **self.settings)
            for place, answer in zip(places, answers, strict=True):
                completions[place] = answer
        for (cohort, episode), prompt, request, plan, notes, sampled in zip(
            live, prompts, requests, plans, noted, completions, strict=True
        ):
            scored = self.pool.submit(score, episode, sampled)
            cohort.pending.append(_Pending(episode, prompt, request, plan, notes, scored))

    def _policy_for(self, episode: Episode) -> Routed:
        found = self._given_to(episode.agent or "")
        return Routed(found) if self.route is None else self.route(episode, found)

    def _given_to(self, agent: str) -> str:
        given = self.policies or {}
        return given.get(agent) or given.get(role_of(agent)) or self.sampler.policy_for(agent)

    def _plan(self, episode: Episode, policy: str) -> Plan:
        if episode.probe or (self.wide is not None and policy not in self.wide):
            return Plan()
        agents = len(episode.env.possible_agents)
        return self.shape.plan(Move(episode.task.id, episode.agent or "", episode.depth, agents))

    def _reader(self, agent: str, policy: str) -> str:
        """As whom `policy` reads a prompt: where roles exchange policies, its own role."""
        own = (each for each in self.policies or {} if self.sampler.policy_for(each) == policy)
        return agent if self.sampler.policy_for(agent) == policy else next(own, agent)

    # ------------------------------------------------------------------------------- scoring

    def _scored(self, scoring: list[_Cohort], *, wait_for_one: bool = False) -> list[_Cohort]:
        """Takes the cohorts whose scores have all arrived, and advances their episodes."""
        while not (done := [cohort for cohort in scoring if cohort.scored()]) and wait_for_one:
            open_ones = [d.scored for cohort in scoring for d in cohort.pending]
            wait([future for future in open_ones if not future.done()], return_when=FIRST_COMPLETED)
        for cohort in done:
            for decision in cohort.pending:
                cohort.add(self._advance(decision))
            cohort.pending.clear()
            scoring.remove(cohort)
        return [cohort for cohort in done if cohort.live()]

    def _advance(self, decision: _Pending) -> list[Episode]:
        """Records the candidates of a decision, and continues the episode from one of them.

        Returns the forks or probes that continue from the others, if there are any.
        """
        episode, branches = decision.episode, decision.scored.result()
        rewards = [branch.result.reward for branch in branches]
        # Ties are common; always taking the first would bias which states are seen next. The
        # draw has its own seed, so that it does not shift what is sampled.
        best = [k for k, reward in enumerate(rewards) if reward == max(rewards)]
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
                info={**branch.result.info, **decision.notes},
            )
            for k, branch in enumerate(branches)
        )
        request = decision.request
        key = episode.key(request.prompt_ids)
        group = Group(key, request.policy, decision.prompt, request.prompt_ids, candidates)
        others: list[Episode] = []
        if decision.plan.probes:
            others = episode.look_ahead(branches, chosen)
        elif decision.plan.forks:
            others = episode.fork(branches, chosen)
        episode.advance(group, branches[chosen])
        if self.shape.bootstraps:
            episode.end_cut(dict(self._unplayed(episode.cut())))
        return others

    def _unplayed(self, prompts: Mapping[str, str]) -> Iterator[tuple[str, Unplayed]]:
        for agent, prompt in prompts.items():
            policy = self._given_to(agent)
            ids = self.sampler.prompt_ids(self._reader(agent, policy), prompt)
            if len(ids) <= self.longest.get(policy, len(ids)):
                yield agent, Unplayed(policy, ids)


class _Pending(NamedTuple):
    """A decision whose completions are being scored."""

    episode: Episode
    prompt: str
    request: Request
    plan: Plan
    notes: Mapping[str, Any]
    scored: Future[list[Branch]]


class _Cohort:
    """Episodes that share batches: all of them advance, then the next batch is sampled."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        self._episodes = list(episodes)
        self.pending: list[_Pending] = []

    def add(self, episodes: Sequence[Episode]) -> None:
        """Lets further episodes share its batches."""
        self._episodes += episodes

    def live(self) -> list[Episode]:
        """Episodes that are not over."""
        return [episode for episode in self._episodes if not episode.over]

    def scored(self) -> bool:
        """Returns whether all pending decisions have their scores."""
        return all(decision.scored.done() for decision in self.pending)
