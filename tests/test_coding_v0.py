"""The coding environment with the real sandbox: programs and tests run, rewards follow from it."""

from __future__ import annotations

import json
import pickle
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pettingllms.data import coding
from pettingllms.envs import check_env, coding_v0
from pettingllms.envs.coding_judge import WRONG_COST
from pettingllms.envs.team_env import FORMAT_PENALTY
from pettingllms.errors import ConfigError, DatasetError, SandboxUnavailable
from pettingllms.rollout.episode import Episode, score
from pettingllms.sandbox import open_sandbox
from pettingllms.types import Completion, Task


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


def code(program):
    return f"I think:\n```python\n{program}\n```\nDone."


def checks(*pairs):
    return "".join(f"```input\n{a}\n```\n```output\n{b}\n```\n" for a, b in pairs)


def a_row(**changes):
    return {
        "question": "Print the absolute value of the number.",
        "tests": [{"input": str(n), "output": str(abs(n))} for n in (3, -3, 0, -8)],
        "reference": "print(abs(int(input())))",
        "mutants": ["print(int(input()))", "print(-int(input()))"],
        "split": "train",
        **changes,
    }


@pytest.fixture
def play(tmp_path, sandbox):
    """An environment over the given rows, reset to the first of them."""

    def make(*rows, seed=0, **options):
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        file.write_text("\n".join(json.dumps(row) for row in rows or (a_row(),)))
        env = coding_v0.env(dataset=file, sandbox=sandbox, **options)
        env.reset(seed=seed)
        return env

    return make


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


RIGHT = code("print(abs(int(input())))")
HALF = code("print(int(input()))")  # right on 3 and 0
NO_TEST = "no test at all"


# The coder


@pytest.mark.parametrize(
    ("program", "rewards"),
    [
        ("print(abs(int(input())))", (1.0, 1.0)),
        ("print(int(input()))", (0.0, 0.5)),
        ("print(8)", (0.0, 0.25)),
        ("print(1 / 0)", (0.0, 0.0)),
        ("print(", (0.0, 0.0)),
        ("", (0.0, 0.0)),
        ("print(abs(int(input())))\nraise SystemExit(1)", (0.0, 0.0)),
        ("import os\nos._exit(0)", (0.0, 0.0)),
        ("import sys\nprint(abs(int(sys.stdin.readline())))\nsys.exit()", (1.0, 1.0)),
    ],
)
def test_the_coder_earns_the_share_of_hidden_tests_and_the_team_all_or_nothing(
    program, rewards, play
):
    env = play()
    scores, info = step(env, code(program))
    assert scores == rewards
    assert info["passed"] == rewards[1]
    assert info["success"] == (rewards[0] == 1.0)


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nsys.stdin = open(0)\nprint(abs(int(input())))",
        "import os, sys\nsys.stdout = open(1, 'w')\nprint(abs(int(os.fdopen(0).readline())))",
        "import os\nos.mkdir('/tmp/mine')\nopen('/tmp/once', 'x').close()\nprint(abs(int(input())))",
        "import builtins\nn = int(input())\nprint(abs(n))\nbuiltins.print = builtins.int = None",
    ],
)
def test_what_a_program_leaves_behind_is_gone_on_the_next_hidden_test(program, play):
    assert step(play(), code(program))[0] == (1.0, 1.0)


def test_team_and_local_reward_of_the_coder_are_not_one_number(play):
    # Wherever both come from a program that is not perfect or from no program, they differ.
    env = play()
    assert step(env, HALF)[0] == (0.0, 0.5)
    step(env, checks(("3", "4")))
    assert step(env, RIGHT)[0] == (1.0, 1.0)
    step(env, checks(("3", "4")))
    assert step(env, "nothing")[0] == (1.0, -FORMAT_PENALTY)


def test_alpha_weighs_the_team_reward(play):
    for alpha in (0.0, 0.5, 3.0):
        env = play(alpha=alpha)
        env.step(RIGHT)
        assert env.rewards == {"coder_0": alpha + 1.0, "tester_0": 0.0}


