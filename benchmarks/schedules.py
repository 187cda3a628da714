"""How long a step of an 8B model takes on 8 GPUs under different schedules: a simulation, nothing measured.

    python -m benchmarks.scale simulate

Assumed: two roles, each with an adapter on one base; in every turn one acts after the other; a prompt
gets 8 replies; a task ends after a turn with probability 0.35, at the latest after 4. A prompt has 800
tokens, and 300 more with every decision before it. A reply's length is log-normal (median 350 tokens, sigma
0.8, at most 2,048); a quarter of the variance is the task's own, so that hard tasks have long replies. An
engine is one GPU that decodes up to 256 replies at a time, a token of each in 8 ms and 0.03 ms a reply, and
none while it computes a prompt, once for its replies, in 0.032 ms a token. A reply is scored in a log-normal
time (median 0.4 s, sigma 1, at most 10 s) on one of 64 CPUs. A learner takes 0.12 ms a token of replies and,
once, of their prompt, divided by its GPUs; two learners may share one GPU, half of it each. An optimizer step
with the new adapters' way to the engines takes 1 s. All schedules are given the same replies, and each the
division of the GPUs that suits it best. As many tasks are played at a time as there are workers. A prompt goes
to the engine that has fewest replies in lock step, and to one at random otherwise, because workers know nothing
of each other.

| schedule | what waits for what |
|---|---|
| `lock step, pools apart` | half of the engines for each role; all tasks wait for the last reply, then for the last score, of every decision; updates follow |
| `event-driven, one pool` | a task waits for its own replies alone, each of which is scored once it is there; updates follow the last task |
| `gradients streamed by shard` | the same, and a task's gradients are added once it has ended |
| `gradients streamed by decision` | the same, and a decision's gradients are added once it was scored |
| `the same, replies scored together` | the replies of a prompt are scored once all of them are there |
| `one step off` | the next step is played during an update; gradients are added at the end of their step |
| `one step off, gradients streamed by shard` | both |

`the longest task alone` is no schedule: its replies one after the other on idle engines, and an optimizer
step, which no on-policy schedule can beat.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

GPUS, ROLES, K, TURNS, ENDS = 8, 2, 8, 4, 0.35
PROMPT, GROWTH = 800, 300
MEDIAN, SIGMA, OF_TASK, LONGEST = 350, 0.8, 0.25, 2048
TOKEN_SECONDS, REPLY_SECONDS, AT_ONCE = 0.008, 0.00003, 256
PROMPT_SECONDS = 0.000032
SCORE_MEDIAN, SCORE_SIGMA, SCORE_LONGEST, CPUS = 0.4, 1.0, 10.0, 64
UPDATE_SECONDS, SYNC_SECONDS = 0.00012, 1.0
STEPS = 6
"""Simulated one after the other; the first and the last are not counted."""


@dataclass(frozen=True)
class Decision:
    """The replies to one prompt."""

    role: int
    prompt: int
    """Tokens of it."""
    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    """Seconds to score each."""


Steps = Sequence[Sequence[Sequence[Decision]]]
"""Step -> task -> decision."""


def load(tasks: int, seed: int) -> Steps:
    """What is to be sampled and scored."""
    chance = random.Random(seed)

    def decision(role: int, depth: int, hard: float) -> Decision:
        sigma = SIGMA * (1 - OF_TASK) ** 0.5
        lengths = [MEDIAN * hard * chance.lognormvariate(0, sigma) for _ in range(K)]
        scores = [SCORE_MEDIAN * chance.lognormvariate(0, SCORE_SIGMA) for _ in range(K)]
        return Decision(
            role,
            PROMPT + GROWTH * depth,
            tuple(min(LONGEST, int(length) + 1) for length in lengths),
            tuple(min(SCORE_LONGEST, seconds) for seconds in scores),
        )

    def task() -> list[Decision]:
        turns, hard = 1, chance.lognormvariate(0, SIGMA * OF_TASK**0.5)
        while turns < TURNS and chance.random() > ENDS:
            turns += 1
        return [decision(depth % ROLES, depth, hard) for depth in range(turns * ROLES)]

    return [[task() for _ in range(tasks)] for _ in range(STEPS)]


class Events:
    """What happens at which second."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, what: Callable[[], object]) -> None:
        """Has something happen later."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._numbers), what))

    def run(self) -> None:
        """Goes on until nothing is left."""
        while self._heap:
            self.now, _, what = heapq.heappop(self._heap)
            what()


class Engine:
    """Decodes replies side by side, each the slower the more there are."""

    def __init__(self, events: Events) -> None:
        self._events, self._numbers = events, itertools.count()
        self._decoded, self._seen, self._plan = 0.0, 0.0, 0
        self._prompts_until = 0.0
        """Second until which it computes prompts, and decodes nothing."""
        self._running: list[tuple[float, int, Callable[[], object]]] = []
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()

    @property
    def size(self) -> int:
        """Replies that it has."""
        return len(self._running) + len(self._waiting)

    def give(self, prompt: int, replies: Sequence[tuple[int, Callable[[], object]]]) -> None:
        """Computes a prompt and samples its replies: tokens of each, and what to do when it is there."""
        self._advance()
        self._prompts_until = max(self._prompts_until, self._events.now) + prompt * PROMPT_SECONDS
        self._waiting.extend(replies)
        self._go_on()

    def _pace(self) -> float:
        return TOKEN_SECONDS + REPLY_SECONDS * len(self._running)

    def _advance(self) -> None:
        since = max(self._seen, self._prompts_until)
        self._decoded += max(0.0, self._events.now - since) / self._pace()
        self._seen = self._events.now

    def _go_on(self) -> None:
        self._advance()
        over = []
        while self._running and self._running[0][0] <= self._decoded + 1e-6:
            over.append(heapq.heappop(self._running)[2])
        while self._waiting and len(self._running) < AT_ONCE:
            tokens, done = self._waiting.popleft()
            heapq.heappush(self._running, (self._decoded + tokens, next(self._numbers), done))
        self._plan += 1
        if self._running:
            busy = max(0.0, self._prompts_until - self._events.now)
            left = (self._running[0][0] - self._decoded) * self._pace()
            self._events.after(busy + max(0.0, left), partial(self._wake, self._plan))
        for done in over:
            done()

    def _wake(self, plan: int) -> None:
        if plan == self._plan:  # nothing has come in between
            self._go_on()


class Servers:
    """Some that do one job at a time each: CPUs, or the GPUs of a learner."""

    def __init__(self, events: Events, count: int) -> None:
        self._events, self._free = events, [0.0] * count

    def give(self, seconds: float, done: Callable[[], object]) -> None:
        """Does a job after those before it."""
        end = max(self._events.now, heapq.heappop(self._free)) + seconds
        heapq.heappush(self._free, end)
        self._events.after(end - self._events.now, done)


class Run:
    """Some steps under one schedule.

    Args:
        steps: the load.
        engines: GPUs that sample; half of them for each role if `apart`.
        learner: GPUs of each policy's learner, whole or with a half.
        workers: tasks that are played at a time; None plays all of a step.
        apart, lock_step, streamed, by_decision, together, ahead: the schedule.
    """

    def __init__(
        self,
        steps: Steps,
        engines: int,
        learner: float,
        workers: int | None = None,
        *,
        apart: bool = False,
        lock_step: bool = False,
        streamed: bool = False,
        by_decision: bool = False,
        together: bool = False,
        ahead: bool = False,
    ) -> None:
        self.events = Events()
        self.steps, self.learner = steps, learner
        self.lock_step, self.streamed, self.ahead = lock_step, streamed, ahead
        self.by_decision, self.together = by_decision, together
        self._chance = random.Random(0)
        pool = [Engine(self.events) for _ in range(engines)]
        self.engines = [pool[role::ROLES] if apart else pool for role in range(ROLES)]
        self.cpus = Servers(self.events, CPUS)
        self.learners = [Servers(self.events, 1) for _ in range(ROLES)]
        self.workers, self.queue = workers, deque[tuple[int, Sequence[Decision]]]()
        self.updated: list[float] = []
        """Second at which the update of each step was done."""
        self.playing = [len(step) for step in steps]
        self.owed = [[0] * ROLES for _ in steps]
        """Step -> role -> tokens whose gradients are not being computed yet."""
        self.closing = False
        """Whether the learners have all of their present step."""

    def seconds(self) -> float:
        """Of a step, once the first is over."""
        self._begin(0)
        if self.ahead:
            self._begin(1)
        self.events.run()
        return (self.updated[-2] - self.updated[0]) / (len(self.steps) - 2)

    def _begin(self, step: int) -> None:
        if step >= len(self.steps):
            return
        tasks = self.steps[step]
        if self.lock_step:
            self._together(step, 0)
        else:
            self.queue.extend((step, task) for task in tasks)
            for _ in tasks[: self.workers]:
                self._next()

    def _next(self) -> None:
        if self.queue:
            self._play(*self.queue.popleft(), 0)

    def _play(self, step: int, task: Sequence[Decision], at: int) -> None:
        if at == len(task):
            self._ended(step, task)
            return
        if at and self.by_decision:
            self._owe(step, task[at - 1])
            self._learn()
        self._decide(task[at], partial(self._play, step, task, at + 1))

    def _owe(self, step: int, decision: Decision) -> None:
        self.owed[step][decision.role] += decision.prompt + sum(decision.tokens)

    def _decide(self, decision: Decision, then: Callable[[], object]) -> None:
        scored = _countdown(K, then)

        callbacks = [partial(self.cpus.give, seconds, scored) for seconds in decision.scores]

        def score() -> None:
            for one in callbacks:
                one()

        self._sample(decision, [_countdown(K, score)] * K if self.together else callbacks)

    def _sample(self, decision: Decision, then: Sequence[Callable[[], object]]) -> None:
        """Has a decision's replies sampled, all on one engine."""
        engines = self.engines[decision.role]
        engine = self._chance.choice(engines)
        if self.lock_step:
            engine = min(engines, key=lambda candidate: candidate.size)
        engine.give(decision.prompt, list(zip(decision.tokens, then, strict=True)))

    def _together(self, step: int, at: int) -> None:
        """One decision of every task: all are sampled, then all are scored."""
        live = [task[at] for task in self.steps[step] if at < len(task)]
        if not live:
            for task in self.steps[step]:
                self._ended(step, task)
            return
        scored = _countdown(len(live) * K, partial(self._together, step, at + 1))

        def score() -> None:
            for decision in live:
                for seconds in decision.scores:
                    self.cpus.give(seconds, scored)

        sampled = _countdown(len(live) * K, score)
        for decision in live:
            self._sample(decision, [sampled] * K)

    def _ended(self, step: int, task: Sequence[Decision]) -> None:
        self.playing[step] -= 1
        for decision in task[-1:] if self.by_decision else task:
            self._owe(step, decision)
        self._learn()
        if not self.lock_step:
            self._next()

    def _learn(self) -> None:
        """Gives learners what the present step has for them; earlier steps are done."""
        step = len(self.updated)
        if self.closing or step == len(self.steps):
            return
        last = not self.playing[step]
        if not (last or self.streamed):
            return
        self.closing = last
        both = _countdown(ROLES, self._step_done)
        for role, tokens in enumerate(self.owed[step]):
            self.owed[step][role] = 0
            done = both if last else lambda: None
            self.learners[role].give(tokens * UPDATE_SECONDS / self.learner, done)

    def _step_done(self) -> None:
        self.events.after(SYNC_SECONDS, self._published)

    def _published(self) -> None:
        self.updated.append(self.events.now)
        self.closing = False
        self._begin(len(self.updated) + self.ahead)
        self._learn()


