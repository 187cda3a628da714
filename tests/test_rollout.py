"""The rollout loop: order changes nothing, every reward reaches its decision, records survive."""

from __future__ import annotations

import itertools
import json
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pettingllms.assembly import with_rewards
from pettingllms.envs.base import TextEnv
from pettingllms.envs.records import Outcome
from pettingllms.errors import NonFiniteError
from pettingllms.rollout.engine import RolloutEngine
from pettingllms.rollout.episode import reset_seed, tasks_of_step
from pettingllms.rollout.shapes import LookAheadTree, RolloutShape, Tree
from pettingllms.rollout.trajectory import Trajectory, in_order, with_advantages
from pettingllms.samplers.base import OnCompletion
from pettingllms.samplers.scripted import ScriptedSampler
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.method import Method
from pettingllms.trainers.metrics import generated_tokens
from pettingllms.types import Completion, Request, Task
from tests import letters_env, tic_tac_toe_env
from tests.processes import eventually

TASKS = [Task(f"t:{number}", number) for number in range(5)]
Answer = Callable[[str, int], str]


class Recording(ScriptedSampler):
    """Notes the size of every batch, and gives completions a log-probability of -0.75."""

    def __init__(self, answer: Answer, *, continuous: bool = False) -> None:
        super().__init__(lambda _policy, text, seed: answer(text, seed), continuous=continuous)
        self.batches: list[int] = []

    def sample(
        self, requests: Sequence[Request], n: int, **settings: Any
    ) -> list[list[Completion]]:
        self.batches.append(len(requests))
        return [
            [replace(one, logprobs=(-0.75, *one.logprobs[1:])) for one in candidates]
            for candidates in super().sample(requests, n, **settings)
        ]


def letters(_prompt: str, seed: int) -> str:
    return "abc"[seed % 3] * (1 + seed % 4)


def play(
    env: Any, sampler: Recording, shape: RolloutShape, tasks: Sequence[Task] = TASKS, **options: Any
) -> list[Trajectory]:
    with ThreadPoolExecutor(4) as pool:
        arguments = {"settings": {"max_new_tokens": 8}, "seed": (7, 0), **options}
        return RolloutEngine(env, sampler, pool, shape=shape, **arguments).run(tasks)


class Slow(letters_env.raw_env):
    """Takes a time over each completion that has nothing to do with anything."""

    def _act(self, state: Any, agent: str, text: str) -> Any:
        time.sleep(zlib.crc32(f"{time.perf_counter_ns()}".encode()) % 7 / 1000)
        return super()._act(state, agent, text)


@pytest.mark.parametrize("shape", [Tree(width=3), Tree(width=3, branch="sample"), RolloutShape(4)])
def test_records_do_not_depend_on_what_is_ready_first_or_how_batches_are_formed(
    shape: RolloutShape,
) -> None:
    expected = play(letters_env.raw_env(max_turns=3), Recording(letters), shape)
    for cohort in (1, 2, None):
        assert play(Slow(max_turns=3), Recording(letters), shape, cohort=cohort) == expected
    ready = Recording(letters, continuous=True)
    assert play(Slow(max_turns=3), ready, shape) == expected
    assert len(set(ready.batches)) > 1
    texts = [g.chosen.completion.text for trajectory in expected for g in trajectory.groups]
    assert len(set(texts)) > 2


class Telling(Recording):
    """Tells each completion before the last one is there, and waits until it is scored."""

    early = True

    def __init__(self, scored: set[str]) -> None:
        super().__init__(letters)
        self.scored = scored

    def sample(
        self,
        requests: Sequence[Request],
        n: int,
        on_completion: OnCompletion | None = None,
        **settings: Any,
    ) -> list[list[Completion]]:
        assert on_completion is not None
        completions = super().sample(requests, n, **settings)
        for place, candidates in enumerate(completions):
            # An engine that is lost has told completions that do not count.
            on_completion(place, 1, replace(candidates[0], text="never"))
            for k, candidate in enumerate(candidates[:-1]):
                on_completion(place, k, candidate)
                wanted = f"{bytes(requests[place].prompt_ids).decode()}>{candidate.text}"
                assert eventually(partial(self.scored.__contains__, wanted))
        return completions


@pytest.mark.parametrize("shape", [Tree(width=3), LookAheadTree(width=3), RolloutShape(4)])
def test_completions_are_scored_while_others_of_their_prompt_are_sampled(
    shape: RolloutShape,
) -> None:
    scored: set[str] = set()

    class Noting(letters_env.raw_env):
        def _act(self, state: Any, agent: str, text: str) -> Any:
            scored.add(f"{self.observe(agent)['text']}>{text}")
            return super()._act(state, agent, text)

    expected = play(letters_env.raw_env(max_turns=2), Recording(letters), shape)
    assert play(Noting(max_turns=2), Telling(scored), shape) == expected


