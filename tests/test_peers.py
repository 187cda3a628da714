"""The comparison with TRL's trainer: what is read off the curves, and what both are given."""

from __future__ import annotations

from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest

from benchmarks import peers, peers_report, peers_sweep
from pettingllms.assembly import build_policies, make_env
from pettingllms.rollout.episode import tasks_of_step


def run(pace: float, success: float) -> dict:
    """A run whose success rises by a tenth a step, to `success`."""
    curve = [{"tokens": 0, "cpu_seconds": 0.0, "seconds": 0.0, "success": None, "validation": 0.0}]
    curve += [
        {
            "tokens": 100 * step,
            "cpu_seconds": pace * step,
            "seconds": 2 * pace * step,
            "success": min(success, step / 10),
            "validation": min(success, step / 10),
        }
        for step in range(1, 11)
    ]
    parts = {f"{phase}_cpu_seconds": 10 * pace for phase in ("sampling", "updating", "training")}
    return {
        "tokens": 1000,
        "start_mib": 500.0,
        "peak_mib": 700.0,
        "test": [success, 0.0, 1.0],
        "curve": curve,
        **parts,
    }


def results(trl_success: float = 0.9) -> dict:
    runs = {"trl-0": run(3.0, trl_success), "ours-0": run(1.0, 0.9), "ours-1": run(2.0, 0.9)}
    return {"config": {"level": 0.8}, "runs": runs}


def test_a_level_is_reached_where_held_out_success_or_the_moving_mean_first_is_there():
    one = run(1.0, 0.9)
    assert peers_report.reached(one, 0.8, "held-out")["tokens"] == 800
    assert (
        peers_report.reached(one, 0.75, "training")["tokens"] == 900
    )  # the mean of 0.7, 0.8 and 0.9
    assert peers_report.reached(one, 0.95, "held-out") == {}
    assert peers_report.reached(one, 0.95, "training") == {}


def test_the_table_has_mean_range_and_ratio_of_every_measure():
    header, rows = peers_report.tables(results())
    assert all(len(row) == len(header) for row in rows)
    cells = {row[0]: row[1:] for row in rows}
    assert cells["CPU-seconds to held-out success 0.8"] == ["24 [24, 24]", "12 [8, 16]", "0.50"]
    assert cells["tokens per CPU-second of updating"] == ["33 [33, 33]", "75 [50, 100]", "2.25"]


def test_a_level_that_a_seed_never_reaches_has_no_mean_and_no_ratio():
    cells = {row[0]: row[1:] for row in peers_report.tables(results(trl_success=0.5))[1]}
    text, _, ratio = cells["tokens to training success 0.8"]
    assert (text, ratio) == ("reached by 0 of 1 seeds", "")


def test_the_sentence_is_computed_from_the_numbers():
    assert "needs 24 CPU-seconds and ATGRPOTrainer 12, 2.0 times" in peers_report.sentence(
        results()
    )


@pytest.mark.parametrize("env", ["coding", "plan_path"])
def test_trl_is_given_the_tasks_and_the_rewards_of_our_trainer(env):
    sizes = {"tokens": 1000, "max_steps": 2, "tokens_per_batch": 1024}
    options = Namespace(env=env, **sizes, rate=None, trl_rate=None)
    config = peers.settings("trl-3", options)
    game: Any = make_env(config, "train")
    (role,) = {agent.removesuffix("_0") for agent in game.possible_agents}
    policies = build_policies(config, {role: role})
    seeds, prompts = peers.prompts_of(config, game)
    tasks = tasks_of_step(game, env, 1, config.tasks_per_step, 3)
    assert seeds[config.tasks_per_step :] == [task.seed for task in tasks]

    k, last = config.num_generations, dict[str, float]()
    texts = ["nothing"] * (2 * k)
    ids = [policies.chat.tokenizer(text)["input_ids"] for text in texts]
    with ThreadPoolExecutor(1) as pool:
        reward = peers.reward_of(config, game, policies, pool, last)
        paid = reward(ids, [seed for seed in islice(seeds, 2) for _ in range(k)])
    alone = game.clone()
    alone.reset(seed=seeds[0])
    agent = alone.agent_selection
    assert alone.observe(agent)["text"] == prompts[0][0]["content"]
    alone.step("nothing")
    assert paid[:k] == [alone.rewards[agent]] * k
    assert last == {"tokens": sum(map(len, ids)), "success": 0.0}


def test_the_best_settings_are_those_that_are_first_at_the_level():
    rows = {
        "trl, rate 0.005": {"cpu_seconds": 16.0, "tokens": 20_000, "test": 0.9},
        "trl, 64 rows": {"cpu_seconds": 12.0, "tokens": 20_000, "test": 0.9},
        "trl, rate 0.01": {"cpu_seconds": None, "tokens": None, "test": 0.5},
        "trl, paged": {"failed": "RuntimeError: no"},
        "ours, rate 0.005": {"cpu_seconds": 5.0, "tokens": 15_000, "test": 0.9},
    }
    best = [peers_sweep.best(rows, name) for name in ("trl", "ours")]
    assert best == ["trl, 64 rows", "ours, rate 0.005"]
    cells = {row[0]: row[1] for row in peers_sweep.table({"rows": rows, "best": best})[1]}
    assert cells["trl, 64 rows (best)"] == "12"
    assert cells["trl, rate 0.01"] == "not reached"
    assert "RuntimeError" in cells["trl, paged"]


def test_each_trainer_has_its_own_learning_rate():
    sizes = {"env": "coding", "tokens": 1000, "max_steps": 2, "tokens_per_batch": 1024}
    options = Namespace(**sizes, rate=1e-3, trl_rate=2e-3)
    assert peers.settings("ours-0", options).learning_rate == 1e-3
    assert peers.settings("trl-0", options).learning_rate == 2e-3
