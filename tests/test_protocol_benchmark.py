"""The benchmark of the signaling game: what its base is shown, what it measures, and that it trains."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch

from benchmarks import protocol, protocol_report
from benchmarks.priming.prime import precision
from benchmarks.priming.protocol import GOALS, Demos
from pettingllms.models import EMBEDDED

CODE = [[1.0 if word == door else 0.0 for word in range(4)] for door in range(4)]
NOTHING = [[0.25] * 4 for _ in range(4)]


def test_no_demonstration_of_the_game_itself_says_what_a_word_means():
    rng, demos = random.Random(0), Demos(4, 4)
    seen: dict[str, Counter[str]] = {}
    for _ in range(30_000):
        prompt, reply = demos.draw(rng)
        if prompt.split()[0] in protocol.ROLES:
            shown, word = reply.split()
            assert prompt.split()[-1] == shown
            seen.setdefault(prompt, Counter())[word] += 1
    assert len(seen) == 9  # four doors, four words, and nothing
    for counts in seen.values():
        total = sum(counts.values())
        assert all(abs(count / total - 0.25) < 0.12 for count in counts.values()), counts


@pytest.mark.parametrize(
    ("able", "dtype"),
    [
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"avx512_bf16": False, "avx2": True}, torch.float32),
    ],
)
def test_a_base_is_primed_in_bfloat16_only_where_the_cpu_has_instructions_for_it(
    able, dtype, monkeypatch
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    with precision():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def test_codes_of_one_number_do_not_fit_together():
    matches = []
    for seed in range(20):
        demos = Demos(4, 4, seed)
        for scout, mover in zip(demos.scout, demos.mover, strict=True):
            matches.append(sum(mover[scout[door]] == door for door in scout) / 4)
    assert sum(matches) / len(matches) == pytest.approx(0.25, abs=0.03)


def test_success_and_information_of_known_tables():
    assert protocol.exact(CODE, CODE) == 1.0
    assert protocol.exact(NOTHING, CODE) == protocol.exact(CODE, NOTHING) == 0.25
    assert protocol.information(CODE) == pytest.approx(2.0)
    assert protocol.information(NOTHING) == pytest.approx(0.0)
    pooled = [CODE[0], CODE[0], CODE[1], CODE[1]]
    assert protocol.information(pooled) == pytest.approx(1.0)


def test_teams_of_other_seeds_are_all_pairs_but_their_own():
    turned = [CODE[(door + 1) % 4] for door in range(4)]
    back = [CODE[(word - 1) % 4] for word in range(4)]
    runs = [{"final": {"scout": CODE, "mover": CODE}}, {"final": {"scout": turned, "mover": back}}]
    assert [protocol.exact(run["final"]["scout"], run["final"]["mover"]) for run in runs] == [1, 1]
    assert protocol_report.exchanged(runs) == [0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["at_grpo", "look_ahead", "grpo", "gigpo", "rae"])
def test_every_arm_trains_and_is_measured(arm, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(protocol, "TASKS", 20)
    settings = {**protocol.ARMS[arm], "learning_rate": 1e-3, "tasks_per_step": 2, "max_tokens": 30}
    run = protocol.train(EMBEDDED, 0, settings)
    assert run["tokens"] >= 30
    assert run["steps"] >= 1
    assert [len(run[how]) for how in ("tasks", "greedy", "shuffled")] == [protocol.TASKS] * 3
    assert 0.0 <= run["final"]["success"] < 1.0
    assert len(run["final"]["scout"]) == GOALS


def test_shuffled_words_are_those_of_other_episodes(monkeypatch):
    """A team that knows a code solves everything, and by chance where it hears of other episodes."""

    def replies(policies, role, env, before, *, greedy):
        del policies, greedy
        code = dict(zip(env.doors, env.words, strict=False))
        meant = {word: door for door, word in code.items()}
        words = []
        for seed, steps in enumerate(before):
            env.reset(seed=seed)
            words.append(code[env._state.goal] if role == "scout" else meant[steps[0]])
        return words

    monkeypatch.setattr(protocol, "_replies", replies)
    nobody: Any = None
    assert protocol.played(nobody) == "1" * protocol.TASKS
    shuffled = protocol.played(nobody, shuffled=True)
    assert 0.4 < shuffled.count("1") / protocol.TASKS < 0.6


def test_rates_come_from_the_tuning_seeds_and_the_results_from_others():
    assert not set(protocol.TUNING) & set(protocol.SEEDS)
    runs = {protocol.key(*cell): {"tasks": "0" * 10} for cell in protocol.cells({})}
    assert {int(name.split("/")[2]) for name in runs} == set(protocol.TUNING)
    for seed in protocol.TUNING:
        runs[protocol.key("grpo", protocol.RATES[1], seed)] = {"tasks": "1" * 10}
    assert protocol.chosen_rate(runs, "grpo") == protocol.RATES[1]
    assert protocol.chosen_rate(runs, "rae") == protocol.RATES[0]  # the lowest of equals
    due = [cell for cell in protocol.cells(runs) if protocol.key(*cell) not in runs]
    assert {seed for _, _, seed, _ in due} == set(protocol.SEEDS)
    runs |= {protocol.key(*cell): {"tasks": "0" * 10} for cell in due}
    alone = [cell for cell in protocol.cells(runs) if protocol.key(*cell) not in runs]
    assert {(arm, only) for arm, *_, only in alone} == {
        (protocol.CONTROLLED, only) for only in protocol.ROLES
    }
