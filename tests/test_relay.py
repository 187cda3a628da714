"""The program of two look-ups: what each role is asked, what its replies earn, and that splits share nothing."""

from __future__ import annotations

import pytest

from benchmarks import relay
from pettingllms.envs import program_v0

TASKS = relay.tasks()


@pytest.fixture
def task(tmp_path):
    """The program as an environment after reset, and its only task."""
    relay.write(TASKS[:1], tmp_path / "tasks.jsonl")
    env = program_v0.env(
        relay.solve,
        roles="searcher,answerer",
        dataset=tmp_path / "tasks.jsonl",
        pays="early",
        settle=0.0,
    )
    env.reset(seed=0)
    return env, TASKS[0]


def paid(env, text):
    """The local and the team's reward of a reply."""
    agent = env.agent_selection
    env.step(text)
    return env.infos[agent]["local_reward"], env.infos[agent]["team_reward"]


def test_the_tool_opens_the_register_for_the_person_that_the_searcher_names(task):
    env, row = task
    boss = dict(row["works_for"])[row["worker"]]
    city = row["register"][boss]
    assert city not in env.observe("searcher_0")["text"]
    assert paid(env, f"{row['worker']} works for {boss}.") == (1.0, 0.0)
    assert env.observe("answerer_0")["text"] == f"Say the last word of: {boss} lives in {city}"
    assert paid(env, city) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("found", "said", "rewards"),
    [
        ("It is {boss}", "{city} town", ((0.5, 0.0), (0.3, 0.0))),
        ("{other}", "{city}", ((0.0, 0.0), (0.0, 1.0))),
        ("{boss} and {other}", "{boss} lives in {city}", ((0.0, 0.0), (0.0, 0.0))),
    ],
)
def test_parts_earn_less_and_lists_nothing(task, found, said, rewards):
    env, row = task
    boss = dict(row["works_for"])[row["worker"]]
    other = next(person for person in row["register"] if person != boss)
    names = {"boss": boss, "other": other, "city": row["register"][boss]}
    assert paid(env, found.format(**names)) == rewards[0]
    assert paid(env, said.format(**names)) == rewards[1]


def test_people_and_cities_of_a_split_are_in_no_other():
    names: dict[str, set[str]] = {split: set() for split in relay.COUNTS}
    for row in TASKS:
        names[row["split"]] |= {name for pair in row["works_for"] for name in pair}
        names[row["split"]] |= set(row["register"].values())
    assert not names["train"] & names["test"]
    assert not names["train"] & names["val"]
    assert not names["val"] & names["test"]
