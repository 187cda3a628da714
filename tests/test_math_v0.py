"""The math environment with the real sandbox: who sees what, who earns what, when it ends."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test.api_test import api_test
from pettingzoo.test.seed_test import seed_test

from pettingllms.data import arithmetic
from pettingllms.data.math import MathProblem
from pettingllms.envs import check_env, math_v0
from pettingllms.envs.math_text import MAX_ANSWER_CHARS, Reply, parse_reply
from pettingllms.envs.math_v0 import MathState
from pettingllms.envs.parsing import ParseError
from pettingllms.envs.team_env import FORMAT_PENALTY
from pettingllms.errors import ConfigError, SandboxUnavailable
from pettingllms.sandbox import open_sandbox
from tests.test_registry import TEXT_WARNINGS


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


@pytest.fixture
def play(sandbox):
    """An environment whose problem is given, reset to it."""

    def make(*answers, **options):
        env = math_v0.env(sandbox=sandbox, **options)
        env.reset(seed=0)
        env._state = MathState(MathProblem("What is it?", answers or ("9",), "p"))
        env._shown = {}
        return env

    return make


def code(program):
    return f"So:\n```python\n{program}\n```"


def say(value):
    return code(f"print({value})")


def box(answer):
    return rf"I think it is 5. \boxed{{{answer}}}"


def step(env, text):
    """Where the reply leaves its author: (the team's score, its own), and its info."""
    agent, before = env.agent_selection, env._state.scores
    env.step(text)
    info, after = env.infos[agent], env._state.scores
    earned = info["team_reward"], info["local_reward"]
    local = after.local[agent]
    assert env.rewards[agent] == env.alpha * earned[0] + earned[1]
    assert earned == (after.team - before.team, local - before.local.get(agent, 0.0))
    assert after.team == info["success"]
    return (after.team, local), info


# Rewards


@pytest.mark.parametrize(
    ("program", "local", "status"),
    [
        ("print(4 + 5)", 1.0, "ok"),
        ("print('working...')\nprint(9.0)", 1.0, "ok"),
        ("import fractions\nprint(fractions.Fraction(18, 2))", 1.0, "ok"),
        ("print(8)", 0.0, "ok"),
        ("print('the answer is 9')", 0.0, "ok"),
        ("x = 9", -1.0, "ok"),
        ("print()", -1.0, "ok"),
        ("print(9)\n1 / 0", -1.0, "error"),
        ("raise SystemExit(9)", -1.0, "error"),
        ("import sys\nsys.stderr.write('9')", -1.0, "ok"),
        ("print(9", -1.0, "error"),
        ("", -1.0, "ok"),
        ("print(input())", -1.0, "error"),
        ("print('9' * 100000)", -1.0, "ok"),
    ],
)
def test_a_tool_earns_what_its_program_prints(play, program, local, status):
    env = play()
    rewards, info = step(env, code(program))
    assert rewards == (0.0, local)
    assert info["statuses"] == [status]
    assert info["right"] == (local == 1.0)


@pytest.mark.parametrize(
    "reply", ["", "9", box(9), "```python\nprint(9)", "```text\nprint(9)\n```"]
)
def test_a_tool_without_a_program_earns_no_more_than_one_whose_program_fails(play, reply):
    rewards, info = step(play(), reply)
    assert rewards == (0.0, -1.0)
    assert "python" in info["parse_error"]


@pytest.mark.parametrize(
    ("reply", "rewards"),
    [
        (box("9"), (1.0, 1.0)),
        (box(r"\frac{18}{2}"), (1.0, 1.0)),
        (box(8) + box("9"), (1.0, 1.0)),
        (box("8"), (0.0, 0.0)),
        (box("error: 9"), (0.0, 0.0)),
        ("9", (0.0, -FORMAT_PENALTY)),
        (r"\boxed{9", (0.0, -FORMAT_PENALTY)),
        (box(" "), (0.0, -FORMAT_PENALTY)),
        (box("9" * (MAX_ANSWER_CHARS + 1)), (0.0, -FORMAT_PENALTY)),
        (say(9), (0.0, -FORMAT_PENALTY)),
    ],
)
def test_a_reasoner_earns_its_own_answer_and_the_teams(play, reply, rewards):
    env = play()
    env.step(say(1))
    scores, info = step(env, reply)
    assert scores == rewards
    assert (info["parse_error"] is not None) == (rewards[1] < 0)
    assert info["success"] == (rewards[0] == 1.0)


def test_the_tools_answer_is_not_the_teams(play):
    env = play()
    assert step(env, say(9))[0] == (0.0, 1.0)
    assert not env.infos["tool_0"]["success"]
    step(env, box(8))
    assert step(env, say(9))[0] == (0.0, 1.0)
    step(env, box(9))
    assert all(info["success"] for info in env.infos.values())


def test_team_reward_is_the_current_final_answer(play):
    env = play()
    step(env, say(8))
    assert step(env, box(9))[0] == (1.0, 1.0)
    assert step(env, say(8))[0] == (1.0, 0.0)  # the reasoner's answer still stands
    assert step(env, box(7))[0] == (0.0, 0.0)
    assert step(env, "?")[0] == (0.0, -1.0)
    assert step(env, "?")[0] == (0.0, -FORMAT_PENALTY)


def test_alpha_weighs_the_team_reward(play):
    for alpha in (0.0, 0.5, 3.0):
        env = play(alpha=alpha)
        env.step(say(1))
        env.step(box(9))
        assert env.rewards == {"tool_0": 0.0, "reasoner_0": alpha + 1.0}


def test_the_sparse_scheme_pays_the_team_only(play):
    env = play(rewards="sparse")
    assert step(env, code("1/0"))[0] == (0.0, 0.0)
    assert step(env, box(9))[0] == (1.0, 0.0)
    assert step(env, say(8))[0] == (1.0, 0.0)
    assert step(env, "?")[0] == (1.0, 0.0)


def test_the_same_replies_to_the_same_task_earn_the_same(sandbox):
    def episode():
        env = math_v0.env(sandbox=sandbox, max_turns=3)
        env.reset(seed=5)
        for text in (say("{*'abcdef'}"), box(1), code("1/0"), "?", say(3), box(4)):
            env.step(text)
        return env.transcript, env.infos, env.observe("tool_0")

    assert episode() == episode()


def test_several_answers_are_all_asked_for(play):
    for answer, right in (("1, 2", 1.0), ("2, 1", 1.0), ("1", 0.0), ("1, 2, 3", 0.0)):
        env = play("1", "2")
        assert "2 answers" in env.observe("reasoner_0")["text"]
        env.step(say(1))
        assert step(env, box(answer))[0] == (right, right)


@pytest.mark.parametrize(
    ("tool", "reasoner", "expected"),
    [
        (9, 9, (1.0, 1.0, 0.0)),
        (9, 8, (1.0, 0.0, 0.0)),
        (8, 9, (0.0, 0.0, 0.0)),
        (8, "8.0", (0.0, 0.0, 1.0)),
    ],
)
def test_the_infos_say_whether_the_reasoner_trusts_the_tool(play, tool, reasoner, expected):
    env = play()
    env.step(say(tool))
    _, info = step(env, box(reasoner))
    assert (info["tool_right"], info["follows_right"], info["follows_wrong"]) == expected


def test_a_failed_tool_is_followed_by_nobody(play):
    env = play()
    env.step(code("1/0"))
    _, info = step(env, box(9))
    assert (info["tool_right"], info["follows_right"], info["follows_wrong"]) == (0.0, 0.0, 0.0)


# The course of an episode


@pytest.mark.parametrize("answer", ["8", "9"])
def test_agreement_ends_the_episode_and_is_not_success(play, answer):
    env = play()
    env.step(say(answer))
    assert not any(env.terminations.values())
    env.step(box(f"{answer}.0"))
    assert all(env.terminations.values())
    assert not any(env.truncations.values())
    assert {info["success"] for info in env.infos.values()} == {answer == "9"}


def test_success_without_agreement_goes_on_and_can_be_lost(play):
    env = play()
    env.step(say(8))
    env.step(box(9))
    assert env.infos["reasoner_0"]["success"]
    assert not any(env.terminations.values())
    env.step(say(7))
    env.step(box(8))
    assert not env.infos["reasoner_0"]["success"]


@pytest.mark.parametrize("tool", ["no program", code("1/0"), code("pass")])
def test_without_an_answer_there_is_no_agreement(play, tool):
    env = play()
    env.step(tool)
    env.step("no answer")
    env.step(tool)
    env.step(box("None"))
    assert not any(env.terminations.values())


def test_an_earlier_answer_stands_where_a_reply_cannot_be_read(play):
    env = play()
    env.step(say(8))
    env.step(box(7))
    before = env._state
    env.step("nothing")
    assert env._state.messages is before.messages
    env.step(box(8))
    assert all(env.terminations.values())


def test_the_episode_is_cut_after_its_turns(play):
    env = play(max_turns=2)
    for text in (say(1), box(2), say(1), box(2)):
        assert not any(env.truncations.values())
        env.step(text)
    assert all(env.truncations.values())
    assert not any(env.terminations.values())


@pytest.mark.parametrize("prompt", ["full", "compact"])
def test_the_reasoner_sees_this_turns_program_and_both_see_earlier_answers(play, prompt):
    env = play(prompt=prompt)
    assert "What is it?" in env.observe("tool_0")["text"]
    env.step(code("print(1000 + 234)"))
    text = env.observe("reasoner_0")["text"]
    assert "print(1000 + 234)" in text
    assert "1234" in text
    env.step(box("777"))
    for agent in ("tool_0", "reasoner_0"):
        text = env.observe(agent)["text"]
        assert "1234" in text
        assert "777" in text
    env.step(code("print(secret)"))
    text = env.observe("reasoner_0")["text"]
    assert "print(secret)" in text
    assert ("NameError" in text) == (prompt == "full")
    assert "reference" not in text


def test_the_answer_is_shown_to_nobody(play):
    env = play("123454321")
    for text in (
        code("print(open('/proc/self/environ').read(), locals())"),
        box("1"),
        say(2),
        box("3"),
    ):
        for agent in env.agents:
            assert "123454321" not in repr((env.observe(agent), env.infos))
        env.step(text)
    assert "123454321" in env._view(env._state)


# Teams

BIG = {"reasoners": 2, "tools": 2, "judge": True}
NAMES = ["tool_0", "tool_1", "reasoner_0", "reasoner_1", "judge_0"]
REPLIES = dict(zip(NAMES, (say(11), say(12), box(13), box(14), box(15)), strict=True))


def sees(env, agent):
    """The numbers of REPLIES in what an agent is shown."""
    text = env.observe(agent)["text"]
    return {name for name, number in zip(NAMES, range(11, 16), strict=True) if str(number) in text}


@pytest.mark.parametrize("prompt", ["full", "compact"])
@pytest.mark.parametrize(
    ("topology", "first", "second"),
    [
        ("mesh", [set(), {"tool_0"}, {*NAMES[:2]}, {*NAMES[:3]}, {*NAMES[:4]}], [{*NAMES}] * 5),
        (
            "star",
            [set(), set(), set(), set(), {*NAMES[:4]}],
            [{"tool_0"}, {"tool_1"}, {"reasoner_0"}, {"reasoner_1"}, {*NAMES}],
        ),
        (
            "chain",
            [set(), {"tool_0"}, {"tool_1"}, {"reasoner_0"}, {"reasoner_1"}],
            [{"tool_0"}, {*NAMES[:2]}, {*NAMES[1:3]}, {*NAMES[2:4]}, {*NAMES[3:]}],
        ),
    ],
    ids=["mesh", "star", "chain"],
)
def test_a_topology_decides_who_sees_whom(play, topology, first, second, prompt):
    env = play(topology=topology, prompt=prompt, **BIG)
    assert env.possible_agents == NAMES
    for agent, shown in zip(NAMES, first, strict=True):
        assert sees(env, agent) == shown
        env.step(REPLIES[agent])
    assert [sees(env, agent) for agent in NAMES] == second


def test_the_judge_decides_for_the_team(play):
    env = play(**BIG)
    for text in (say(9), say(9), box(9), box(9)):
        assert step(env, text)[0] == (0.0, 1.0)
    assert step(env, box(8))[0] == (0.0, 0.0)
    for text in (say(1), say(9), box(9), box(9)):
        assert step(env, text)[0][0] == 0.0
    assert step(env, box(9))[0] == (1.0, 1.0)
    assert not any(env.terminations.values())  # one tool disagrees
    for text in (say(9), "?", "?", "?", box(9)):
        env.step(text)
    assert all(env.terminations.values())


def test_a_team_of_seven_plays(play):
    env = play(reasoners=3, tools=3, judge=True, max_turns=1)
    assert len(env.possible_agents) == 7
    for text in (*[say(9)] * 3, *[box(9)] * 4):
        env.step(text)
    assert all(env.terminations.values())
    assert env.infos["tool_2"]["success"]


def test_tools_and_a_judge_are_a_team(play):
    env = play(reasoners=0, tools=2, judge=True)
    for text in (say(9), say(9), box(9)):
        env.step(text)
    assert all(env.terminations.values())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"reasoners": 0},
            "a reasoner or judge=True for the final answer; got reasoners=0, tools=1",
        ),
        ({"reasoners": 0, "tools": 0}, "got reasoners=0, tools=0, judge=False"),
        ({"reasoners": 0, "tools": 0, "judge": True}, "reasoners or tools, .* judge=True"),
        ({"reasoners": -1}, "got reasoners=-1"),
        ({"reasoners": 5, "tools": 3}, "up to 7 agents.*reasoners=5, tools=3"),
        ({"topology": "star"}, "star.* judge"),
        ({"topology": "meshh"}, "did you mean 'mesh'"),
        ({"agents": "singl"}, "did you mean 'single'"),
        ({"agents": "single", "tools": 2}, "agents='single' has no team"),
        ({"agents": "single", "topology": "chain"}, "agents='single' has no team"),
        ({"rewards": "papr"}, "did you mean 'paper'"),
        ({"prompt": "ful"}, "did you mean 'full'"),
        ({"sandbox": "dockr"}, "did you mean 'docker'"),
        ({"depth": (1, 2)}, "depth"),
        ({"depth": (1, 2, 3)}, "depth must be two numbers"),
        ({"largest": 3}, "largest"),
        ({"split": "tests"}, "split .*'tests'"),
        ({"dataset": "reasoning_gym:chainsum"}, "chain_sum|pip install"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(options, text):
    with pytest.raises(ConfigError, match=text):
        math_v0.env(**options)


# A single agent


def test_a_single_agent_has_the_tool_and_the_turns(play):
    env = play(agents="single")
    assert env.possible_agents == ["solver_0"]
    assert step(env, say(8))[0] == (0.0, 0.0)
    assert "The program prints: 8" in env.observe("solver_0")["text"]
    assert step(env, box(9))[0] == (1.0, 1.0)
    assert not any(env.terminations.values())  # its program says 8
    assert step(env, say(9) + "\n" + box(9))[0] == (1.0, 1.0)
    assert all(env.terminations.values())


@pytest.mark.parametrize(
    ("replies", "over"),
    [
        ((say(7), say(7)), True),
        ((say(7), box(7)), True),
        ((box(7), box(7)), True),
        ((say(7), say(8)), False),
        ((code("1/0"), code("1/0")), False),
        ((say(7), "?", say(7)), False),
    ],
)
def test_a_single_agent_is_finished_when_it_repeats_its_answer(play, replies, over):
    env = play(agents="single")
    for reply in replies:
        assert not any(env.terminations.values())
        step(env, reply)
    assert all(env.terminations.values()) == over


def test_the_embedded_model_alone_is_shown_what_a_tool_is_shown(play):
    alone, team = play(agents="single", prompt="compact"), play(prompt="compact")
    assert alone.observe("solver_0")["text"] == team.observe("tool_0")["text"]
    step(alone, say(7))
    assert alone.observe("solver_0")["text"].endswith("before: tool 7")


def test_what_a_single_agents_program_prints_counts_until_it_answers(play):
    env = play(agents="single")
    assert step(env, say(9))[0] == (1.0, 1.0)
    assert not any(env.terminations.values())
    assert step(env, code("1/0"))[0] == (0.0, -1.0)
    assert step(env, code("1/0") + box(9))[0] == (1.0, 1.0)
    assert step(env, "?")[0] == (1.0, -FORMAT_PENALTY)
    assert all(env.truncations.values())


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So \boxed{1} and $\boxed{2}$", "1, 2"),
        (r"$\boxed{1} \text{ or } \boxed{2}$", "1, 2"),
        (r"\boxed{1} \quad \boxed{2} \& \boxed{3}", "1, 2, 3"),
        ("- \\boxed{1}\n- \\boxed{2}", "1, 2"),
        (r"\boxed{1} - \boxed{2}", "2"),
        ("\\boxed{1},\n\\boxed{\\frac{1}{2}}.", r"1, \frac{1}{2}"),
        (r"$x=\boxed{1}$ or $x_2 = \boxed{-1}$", "1, -1"),
        (r"\boxed{1}, no: \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}, \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("\\boxed{3}\n~~~python\nprint(r'\\boxed{9}')\n~~~", "3"),
    ],
)
def test_boxes_in_one_list_are_answers_together_and_else_the_last_counts(text, answer):
    for role in ("reasoner", "solver"):
        reply = parse_reply(role, text)
        assert isinstance(reply, Reply)
        assert reply.answer == answer