def test_the_sparse_scheme_pays_success_only(play):
    env = play(rewards="sparse")
    assert step(env, HALF)[0] == (0.0, 0.0)
    assert step(env, checks(("3", "4")))[0] == (0.0, 0.0)
    assert step(env, RIGHT)[0] == (1.0, 0.0)
    assert step(env, NO_TEST)[0] == (1.0, 0.0)


# The tester


def test_the_testers_reward_changes_with_the_reference_solution(play):
    # 2 * 2 and 2 + 2: one hidden test; 3 tells the mutant from the first alone.
    row = a_row(tests=[{"input": "2", "output": "4"}], mutants=["print(4)"], question="Do it.")
    twice = play({**row, "reference": "print(2 * int(input()))"})
    plus = play({**row, "reference": "print(2 + int(input()))"})
    for env, earned in ((twice, 1.0), (plus, -WRONG_COST)):
        env.step(NO_TEST)
        assert step(env, checks(("3", "6")))[0] == (0.0, earned)


@pytest.mark.parametrize(
    ("tests", "valid", "caught"),
    [
        ([("-3", "3")], 1.0, 0.5),  # only the mutant without abs fails it
        ([("-3", "3"), ("3", "3")], 1.0, 1.0),
        ([("-3", "3"), ("-3", "3"), ("-3 ", "3\n")], 1.0, 0.5),  # one test, three times
        ([("0", "0")], 1.0, 0.0),  # right, and tells nothing
        ([("-3", "4")], 0.0, 0.0),  # wrong: all mutants fail it, which counts for nothing
        ([("-3", "4"), ("3", "5")], 0.0, 0.0),
        ([("-3", "3"), ("3", "5")], 0.5, 0.5),
        ([("-3", "3"), ("-3", "5")], 0.0, 0.0),  # they contradict each other
        ([("-3", "3"), ("-3", "5"), ("3", "3")], 1 / 3, 0.5),
        ([("x", "3")], 0.0, 0.0),  # the reference itself fails
        ([("", "")], 0.0, 0.0),
    ],
)
def test_the_tester_earns_what_its_right_tests_catch_and_each_wrong_one_costs(
    tests, valid, caught, play
):
    env = play()
    env.step(HALF)
    (team, local), info = step(env, checks(*tests))
    assert (info["valid"], info["caught"]) == (valid, caught)
    assert local == valid**2 * caught - WRONG_COST * (1 - valid)
    assert team == 0.0
    assert info["tests"] == len(tests)


def test_the_tester_reports_how_large_the_inputs_are_that_it_asks(play):
    env = play()
    env.step(HALF)
    _, info = step(env, checks(("-3", "3"), ("1 2 3", "6")))
    assert info["input_size"] == 2.0


def test_a_test_of_the_tester_counts_alike_whatever_the_program(play):
    earned = set()
    for reply in (RIGHT, HALF, code("print(1 / 0)"), "nothing"):
        env = play()
        env.step(reply)
        earned.add(step(env, checks(("-3", "3")))[0][1])
    assert earned == {0.5}


# The course of an episode


def test_agreement_ends_the_episode_and_is_not_success(play):
    env = play()
    env.step(HALF)
    step(env, checks(("3", "3"), ("-3", "-3")))  # both are wrong about -3
    assert all(env.terminations.values())
    assert not any(env.truncations.values())
    assert not any(info["success"] for info in env.infos.values())


def test_success_does_not_end_the_episode(play):
    env = play()
    env.step(RIGHT)
    assert env.infos["coder_0"]["success"]
    assert not any(env.terminations.values())
    _, info = step(env, checks(("3", "4")))
    assert info["success"]
    assert info["team_reward"] == 0.0  # paid already
    assert not any(env.terminations.values())
    assert env.agent_selection == "coder_0"
    _, info = step(env, HALF)  # and can be lost again
    assert info["team_reward"] == -1.0
    assert not env.infos["tester_0"]["success"]