def test_reward_functions_are_given_the_completions_of_a_prompt_together() -> None:
    counts: list[int] = []

    def count(completions: Sequence[str], **_: Any) -> list[float]:
        counts.append(len(completions))
        return [float(len(completions))] * len(completions)

    class Early(Recording):
        early = True

    env = letters_env.raw_env(max_turns=2)
    sampler = Early(lambda _prompt, seed: str(seed)[-6:])
    expected = play(with_rewards(env, [count]), sampler, Tree(width=3))
    assert set(counts) == {3}
    assert {len(group.candidates) for trajectory in expected for group in trajectory.groups} == {3}


@pytest.mark.parametrize("options", [{"continuous": True}, {"cohort": 1}])
def test_an_episode_moves_on_while_another_is_still_being_scored(options: dict[str, Any]) -> None:
    far = threading.Event()

    class Waiting(letters_env.raw_env):
        def _act(self, state: Any, agent: str, text: str) -> Any:
            if self.task_seed == 0 and self.turn == 0:
                assert far.wait(20), "the other episodes never got to their second turn"
            elif self.task_seed == 1 and self.turn == 1:
                far.set()
            return super()._act(state, agent, text)

    continuous = options.pop("continuous", False)
    sampler = Recording(letters, continuous=continuous)
    trajectories = play(Waiting(max_turns=2), sampler, RolloutShape(), TASKS[:2], **options)
    assert [len(trajectory.groups) for trajectory in trajectories] == [4, 4]


def test_a_failure_while_scoring_ends_the_rollout() -> None:
    class Broken(letters_env.raw_env):
        def _act(self, state: Any, agent: str, text: str) -> Any:
            return replace(super()._act(state, agent, text), local=float("nan"))

    with pytest.raises(NonFiniteError, match="paid 'writer_0' a reward of nan"):
        play(Broken(), Recording(letters), RolloutShape())


def test_only_wide_policies_get_several_candidates_and_policies_replace_the_mapping() -> None:
    trajectories = play(
        letters_env.raw_env(max_turns=1),
        Recording(letters),
        Tree(width=3),
        wide=("writer",),
        policies={"reader": "other"},
    )
    for trajectory in trajectories:
        writer, reader = trajectory.groups
        assert (writer.policy, len(writer.candidates)) == ("writer", 3)
        assert (reader.policy, len(reader.candidates)) == ("other", 1)


# ----------------------------------------------------------------------------- late rewards


def moves(*order: int) -> Answer:
    """Plays these squares, one after another."""

    def answer(prompt: str, _seed: int) -> str:
        return str(order[sum(mark in "xo" for mark in prompt.split(": ")[1])])

    return answer


@pytest.mark.parametrize(
    ("order", "returns", "late"),
    [
        ((0, 3, 1, 4, 2), {"cross_1": 1.0, "nought_1": -1.0}, [0, 0, 0, -1, 0]),
        ((0, 3, 1, 4, 8, 5), {"cross_1": -1.0, "nought_1": 1.0}, [0, 0, 0, 0, -1, 0]),
        ((0, 1, 2, 4, 3, 5, 7, 6, 8), {"cross_1": 0.0, "nought_1": 0.0}, [0] * 9),
        ((0, 0), {"cross_1": 1.0, "nought_1": -1.0}, [1, 0]),
    ],
)
def test_what_a_player_is_paid_at_the_others_move_reaches_its_last_decision(
    order: tuple[int, ...], returns: dict[str, float], late: list[float]
) -> None:
    [trajectory] = play(tic_tac_toe_env.env(), Recording(moves(*order)), RolloutShape(), TASKS[:1])
    assert trajectory.returns == returns
    assert [group.late_reward for group in trajectory.groups] == late
    assert not trajectory.cooperative
    for group in trajectory.groups:
        assert group.episode_return == returns[group.key.agent]


def test_a_reward_before_the_first_decision_counts_for_the_return() -> None:
    [trajectory] = play(
        tic_tac_toe_env.env(), Recording(lambda *_: "no move"), RolloutShape(), TASKS[:1]
    )
    assert len(trajectory.groups) == 1
    assert trajectory.early == {"nought_1": 1.0}
    assert trajectory.returns == {"cross_1": -1.0, "nought_1": 1.0}


