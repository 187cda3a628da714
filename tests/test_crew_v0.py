"""A conductor and its pool: who acts, what calls cost, and what earns nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo.test.api_test import api_test

from benchmarks.constant_answers import blind_baseline
from benchmarks.crew import FixedOrder
from benchmarks.environments.crew_v0 import CONDUCTOR, JOBS, MOST_CHARS, parse_lead
from benchmarks.priming.crew import fact_text, right_call
from pettingllms.data.splits import SPLITS
from pettingllms.envs import check_env, make
from pettingllms.envs.base import next_agent
from pettingllms.envs.parsing import ParseError
from pettingllms.errors import ConfigError
from pettingllms.names import role_of
from tests.adversaries import conducts
from tests.test_registry import REPLIES, TEXT_WARNINGS

POOL = ("clerk", "courier", "vet")
TAGGED = {"full": "<{0}>{1}</{0}>", "small": "{1}", "compact": "{1}"}


def call(env, role, person):
    mark = " " if env.prompt == "compact" else ": "
    return TAGGED[env.prompt].format("call", f"{role}{mark}{person}")


def answer(env, word):
    mark = " " if env.prompt == "compact" else ": "
    return f"<answer>{word}</answer>" if env.prompt == "full" else f"answer{mark}{word}"


def report(env):
    errand = env._state.errands[-1]
    return TAGGED[env.prompt].format("result", fact_text(env._state, env._state.fact(errand)))


def well(env, extra=0):
    """The right reply of the agent whose turn it is, after so many useless calls."""
    if env.agent_selection != CONDUCTOR:
        return report(env)
    if len(env._state.errands) < extra:
        return call(env, "clerk", "nobody")
    needed = right_call(env._state)
    return call(env, *needed) if needed else answer(env, env._state.value(env._state.chain[-1]))


def episode(env, reply_of, seed=0):
    """Plays an episode; returns team rewards, local rewards, the order, and success."""
    env.reset(seed=seed)
    team, local, order = 0.0, dict.fromkeys(env.possible_agents, 0.0), []
    while not (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
        agent = env.agent_selection
        order.append(role_of(agent))
        env.step(reply_of(env))
        team += env.infos[agent]["team_reward"]
        local[agent] += env.infos[agent]["local_reward"]
    return team, local, order, env.infos[CONDUCTOR]["success"]


def with_lookups(env, number):
    """The first seed whose task takes so many look-ups."""
    for seed in range(10):
        env.reset(seed=seed)
        if env._state.missing == number:
            return seed
    raise AssertionError(number)


@pytest.mark.filterwarnings(*TEXT_WARNINGS)
@pytest.mark.parametrize("arguments", [{"workers": 2}, {"workers": 4, "prompt": "small"}, {"prompt": "compact"}])  # fmt: skip
def test_every_pool_and_prompt_keeps_the_promises_of_pettingzoo_and_of_training(arguments):
    api_test(make("crew", **arguments), num_cycles=20)
    replies = ["clerk Anna", "courier: Anna", "answer Rome", "answer: Rome", "Anna boss Karl", *REPLIES["crew"]]  # fmt: skip
    check_env(make("crew", **arguments), episodes=2, replies=replies)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("prompt", TAGGED)
def test_a_team_that_plays_well_earns_success_less_the_price_of_the_calls_it_needs(prompt, split):
    env = make("crew", prompt=prompt, split=split, workers=4, call_price=0.1)
    lengths = []
    for seed in range(30):
        team, local, order, success = episode(env, well, seed)
        needed = env._state.missing
        assert success
        assert team == pytest.approx(1 - 0.1 * needed)
        assert sum(local.values()) == pytest.approx(0.5 * (needed > 0))
        assert order.count("conductor") == needed + 1
        lengths.append(needed)
    assert {lengths.count(needed) for needed in range(3)} == {10}


def test_each_useless_call_costs_its_price_and_earns_nothing():
    env = make("crew", call_price=0.07)
    for seed in range(9):
        team, local, order, _ = episode(env, well, seed)
        more_team, more_local, more_order, success = episode(
            env, lambda env: well(env, extra=2), seed
        )
        assert success
        assert len(more_order) == len(order) + 4
        assert more_team == pytest.approx(team - 2 * 0.07)
        assert more_local == local


def test_a_fact_is_paid_once_however_often_it_is_asked_for():
    env = make("crew", lookups=(2, 2))

    def again(env):
        turns = env._state.turns
        return call(env, *(right_call(env._state) or ("", ""))) if turns < 4 else answer(env, "x")

    # The worker never tells it.
    _, local, order, _ = episode(
        env, lambda env: again(env) if env.agent_selection == CONDUCTOR else "no", 0
    )
    assert order.count("conductor") == 5
    assert local[CONDUCTOR] == pytest.approx(0.25)


def test_workers_that_were_never_called_terminate_with_the_episode():
    env = make("crew")
    env.reset(seed=with_lookups(env, 0))
    env.step(well(env))
    assert env.terminations == dict.fromkeys(env.possible_agents, True)
    assert next_agent(env) is None
    assert env.agents == []
    assert [record.agent for record in env.transcript] == [CONDUCTOR]


def test_a_called_worker_sees_its_notes_and_its_task_and_not_the_question():
    env = make("crew")
    env.reset(seed=with_lookups(env, 1))
    question = env.observe(CONDUCTOR)["text"].partition("Question: ")[2].partition("\n")[0]
    env.step("<call>vet: tell me of Zoe</call>")
    assert env.agent_selection == "vet_0"
    shown = env.observe("vet_0")["text"]
    assert "tell me of Zoe" in shown
    assert question not in shown
    own, others = env._state.facts["vet"], env._state.facts["courier"]
    assert all(f" has a {animal}." in shown for animal in own.values())
    assert not any(city in shown for city in others.values())
    env.step("<result>quite so</result>")
    assert "The vet says of tell me of Zoe: quite so" in env.observe(CONDUCTOR)["text"]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "no <call>...</call> or <answer>...</answer>"),
        ("<call>baker: Anna</call>", "there is no worker 'baker'; the crew is clerk, courier, vet"),
        ("<call>answer: Rome</call>", "there is no worker 'answer'"),
        ("<call>Anna</call>", "there is no worker 'anna'"),
        ("<call>clerk:</call>", "1 to 200 characters"),
        ("<answer> the </answer>", "1 to 200 characters"),
        (f"<call>clerk: {'a' * 201}</call>", "1 to 200 characters"),
        ("<think><answer>Rome</answer>", "the thought is not closed"),
    ],
)
def test_a_malformed_call_says_why_and_earns_less_than_any_that_can_be_read(reply, reason):
    env = make("crew")
    env.reset(seed=0)
    env.step("<call>vet: nobody</call>")
    useless = env.rewards[CONDUCTOR]
    env.reset(seed=0)
    env.step(reply)
    info = env.infos[CONDUCTOR]
    assert reason in info["parse_error"]
    assert info["team_reward"] == -0.05
    assert env.rewards[CONDUCTOR] < useless
    assert env.agent_selection == CONDUCTOR
    assert f"could not be read: {info['parse_error']}" in env.observe(CONDUCTOR)["text"]
    env.step("<call>vet: nobody</call>")
    env.step("<result>none</result>")
    assert "could not be read" not in env.observe(CONDUCTOR)["text"]


def test_a_malformed_report_earns_less_than_a_wrong_one():
    env, local = make("crew"), {}
    for reply in ("<result>Zoe works for Zack</result>", "", "<result></result>"):
        env.reset(seed=0)
        env.step(call(env, "clerk", env._state.chain[0][1]))
        env.step(reply)
        local[reply] = env.infos["clerk_0"]["local_reward"]
        assert (env.infos["clerk_0"]["parse_error"] is None) == ("Zoe" in reply)
    wrong, *malformed = local.values()
    assert wrong == -0.5
    assert all(value < wrong for value in malformed)


def test_a_report_is_right_if_it_names_what_the_note_says_and_nothing_else():
    env = make("crew")
    env.reset(seed=0)
    person = env._state.chain[0][1]
    boss = env._state.facts["clerk"][person]
    third = next(p for p in env._state.facts["clerk"] if p not in (person, boss))
    for said, right in (
        (f"{person} works for {boss}.", True),
        (boss.lower(), True),
        (f"{boss} works for {person}", False),
        (f"{boss}, {third}", False),
        (f"{third} or {boss}", False),
        ("nobody", False),
    ):
        env.reset(seed=0)
        env.step(f"<call>clerk: Who is the boss of {person}?</call>")
        env.step(f"<result>{said}</result>")
        assert env.infos["clerk_0"]["right"] is right, said
        assert env.infos["clerk_0"]["expert"] == right


@pytest.mark.parametrize("turns", [1, 2, 4])
def test_calls_are_bounded_and_an_answer_is_due_in_the_last_turn(turns):
    env = make("crew", max_turns=turns)

    def always(env):
        return (
            "<call>vet: Anna</call>" if env.agent_selection == CONDUCTOR else "<result>?</result>"
        )

    _, _, order, success = episode(env, always)
    assert order == ["conductor", "vet"] * (turns - 1) + ["conductor"]
    assert env.infos[CONDUCTOR]["parse_error"] == "no call is left; an answer is due"
    assert all(env.truncations.values())
    assert not success
    assert len(env._state.errands) == turns - 1


def test_a_copy_in_the_middle_of_a_call_is_exact():
    env = make("crew")
    env.reset(seed=with_lookups(env, 2))
    env.step(well(env))
    twin = env.clone()
    other = make("crew")
    other.restore(env.snapshot())
    for copy in (env, twin, other):
        while next_agent(copy) is not None:
            copy.step(well(copy))
        assert copy.infos == env.infos
        assert copy.transcript == env.transcript
    assert env._state.told == 2


def test_neither_a_constant_nor_a_note_answers_what_has_to_be_asked_for():
    env = make("crew", split="test", lookups=(1, 2))
    assert blind_baseline(env, episodes=300)[0].success <= 0.1
    for word in ("first", "last"):
        solved = 0
        for seed in range(300):
            env.reset(seed=seed)
            notes = [env._state.value(fact) for fact in env._state.notes]
            env.step(f"<answer>{notes[0 if word == 'first' else -1]}</answer>")
            solved += env.infos[CONDUCTOR]["success"]
        assert solved <= 0.15 * 300


def test_splits_share_no_words():
    for job in JOBS.values():
        words = [word for split in SPLITS for word in job.values[split]]
        assert len(words) == len(set(words))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 1}, "workers must be a whole number from 2 to 4, got 1"),
        ({"workers": 3.0}, "got 3.0"),
        ({"lookups": (1,)}, "lookups must be fewest and most"),
        ({"lookups": 1}, "lookups must be fewest and most"),
        ({"lookups": None}, "lookups must be fewest and most"),
        ({"workers": True}, "got True"),
        ({"call_price": -0.1}, "call_price must be from 0 to 1, got -0.1"),
        ({"call_price": float("nan")}, "call_price"),
        ({"lookups": (2, 1)}, "lookups must be fewest and most"),
        ({"lookups": (0, 3)}, "lookups must be fewest and most"),
        ({"lookup": (0, 3)}, "did you mean 'lookups'"),
    ],
)
def test_an_unusable_argument_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        make("crew", **arguments)


words = st.text(st.characters(exclude_categories=()), max_size=30)


@given(
    before=words,
    role=st.sampled_from(POOL),
    task=st.from_regex(r"[a-zA-Z]{4,12}( [a-zA-Z]{4,12}){0,3}", fullmatch=True),
)
def test_a_call_is_read_whatever_comes_before_it(before, role, task):
    said = " ".join(task.split())
    full = parse_lead(f"{before}<call> {role.upper()}: {task}</call>", "full", POOL)
    assert full == (role, said)
    lines = before.replace("\n", " ")
    assert parse_lead(f"{lines}\n{role} {task}", "compact", POOL) == (role, said)
    assert parse_lead(f"{role}: {task}\n{before}", "small", POOL) == (role, said)
    assert parse_lead(f"{before}<answer>{task}</answer>", "full", POOL) == ("answer", said)


@given(
    st.lists(
        st.sampled_from(["<call>", "</call>", "<answer>", "</answer>", "clerk", ":", " ", "\n", "answer", "x"])
        | words,
        max_size=12,
    ).map("".join),
    st.sampled_from(list(TAGGED)),
)  # fmt: skip
def test_any_reply_is_a_bounded_call_of_the_pool_an_answer_or_an_error(text, prompt):
    reply = parse_lead(text, prompt, POOL)
    if not isinstance(reply, ParseError):
        assert reply.kind in (*POOL, "answer")
        assert 0 < len(reply.said) <= MOST_CHARS


def test_the_fixed_order_calls_every_worker_once_and_then_takes_the_answer():
    env = FixedOrder(max_turns=4)

    def reply(env):
        if env.agent_selection != CONDUCTOR:
            return report(env)
        turns = env._state.turns
        return call(env, *(right_call(env._state) or ("vet", "Anna"))) if turns < 3 else well(env)

    for seed in range(30):
        team, _, order, success = episode(env, reply, seed)
        assert success
        assert order == ["conductor", "clerk", "conductor", "courier", "conductor", "vet", "conductor"]  # fmt: skip
        assert team == pytest.approx(1 - 3 * 0.05)
    env.reset(seed=0)
    env.step("<answer>Rome</answer>")
    assert env.infos[CONDUCTOR]["parse_error"] == "the next reply goes to clerk"


def test_honest_players_of_the_adversaries_succeed():
    env = make("crew")
    env.reset(seed=2)
    while next_agent(env) is not None:
        env.step(conducts(env, env.agent_selection))
    assert env._state.answer == env._state.value(env._state.chain[-1])