def test_without_a_program_there_is_no_agreement(play):
    env = play()
    env.step("no program")
    step(env, checks(("3", "3")))
    assert not any(env.terminations.values())


def test_without_a_test_there_is_no_agreement(play):
    env = play()
    env.step(RIGHT)
    step(env, NO_TEST)
    assert not any(env.terminations.values())


def test_the_episode_is_cut_after_its_turns(play):
    env = play(max_turns=2)
    for text in (HALF, checks(("3", "4")), HALF, checks(("3", "4"))):
        assert not any(env.truncations.values())
        env.step(text)
    assert all(env.truncations.values())
    assert not any(env.terminations.values())


@pytest.mark.parametrize("prompt", ["full", "compact"])
def test_later_turns_show_programs_and_the_tests_that_disagree_only(prompt, play):
    env = play(prompt=prompt)
    first = env.observe("coder_0")["text"]
    assert env.observe("tester_0")["text"].replace("tester", "") != first
    env.step(HALF)
    before = env.observe("tester_0")["text"]
    assert "print(int(input()))" not in before  # within a turn the tester sees the problem only
    env.step(checks(("11", "11"), ("-12", "12"), ("13", "14")))
    for agent in ("coder_0", "tester_0"):
        text = env.observe(agent)["text"]
        assert "print(int(input()))" in text
        for shown in ("-12", "13", "14"):
            assert shown in text
        assert "11" not in text
    env.step(code("print(1 / 0)"))
    env.step(checks(("21", "21")))
    text = env.observe("coder_0")["text"]
    assert "print(int(input()))" in text
    assert "print(1 / 0)" in text
    assert "ZeroDivisionError" in text
    assert env.observe("coder_0")["turn"] == 2


@pytest.mark.parametrize("reply", ["", "text", "```python\nprint(1)", checks(("1", "1"))])
def test_a_program_that_cannot_be_read_changes_nothing_and_says_why(reply, play):
    env = play()
    env.step(HALF)
    env.step(checks(("3", "4")))
    before = env._state
    rewards, info = step(env, reply)
    assert replace(env._state, scores=before.scores) == before
    assert rewards == (0.0, -FORMAT_PENALTY)
    assert "python" in info["parse_error"]


@pytest.mark.parametrize("reply", ["", RIGHT, "```input\n1\n```", "```output\n1\n```"])
def test_tests_that_cannot_be_read_leave_the_program_and_say_why(reply, play):
    env = play()
    env.step(RIGHT)
    before = env.snapshot().fields["_state"]
    rewards, info = step(env, reply)
    after = env.snapshot().fields["_state"]
    assert (after.program, after.passed, after.task) == (
        before.program,
        before.passed,
        before.task,
    )
    assert [attempt.disagreements for attempt in after.history] == [()]
    assert rewards == (1.0, -FORMAT_PENALTY)
    assert "input" in info["parse_error"]


def test_the_same_replies_to_the_same_task_earn_the_same(sandbox):
    def episode():
        env = coding_v0.env(sandbox=sandbox)
        env.reset(seed=5)
        for text in (code("print(1)"), checks(("1 2", "3"), ("[[1]]", "1")), code("x"), ""):
            env.step(text)
        return env.transcript, env.infos, env.observe("coder_0")

    assert episode() == episode()


@pytest.mark.parametrize("program", [HALF, RIGHT, NO_TEST, code("print('x' * 10**7)")])
def test_replies_that_are_scored_together_earn_what_each_earns_alone(program, play):
    env = play()
    coders = [RIGHT, HALF, program, NO_TEST, "a" * 1_000_001, code("print(")]
    testers = [
        checks(("-3", "3")),
        checks(("-3", "4"), ("3", "3")),
        checks(("9" * 5000, "3")),
        NO_TEST,
        "a" * 1_000_001,
        checks(("-3", "3"), ("-3", "3")),
        checks(("x", "y"), ("", "")),
    ]
    for replies, chosen in ((coders, program), (testers, testers[1])):
        together = [branch.snapshot() for branch in env.branch(replies)]
        for reply, snapshot in zip(replies, together, strict=True):
            alone = env.clone()
            alone.step(reply)
            assert alone.snapshot() == snapshot
        env.step(chosen)