def test_a_team_shares_one_return() -> None:
    trajectories = play(letters_env.raw_env(max_turns=2), Recording(letters), Tree(width=2))
    for trajectory in trajectories:
        assert trajectory.cooperative
        total = sum(group.chosen.reward for group in trajectory.groups)
        assert [g.episode_return for g in trajectory.groups] == pytest.approx([total] * 4)
        assert sum(trajectory.returns.values()) == pytest.approx(total)


# --------------------------------------------------------------------------------- records


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from([Tree(width=2), RolloutShape(episodes=2)]))
def test_a_record_survives_its_line(seed: int, shape: RolloutShape) -> None:
    envs = (letters_env.raw_env(max_turns=2), tic_tac_toe_env.env())
    for env in envs:
        answer = (lambda _p, s: str(s % 10)) if env is envs[1] else letters
        played = play(env, Recording(answer), shape, [Task(f"t:{seed}", seed)])
        groups = in_order(played)
        values = [0.5 * n for n in range(sum(len(group.candidates) for group in groups))]
        for trajectory in with_advantages(played, groups, values):
            line = json.dumps(trajectory.row(step=3))
            row = json.loads(line)
            again = Trajectory.from_row(row)
            unsaid = {"logprob"}
            assert without(again.row(step=3), unsaid) == without(row, unsaid)
            assert again.returns == trajectory.returns
            assert again.success == trajectory.success
            assert row["decisions"][0]["candidates"][0]["logprob"] == -0.75


def without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: without(entry, names) for key, entry in value.items() if key not in names}
    return [without(entry, names) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format": 2}, ValueError),
        ({"decisions": [{}]}, KeyError),
        ({"decisions": None}, TypeError),
    ],
)
def test_a_line_of_something_else_is_refused(change: dict[str, Any], error: type) -> None:
    [played] = play(letters_env.raw_env(max_turns=1), Recording(letters), RolloutShape(), TASKS[:1])
    with pytest.raises(error):
        Trajectory.from_row(played.row() | change)


def test_the_folder_of_an_environment_changes_nothing_that_is_sampled():
    env, names = letters_env.raw_env(), ("program:/a/b/team.py:solve", "program:c/team.py:solve")
    one, other = (tasks_of_step(env, name, 0, 3, seed=1) for name in names)
    assert one == other
    assert one != tasks_of_step(env, "program:c/other.py:solve", 0, 3, seed=1)


def test_an_environment_that_takes_seeds_of_32_bits_gets_them():
    """`numpy.random.RandomState` refuses larger ones; tasks of runs with a seed have more bits."""
    env = tic_tac_toe_env.env()
    seeds = [task.seed for task in tasks_of_step(env, "t", 0, 100, seed=3)]
    assert min(seeds) >= 1 << 32
    fitting = {reset_seed(env, seed) for seed in seeds}
    assert len(fitting) == 100
    assert max(fitting) < 1 << 32
    assert [reset_seed(env, seed) for seed in range(5)] == [*range(5)]


class Told(letters_env.raw_env):
    """Three agents; the last one's step pays what the first one's text is worth, whatever it says."""

    def __init__(self, **kwargs: Any) -> None:
        TextEnv.__init__(self, roles=("writer", "clerk", "reader"), **{"max_turns": 1} | kwargs)

    def _act(self, state: Any, agent: str, text: str) -> Outcome:
        paid = float(state[1].count("a")) if agent == "reader_0" else 0.0
        return Outcome((*state, text), team=paid, local=0.0, success=False)


AHEAD = LookAheadTree(width=4, branch="sample")


def test_looking_ahead_finds_what_every_candidate_leads_to() -> None:
    for trajectory in play(Told(), Recording(letters), AHEAD):
        first, _, last = trajectory.groups
        worth = [float(c.completion.text.count("a")) for c in first.candidates]
        assert [c.later.reward for c in first.candidates if c.later] == worth
        assert {c.later.reward for c in last.candidates if c.later} <= {0.0}
        assert [c.reward for c in first.candidates] == [0.0] * 4


def test_a_look_ahead_tree_credits_the_first_agent_for_the_outcome_and_a_tree_does_not() -> None:
    trajectories = play(Told(), Recording(letters), AHEAD)
    firsts = [trajectory.groups[0] for trajectory in trajectories]
    tree, ahead = (
        Method.of(resolve(ATGRPOConfig(method=name))) for name in ("at_grpo", "look_ahead")
    )
    assert set(tree.advantages(firsts)) == {0.0}
    values = iter(ahead.advantages(firsts))
    for group in firsts:
        by_count = sorted((c.completion.text.count("a"), next(values)) for c in group.candidates)
        assert [value for _, value in by_count] == sorted(value for _, value in by_count)