def test_a_box_within_a_program_is_no_answer():
    reply = parse_reply("solver", code(r"print(r'\boxed{9}')"))
    assert isinstance(reply, Reply)
    assert reply.answer is None
    assert parse_reply("solver", box(8) + "\n" + say(9)) == Reply(
        box(8) + "\n" + say(9), "print(9)", "8"
    )


# Tasks


def test_generated_problems_are_those_of_their_seed_split_and_size(sandbox):
    env = math_v0.env(sandbox=sandbox, split="val", depth=(5, 5), largest=100)
    env.reset(seed=4)
    story = arithmetic.generate(4, "val", depth=(5, 5), largest=100)
    assert story.question in env.observe("tool_0")["text"]
    assert env.num_tasks is None
    env.step(say(story.values[-1]))
    assert env.infos["tool_0"]["right"]
    assert env.infos["tool_0"]["difficulty"] == "5 steps"


@pytest.mark.reasoning
def test_problems_of_reasoning_gym_are_played(sandbox):
    env = math_v0.env(sandbox=sandbox, dataset="reasoning_gym:chain_sum")
    env.reset(seed=1)
    problem = env._state.problem
    assert problem.question in env.observe("tool_0")["text"]
    env.step(say(problem.answers[0]))
    env.step(box(problem.answers[0]))
    assert env.infos["reasoner_0"]["success"]