# A single agent


def test_a_coder_alone_earns_what_it_earns_in_the_team(play):
    alone, team = play(agents="single", alpha=0.5), play(alpha=0.5)
    assert alone.possible_agents == ["coder_0"]
    for reply in (HALF, code("print(1 / 0)"), "no program", RIGHT):
        earned = step(alone, reply)
        assert earned == step(team, reply)
        step(team, checks(("3", "4")))
    assert all(alone.truncations.values())  # after as many turns as the team has
    assert not any(alone.terminations.values())
    assert step(play(agents="single", rewards="sparse"), HALF)[0] == (0.0, 0.0)


@pytest.mark.parametrize(("program", "earned"), [(HALF, (0.0, 0.5)), (RIGHT, (1.0, 1.0))])
def test_a_coder_alone_is_done_when_it_repeats_itself_right_or_wrong(program, earned, play):
    env = play(agents="single")
    for reply in (program, code("print(8)"), program):
        step(env, reply)
        assert not any(env.terminations.values())
    rewards, info = step(env, program.replace(")\n```", ") \n\n```"))
    assert rewards == earned
    assert info["success"] == (program == RIGHT)
    assert all(env.terminations.values())


@pytest.mark.parametrize("prompt", ["full", "compact"])
def test_a_coder_alone_reads_of_its_own_programs_and_of_nobody_else(prompt, play):
    env = play(agents="single", prompt=prompt)
    shown = [env.observe("coder_0")["text"]]
    for reply in (HALF, "no program", code("print(8)")):
        env.step(reply)
        shown.append(env.observe("coder_0")["text"])
    assert "print(int(input()))" not in shown[0]
    assert [text.count("print(int(input()))") for text in shown] == [0, 1, 2, 2]
    assert [text.count("print(8)") for text in shown] == [0, 0, 0, 1]
    for text in shown:
        assert not any(word in text.lower() for word in ("team", "tester", "disagree"))
    if prompt == "compact":
        question = a_row()["question"]
        assert shown[0] == f"coder\n{question}"
        tried = "\ntried\nprint(int(input()))" * 2 + "\ntried\nprint(8)"
        assert shown[3] == shown[0] + tried


def test_a_reply_that_a_coder_alone_leaves_unreadable_is_a_turn_and_not_the_end(play):
    env = play(agents="single", max_turns=5)
    for replies in range(1, 3):
        rewards, info = step(env, "no program")
        assert rewards == (0.0, -FORMAT_PENALTY)
        assert "python" in info["parse_error"]
        assert env.observe("coder_0")["text"].count("(no program)") == replies
    assert step(env, RIGHT)[0] == (1.0, 1.0)
    assert step(env, "no program")[0] == (1.0, -FORMAT_PENALTY)
    assert not any(env.terminations.values())
    step(env, RIGHT)  # what it repeats is the last program that could be read
    assert all(env.terminations.values())


# Functions


def test_a_function_is_called_and_its_value_compared(play):
    row = a_row(
        question="Write twice(x), twice the list.",
        function="twice",
        tests=[{"input": "[[1, 2]]", "output": "[1, 2, 1, 2]"}, {"input": "[[]]", "output": "[]"}],
        reference="def twice(x):\n    return x + x",
        mutants=["def twice(x):\n    return x", "def twice(x):\n    return [2 * y for y in x]"],
    )
    env = play(row)
    assert "`twice`" in env.observe("coder_0")["text"]
    assert step(env, code("def twice(x):\n    return tuple(x * 2)"))[0] == (1.0, 1.0)
    assert step(env, checks(("[[3]]", "[3, 3]")))[0] == (1.0, 1.0)
    assert all(env.terminations.values())
    other = play(row)
    assert step(other, code("def twice(x):\n    print(x + x)"))[0] == (0.0, 0.0)
    assert step(other, checks(("[3]", "3")))[0] == (
        0.0,
        -WRONG_COST,
    )  # the reference fails on a number
    _, info = step(other, code("def thrice(x):\n    return x"))
    assert info["statuses"] == ["error", "error"]
    assert info["verdicts"] == [False, False]
    assert step(other, checks(("3", "3")))[1]["parse_error"]