def test_looking_ahead_changes_nothing_about_the_tree_itself() -> None:
    tree = Tree(width=4, branch="sample")
    plain = play(letters_env.raw_env(max_turns=3), Recording(letters), tree)
    ahead = play(letters_env.raw_env(max_turns=3), Recording(letters), AHEAD)
    bare = [
        replace(
            trajectory,
            groups=tuple(
                replace(g, candidates=tuple(replace(c, later=None) for c in g.candidates))
                for g in trajectory.groups
            ),
        )
        for trajectory in ahead
    ]
    assert bare == plain
    assert any(
        c.later and c.later.tokens
        for trajectory in ahead
        for g in trajectory.groups
        for c in g.candidates
    )


def test_looking_ahead_does_not_depend_on_how_batches_are_formed() -> None:
    expected = play(letters_env.raw_env(max_turns=3), Recording(letters), AHEAD)
    for cohort in (1, 2):
        env = Slow(max_turns=3)
        assert play(env, Recording(letters), AHEAD, cohort=cohort) == expected
    assert play(Slow(max_turns=3), Recording(letters, continuous=True), AHEAD) == expected


def test_tokens_of_looking_ahead_are_counted_once() -> None:
    sampled = 0

    def answer(prompt: str, seed: int) -> str:
        nonlocal sampled
        text = letters(prompt, seed)
        sampled += 1
        return text

    (trajectory,) = play(Told(), Recording(answer), AHEAD, TASKS[:1])
    drawn = sum(len(g.candidates) for g in trajectory.groups)
    probes = {(n, c.completion.text) for n, g in enumerate(trajectory.groups) for c in g.candidates}
    assert sampled > drawn
    assert len(probes) > 3
    groups = trajectory.groups
    tokens = sum(len(c.completion.token_ids) for g in groups for c in g.candidates)
    later = sum(c.later.tokens for g in groups for c in g.candidates if c.later)
    assert generated_tokens(groups) == tokens + later
    assert later >= sampled - drawn


def test_the_record_of_looking_ahead_survives_its_file() -> None:
    for trajectory in play(Told(), Recording(letters), AHEAD):
        again = Trajectory.from_row(json.loads(json.dumps(trajectory.row())))
        assert [[c.later for c in g.candidates] for g in again.groups] == [
            [c.later for c in g.candidates] for g in trajectory.groups
        ]


class Paying(tic_tac_toe_env.env):
    """Three players with a move each, all of which pay the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["a_1", "b_1", "c_1"]

    def step(self, action: str) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0
        self._clear_rewards()
        place = self.possible_agents.index(agent)
        self.rewards["a_1"] = 1 + place
        self.terminations = dict.fromkeys(self.agents, place == 2)
        self.agent_selection = self.possible_agents[(place + 1) % 3]
        self._accumulate_rewards()


def test_late_rewards_of_one_decision_add_up() -> None:
    [trajectory] = play(Paying(), Recording(lambda *_: "x"), RolloutShape(), TASKS[:1])
    assert [group.late_reward for group in trajectory.groups] == [5.0, 0.0, 0.0]
    assert trajectory.returns["a_1"] == 6.0


def test_what_a_reply_pays_the_others_is_a_mean_over_the_replies_as_well() -> None:
    """An outcome that is certain is worth the same, whichever reply the episode continued from."""
    numbers = itertools.count()
    replies = Recording(lambda *_: f"{next(numbers)}")
    [trajectory] = play(Paying(), replies, AHEAD, TASKS[:1])
    first, second, _ = trajectory.groups
    assert len({candidate.completion.text for candidate in second.candidates}) > 1
    worth = [candidate.later and candidate.later.reward for candidate in first.candidates]
    assert worth == [5.0] * AHEAD.width  # 2 by the second player's move, 3 by the third's


def test_a_late_reward_of_ones_own_is_part_of_what_followed() -> None:
    """In a game without a team reward, what followed a decision is its own agent's alone."""
    order = (0, 3, 1, 4, 2)  # the first player's third mark wins, and pays the second -1
    [trajectory] = play(tic_tac_toe_env.env(), Recording(moves(*order)), AHEAD, TASKS[:1])
    later = [group.chosen.later.reward for group in trajectory.groups if group.chosen.later]
    paid = [group.chosen.reward + group.late_reward for group in trajectory.groups]
    assert paid == [0.0, 0.0, 0.0, -1.0, 1.0]
    assert later == [1.0, -1.0, 1.0, -1.0, 0.0]