def test_rows_of_a_data_set_are_played_by_number(sandbox, tmp_path):
    records = tuple(MathProblem(f"Question {n}.", (str(n),), str(n)) for n in range(3))

    file = tmp_path / "problems.jsonl"
    rows = [
        {"question": r.question, "answer": r.answers[0], "split": "train", "id": r.id}
        for r in records
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    env = math_v0.env(dataset=file, sandbox=sandbox)
    assert env.num_tasks == 3
    for seed in (0, 1, 2, 3, 1 << 40):
        env.reset(seed=seed)
        assert env._state.problem == records[seed % 3]


# Programs


def test_no_program_runs_in_this_process(play):
    nosy = "import os, sys, builtins\nbuiltins.noticed = sys.noticed = 1\nprint(os.getpid())"
    env = play()
    env.step(code(nosy))
    assert not hasattr(sys, "noticed")
    env.step(box(0))
    env.step(code("import sys\nprint(hasattr(sys, 'noticed'))"))
    assert env._state.messages[-1].printed == "False"


def test_candidates_are_run_together_and_cannot_touch_each_other(play):
    calls = []
    env = play()
    original = env.sandbox

    class Counting:
        def run(self, programs, cases, **options):
            calls.append(list(programs))
            return original.run(programs, cases, **options)

    env.sandbox = Counting()
    spoil = "import builtins\nbuiltins.print = lambda *a: None\nimport sys\nsys.stdout.write('8')"
    twins = env.branch([code(spoil), say(9), "?", say(9), code("1/0")])
    assert calls == [[spoil, "print(9)", "1/0"]]
    assert [twin.rewards["tool_0"] for twin in twins] == [0.0, 1.0, -1.0, 1.0, -1.0]
    assert env.transcript == ()


def test_a_sandbox_that_fails_is_an_error_and_never_a_reward(play):
    env = play()
    with open_sandbox("embedded", workers=1) as closed:
        pass
    env.sandbox = closed
    before = (env.transcript, env.infos, env.rewards)
    with pytest.raises(SandboxUnavailable):
        env.step(say(9))
    assert (env.transcript, env.infos, env.rewards) == before
    env.step("needs no sandbox")


# Text that a model can write


@given(
    st.one_of(st.text(), st.text(alphabet="`\\boxed{}python\n0")),
    st.sampled_from(["tool", "reasoner", "solver"]),
)
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_reply_or_says_why_not(text, role):
    reply = parse_reply(role, text)
    assert isinstance(reply, Reply | ParseError)
    if isinstance(reply, Reply):
        assert (reply.program is not None) or (reply.answer is not None and reply.answer.strip())


HOSTILE = {
    "boxes": r"\boxed{" * 140_000,
    "closed boxes": r"\boxed{" * 70_000 + "}" * 70_000,
    "braces": r"\boxed{" + "{" * 900_000,
    "backticks": "`" * 1_000_000,
    "fences": "```\n" * 25_000,
    "tower": box("9^{9^{9^9}}"),
    "long number": box("9" * 100_000),
    "deep": box("(" * 400 + ")" * 400),
    "surrogate": box("\ud800") + code("print('\ud800')"),
    "nul": box("9\0") + code("print(9)\0"),
    "too long": "a" * 1_000_001,
    "printing": code("print('9' * 10**7)"),
    "printing lines": code("print('9\\n' * 10**5)"),
}


@pytest.mark.parametrize("agents", ["team", "single"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_one_reply_like_any_other(name, agents, play):
    env = play(agents=agents, max_turns=2)
    started = time.process_time()
    while not (any(env.terminations.values()) or any(env.truncations.values())):
        (team, local), info = step(env, HOSTILE[name])
        assert team in (0.0, 1.0)
        assert -1.0 <= local <= 1.0
        assert info["parse_error"] is None or isinstance(info["parse_error"], str)
        for agent in env.agents:
            assert len(env.observe(agent)["text"]) < 40_000
    assert time.process_time() - started < 10


# Contracts

UNDERSTOOD = (say(9), code("print(1 / 0)"), box(9), box("9.0"), box("x + 1"))


@pytest.mark.filterwarnings(*TEXT_WARNINGS)
@pytest.mark.parametrize("options", [{}, BIG, {"agents": "single"}], ids=["two", "five", "single"])
def test_pettingzoos_tests_and_ours_pass(options, caplog):
    def make(**kwargs):
        return math_v0.env(**options, **kwargs)

    api_test(make(), num_cycles=20)
    seed_test(make, num_cycles=20)
    check_env(make, episodes=1, replies=UNDERSTOOD)
    assert not [record for record in caplog.records if "processes" not in record.getMessage()]


@pytest.mark.parametrize("moves", range(4))
def test_a_copy_goes_on_alike_and_leaves_the_original_alone(moves, play):
    replies = (say(8), box(7), say(9), box(9))
    env, straight = play(), play()
    for text in replies[:moves]:
        env.step(text)
    snapshot = pickle.loads(pickle.dumps(env.snapshot()))
    twin = env.clone()
    for text in replies[moves:]:
        twin.step(text)
    env.step("something else")
    env.restore(snapshot)
    for text in replies[moves:]:
        env.step(text)
    for text in replies:
        straight.step(text)
    for other in (twin, env):
        assert (other.transcript, other.infos) == (straight.transcript, straight.infos)
    assert all(straight.terminations.values())


def test_the_environment_is_picklable():
    env = math_v0.env(split="test")
    env.reset(seed=3)
    twin = pickle.loads(pickle.dumps(env))
    twin.reset(seed=3)
    assert twin.observe("tool_0") == env.observe("tool_0")


def test_making_one_imports_nothing_heavy():
    code = (
        "import sys\nfrom pettingllms.envs import math_v0\nmath_v0.env().reset(seed=0)\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "sys.exit(str(loaded & {'torch', 'transformers', 'sympy', 'datasets', 'math_verify', 'reasoning_gym'} or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