# What nobody may see

SENTINELS = ("7193557", "8260419", "ref_5561", "mut_9902")


def secret_row(function):
    hidden, answer, reference, mutant = SENTINELS
    if function:
        return a_row(
            question="Write f(x).",
            function="f",
            tests=[{"input": f"[{hidden}]", "output": answer}, {"input": "[1]", "output": "1"}],
            reference=f"def f({reference}):\n    return {answer} if {reference} > 9 else 1",
            mutants=[f"def f({mutant}):\n    return {mutant}"],
        )
    return a_row(
        question="Print it.",
        tests=[{"input": hidden, "output": answer}, {"input": "1", "output": "1"}],
        reference=f"{reference} = int(input())\nprint({answer} if {reference} > 9 else 1)",
        mutants=[f"{mutant} = input()\nprint({mutant})"],
    )


NOSY = [
    code("print(input())"),
    code("x = input()\nraise ValueError(x)"),
    code("import sys\nsys.stderr.write(sys.stdin.read())\nsys.exit(3)"),
    code("def f(x):\n    return x"),
    code("def f(x):\n    raise ValueError(x)"),
    code("import glob\nprint(glob.glob('/tmp/*'), [open(p).read() for p in glob.glob('/tmp/*')])"),
    code("open('/tmp/kept', 'a').write(input())\nprint(open('/tmp/kept').read())"),
    code(
        "def f(x):\n    open('/tmp/kept', 'a').write(str(x))\n    return open('/tmp/kept').read()"
    ),
    code("import gc, sys\nprint(gc.get_objects().__len__(), sys.argv, sys._getframe().f_back)"),
    code("import os\nprint(os.environ, os.listdir('/'))"),
    checks(("1", "2")),
    checks(("[1]", "2"), ("[2]", "x")),
    checks(("2", "no"), ("x", "y")),
    "",
]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.booleans(),
    st.sampled_from(("full", "compact")),
    st.sampled_from(("team", "single")),
    st.lists(st.tuples(st.sampled_from(NOSY[:10]), st.sampled_from(NOSY)), min_size=1, max_size=3),
)
def test_hidden_tests_reference_and_mutants_are_in_nothing_that_an_agent_sees(
    play, function, prompt, agents, replies
):
    env = play(secret_row(function), prompt=prompt, agents=agents, max_turns=3, render_mode="ansi")
    seen = []
    for reply in (text for both in replies for text in both):
        if env.terminations[env.agent_selection] or env.truncations[env.agent_selection]:
            break
        env.step(reply)
        seen += [env.observe(agent) for agent in env.possible_agents]
        seen += [env.last(), dict(env.infos), env.transcript, env.render(), env.rewards]
    for sentinel in SENTINELS:
        assert sentinel not in repr(seen)


def test_the_sentinels_would_be_seen_if_they_were_shown(play):
    # Of the tester's own test, the program's output is shown: this is how it would look.
    env = play(secret_row(False))
    env.step(NOSY[0])
    env.step(checks((SENTINELS[0], "1")))
    assert repr(env.observe("coder_0")).count(SENTINELS[0]) == 2


@pytest.mark.parametrize("function", [False, True])
def test_the_record_of_a_run_has_the_hidden_test_that_failed_and_what_the_program_did(
    play, function
):
    wrong = code("def f(x):\n    return x / 0" if function else "print(input() + '?')")
    right = code(f"def f(x):\n    return {SENTINELS[1]} if x > 9 else 1")
    env = play(secret_row(function))
    texts = [wrong, "no program", *([right] if function else [])]
    made = [Completion((), (), (), text, truncated=False, version=0) for text in texts]
    episode = Episode(env, Task("t", 0), 0)
    failing, unread, *passed = [branch.result.info for branch in score(episode, made)]
    failure = failing["failing"]
    assert SENTINELS[0] in failure["input"]
    assert failure["expected"] == SENTINELS[1]
    assert failure["status"] == ("error" if function else "ok")
    assert ("ZeroDivisionError" in failure["standard error"]) is function
    assert failure["gave"] == ("" if function else f"{SENTINELS[0]}?\n")
    assert all("failing" not in info for info in (unread, *passed))