def _countdown(count: int, then: Callable[[], object]) -> Callable[[], None]:
    """Something to call `count` times; the last time it calls `then`."""
    left = count

    def once() -> None:
        nonlocal left
        left -= 1
        if not left:
            then()

    return once


SCHEDULES: dict[str, dict[str, bool]] = {
    "lock step, pools apart": {"apart": True, "lock_step": True},
    "event-driven, one pool": {},
    "gradients streamed by shard": {"streamed": True},
    "gradients streamed by decision": {"streamed": True, "by_decision": True},
    "the same, replies scored together": {"streamed": True, "by_decision": True, "together": True},
    "one step off": {"ahead": True},
    "one step off, gradients streamed by shard": {"ahead": True, "streamed": True},
}


def simulate(tasks: int, workers: int | None = None, seeds: int = 8) -> list[dict[str, Any]]:
    """Seconds of a step under each schedule, a mean over some loads; workers as in `Run`."""
    loads = [load(tasks, seed) for seed in range(seeds)]
    rows: list[dict[str, Any]] = []
    for name, options in SCHEDULES.items():
        times = {
            learner: sum(
                Run(steps, GPUS - int(ROLES * learner), learner, workers, **options).seconds()
                for steps in loads
            )
            / seeds
            for learner in (gpus / ROLES for gpus in range(ROLES, GPUS - 1))
        }
        best = min(times, key=lambda learner: times[learner])
        first = rows[0]["seconds"] if rows else times[best]
        row = {"schedule": name, "tasks": tasks, "seconds": round(times[best], 1)}
        rows.append(row | {"gpus_a_learner": best, "gain": round(first / times[best], 2)})
    alone = sum(map(longest_alone, loads)) / seeds
    row = {"schedule": "the longest task alone", "tasks": tasks, "seconds": round(alone, 1)}
    return [*rows, row | {"gain": round(rows[0]["seconds"] / alone, 2)}]


def longest_alone(steps: Steps) -> float:
    """Seconds of a step if nothing but its longest task took time; a mean over the steps counted."""
    pace = TOKEN_SECONDS + REPLY_SECONDS * K

    def alone(task: Sequence[Decision]) -> float:
        prompts = sum(decision.prompt for decision in task) * PROMPT_SECONDS
        return prompts + sum(
            pace * max(decision.tokens) + max(decision.scores) for decision in task
        )

    return SYNC_SECONDS + sum(max(map(alone, step)) for step in steps[1:-1]) / (len(steps) - 2)