def test_what_a_program_printed_is_clipped_in_the_record(play):
    env = play(a_row())
    env.step(code("print('x' * 100_000)"))
    assert len(env._notes["failing"]["gave"]) < 1100
    env.step(checks(("1", "2")))
    assert env._notes == {}


# Text that a model can write

HOSTILE = {
    "backticks": "`" * 1_000_000,
    "fences": "```\n" * 25_000,
    "a wide fence": "```" + " " * 500_000 + "a" * 499_000 + "`",
    "brackets": "```input\n" + "[" * 60_000 + "\n```\n```output\n" + "]" * 60_000 + "\n```",
    "pairs": "```input\n1\n```\n```output\n1\n```\n" * 20_000,
    "deep program": code("(" * 60_000),
    "long program": code("x = 1\n" * 9_000),
    "too long": "a" * 1_000_001,
    "nul": code("print(1)\0") + checks(("1\0", "1\0")),
    "surrogate": code("print('\ud800')") + checks(("\ud800", "\udfff")),
    "other lines": code("print(1)\u2028\x0c\x85") + checks(("1\u2028", "1\r")),
    "long test": checks(("1" * 60_000, "2" * 60_000)),
}


@pytest.mark.parametrize("function", [False, True], ids=["stdin", "function"])
@pytest.mark.parametrize("agents", ["team", "single"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_one_reply_like_any_other(name, agents, function, play):
    env = play(secret_row(function), agents=agents, max_turns=2 if agents == "team" else 4)
    started = time.process_time()
    for _ in range(4):
        if env.terminations[env.agent_selection]:
            break
        (team, local), info = step(env, HOSTILE[name])
        assert team == 0.0
        assert local <= 0.5
        assert info["parse_error"] is None or isinstance(info["parse_error"], str)
        for agent in env.agents:
            assert env.observation_space(agent)["text"].contains(env.observe(agent)["text"])
    assert time.process_time() - started < 20


# Copies


def test_a_coder_alone_passes_the_checks_of_every_environment(sandbox):
    check_env(lambda: coding_v0.env(agents="single", sandbox=sandbox))


@pytest.mark.parametrize("moves", [0, 1, 2, 3])
def test_a_copy_goes_on_alike_and_leaves_the_original_alone(moves, play):
    replies = (HALF, checks(("3", "4"), ("-3", "3")), RIGHT, checks(("-5", "5")))
    env, straight = play(), play()
    for text in replies[:moves]:
        env.step(text)
    snapshot = pickle.loads(pickle.dumps(env.snapshot()))
    before = (env.transcript, env.observe("coder_0"), env.infos)
    twin = env.clone()
    for text in replies[moves:]:
        twin.step(text)
    assert (env.transcript, env.observe("coder_0"), env.infos) == before
    env.step("something else")
    env.restore(snapshot)
    for text in replies[moves:]:
        env.step(text)
    for text in replies:
        straight.step(text)
    for other in (twin, env):
        assert (other.transcript, other.infos) == (straight.transcript, straight.infos)
        assert other.terminations == straight.terminations
    assert all(straight.terminations.values())


# Failures


def test_a_sandbox_that_fails_is_an_error_and_never_a_reward(play):
    env = play()
    with open_sandbox("embedded", workers=1) as closed:
        pass
    env.sandbox = closed
    for reply, unread in ((RIGHT, NO_TEST), (checks(("3", "3")), NO_TEST)):
        before = (env.transcript, env.infos, env.agent_selection, env.rewards)
        with pytest.raises(SandboxUnavailable):
            env.step(reply)
        assert (env.transcript, env.infos, env.agent_selection, env.rewards) == before
        env.step(unread)  # needs no sandbox


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"agents": "singles"}, "agents must be one of .* got 'singles'; did you mean 'single'"),
        ({"rewards": "papr"}, "rewards must be one of .* got 'papr'; did you mean 'paper'"),
        ({"prompt": "ful"}, "prompt must be one of .* got 'ful'; did you mean 'full'"),
        ({"split": "tests"}, "split .*'tests'"),
    ],
)
def test_a_misspelt_option_is_refused_with_what_was_meant(options, text):
    with pytest.raises(ConfigError, match=text):
        coding_v0.env(**options)


def test_a_split_without_rows_is_refused(play):
    with pytest.raises(DatasetError, match=r"has no task of the split 'test'; add rows"):
        play(split="test")


@pytest.mark.parametrize("given_mutants", [True, False])
def test_a_wrong_reference_is_found_when_the_row_is_first_played(given_mutants, play):
    row = a_row(reference="print(int(input()))", id="row-9")
    if not given_mutants:
        del row["mutants"]
    with pytest.raises(DatasetError, match=r"task row-9: the reference fails tests\[1\].*'3'"):
        play(row)


def test_rows_are_played_by_number_and_mutants_made_once(play):
    reference = "x = int(input())\nprint(x if x > 0 else -x)"
    rows = [a_row(question=f"Question {n}.", reference=reference) for n in range(3)]
    for row in rows:
        del row["mutants"]
    env = play(*rows)
    assert env.num_tasks == 3
    shown = []
    for seed in (0, 1, 2, 3, 1 << 40):
        env.reset(seed=seed)
        shown.append(env.observe("coder_0")["text"].rpartition("\n")[2])
    assert shown == [f"Question {n}." for n in (0, 1, 2, 0, (1 << 40) % 3)]
    assert sorted(env._prepared) == [0, 1, 2]
    env.step(NO_TEST)
    assert step(env, checks(("-3", "3"), ("3", "3"), ("0", "0")))[0][1] > 0.5


@pytest.mark.parametrize("agents", ["team", "single"])
def test_every_reply_says_how_difficult_the_task_is_if_that_is_known(agents, play):
    rated, unknown = (
        play(row, agents=agents, max_turns=5) for row in (a_row(difficulty="hard"), a_row())
    )
    for reply in (HALF, checks(("3", "4")), "unreadable", "unreadable", "a" * 1_000_001):
        assert step(rated, reply)[1]["difficulty"] == "hard"
        assert "difficulty" not in step(unknown, reply)[1]


def test_generated_tasks_are_endless_and_of_their_split(sandbox):
    env = coding_v0.env(sandbox=sandbox, split="test")
    assert env.num_tasks is None
    env.reset(seed=3)
    assert coding.generate(3, "test").question in env.observe("coder_0")["text"]
    assert coding.generate(3, "train").question not in env.observe("coder_0")["text"]


def test_an_input_that_the_reference_evaluates_changes_nothing_for_the_mutants(tmp_path):
    # Up to the module that runs programs, where a name of its own hides the built-in one.
    frame = "__import__('sys')._getframe().f_back.f_back.f_back"
    answer = "lambda *_, **__: compile('print(7)', 'x', 'exec')"
    tampers = f"{frame}.f_globals.__setitem__('compile', {answer}) or 3"
    row = {
        "question": "Read an expression and print its value.",
        "tests": [{"input": "1+1", "output": "2"}],
        "reference": "print(eval(input()))",
        # Does what the reference does, so that no test can catch it.
        "mutants": ["value = eval(input())\nprint(value)"],
    }
    (tmp_path / "test.jsonl").write_text(json.dumps(row))
    game = coding_v0.env(dataset=tmp_path / "test.jsonl", split="test")
    game.reset(seed=0)
    game.step("```python\nprint(eval(input()))\n```")
    game.step(f"```input\n{tampers}\n```\n```output\n3\n```")
    assert game.infos["tester_0"]["valid"] == 1.0
    assert game.infos["tester_0"]["caught"] == 0.0
