"""Agent programs as environments: what they ask, what they are answered, copies by replay, failures."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import itertools
import json
import os
import pickle
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI, OpenAI

import pettingllms as pl
from pettingllms.envs import check_env, program_calls, program_run
from pettingllms.envs.aec import ENVIRONMENTS, load_env
from pettingllms.envs.program_calls import ChatCall, NotServed
from pettingllms.envs.program_v0 import env as program_env
from pettingllms.envs.tool_calls import MOST_CALLS, read_calls
from pettingllms.errors import CloneError, ConfigError, UnknownNameError
from pettingllms.models.shared_prompts import hidden_states
from pettingllms.policies import packing
from pettingllms.trainers.method import lacking
from pettingllms.trainers.method_names import METHODS
from pettingllms.types import Conversation
from tests.listening_program import ROLES, asked, chat_env, relay, sent, user
from tests.listening_program import Refused as Answered

QUESTION = {"model": "writer", "messages": user("?")}


def played(env: Any, *replies: str) -> Any:
    for reply in replies:
        env.step(reply)
    return env


def started(program: Any, seed: int = 3, **arguments: Any) -> Any:
    env = program_env(program, **{"roles": ROLES, **arguments})
    env.reset(seed=seed)
    return env


# What users write


def test_a_function_is_an_environment_whose_decisions_are_its_requests() -> None:
    env = started(relay)
    assert (env.agent_selection, env.text_for("writer_0")) == ("writer_0", "write 4")
    played(env, "three")
    assert (env.agent_selection, env.text_for("reader_0")) == ("reader_0", "read three")
    played(env, "4")
    assert env.rewards == {"writer_0": 0.25, "reader_0": 1.0}
    assert env.infos["reader_0"]["success"]
    assert all(env.terminations.values())


def test_coroutines_and_scripts_are_programs_as_well(tmp_path: Path) -> None:
    async def solve(task: int, base_url: str, api_key: str, seed: int) -> float:
        assert (api_key, seed) == ("local", 3)
        message = await asyncio.to_thread(asked, base_url, "writer", user(str(task)))
        return float(message["content"] == "right")

    script = tmp_path / "solve.py"
    script.write_text("""
import json, os, sys, urllib.request
def post(path, **body):
    url = os.environ["OPENAI_BASE_URL"] + path
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as reply:
        return json.load(reply)
task = json.load(sys.stdin)
said = post("/chat/completions", model="writer", messages=[{"role": "user", "content": str(task)}])
post("/pay", local=0.5)
print("thinking")
print(json.dumps(float(said["choices"][0]["message"]["content"] == "right")))
""")
    for program, local in ((solve, 0.0), (str(script), 0.5)):
        env = started(program)
        right, wrong = env.branch(["right", "wrong"])
        assert [right.rewards["writer_0"], wrong.rewards["writer_0"]] == [1 + local, local]


def test_rows_are_the_tasks_unchanged_and_their_roles_are_seen(tmp_path: Path) -> None:
    rows = [{"question": f"what is {n}?", "more": {"n": n}} for n in range(20)]
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    seen = []

    def solve(task: Any, base_url: str) -> float:
        seen.append(task)
        asked(base_url, "openai/reader", user(task["question"]))
        return 1.0

    assert program_env(relay).possible_agents == ["writer_0", "reader_0"]
    env = program_env(solve, dataset=file)
    assert env.possible_agents == ["reader_0"]
    assert env.num_tasks == 20
    env.reset(seed=22)
    assert seen[-1] == rows[2]


def test_a_program_is_found_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "found_team.py").write_text("from tests.listening_program import relay as solve\n")
    env = load_env(f"program:{tmp_path / 'found_team.py'}:solve", roles="writer,reader")
    assert env.possible_agents == ["writer_0", "reader_0"]
    with pytest.raises(UnknownNameError, match="no script"):
        load_env(f"program:{tmp_path / 'nowhere.py'}")
    with pytest.raises(ConfigError, match="must be a function"):
        load_env("program:tests.listening_program:ROLES")


@pytest.mark.slow
def test_programs_keep_the_contract_of_environments() -> None:
    check_env("tests.listening_program:relay_env", episodes=1)


# The proof


@pytest.mark.slow
@pytest.mark.parametrize("method", ["at_grpo", "grpo"])
def test_a_program_trains_the_adapters_of_the_environment_that_it_plays(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests: list[list[str]] = []
    for path in (ENVIRONMENTS.own["plan_path"], "tests.listening_program:env"):
        monkeypatch.setitem(ENVIRONMENTS.own, "plan_path", path)
        run = tmp_path / str(len(digests))
        pl.train(
            "plan_path",
            model="embedded:parts",
            policies="per-role",
            method=method,
            max_steps=2,
            tasks_per_step=2,
            num_generations=4,
            env_args={"max_turns": 2},
            eval_steps=0,
            eval_tasks=0,
            output_dir=str(run),
        )
        files = sorted(run.glob("adapters/*/adapter_model.safetensors"))
        assert len(files) == 2
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert any("time/replay" in step for step in steps) == path.endswith("program:env")
        digests.append([hashlib.sha256(file.read_bytes()).hexdigest() for file in files])
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_turns_of_a_conversation_share_a_row_of_the_update_and_broken_ones_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = list[int]()

    def counting(model: Any, layout: Any, ids: Any, positions: Any) -> Any:
        tokens.append(ids.numel())
        return hidden_states(model, layout, ids, positions)

    def trained(run: Path) -> Any:
        tokens.clear()
        pl.train(
            chat_env,
            model="embedded:parts",
            policies="shared",
            method="grpo",
            max_steps=1,
            tasks_per_step=2,
            num_generations=3,
            eval_steps=0,
            eval_tasks=0,
            output_dir=str(run),
        )
        rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        (step,) = (row for row in rows if "num_tokens" in row)
        return step, sum(tokens)

    monkeypatch.setattr(packing, "hidden_states", counting)
    shared, computed = trained(tmp_path / "shared")
    monkeypatch.setattr(packing, "earlier_turns", lambda _: {})
    separate, computed_apart = trained(tmp_path / "separate")
    # In each of six episodes the second turn goes on from the first, and the third from another reply.
    assert shared["conversation/continued"] == 6 + 6
    assert 6 <= shared["conversation/broken"] < 6 + 6
    assert computed < 0.7 * computed_apart
    for name in ("loss", "grad_norm", "entropy"):
        assert shared[f"shared/{name}"] == pytest.approx(separate[f"shared/{name}"], rel=1e-4)


# Copies


def test_only_a_second_reply_to_a_state_runs_the_program_again() -> None:
    env = started(relay)
    assert env.replays.runs == 0
    twins = env.branch(["a", "b", "c"])
    assert (env.replays.runs, env.replays.calls) == (2, 0)
    assert [twin.text_for("reader_0") for twin in twins] == ["read a", "read b", "read c"]
    ends = [right for twin in twins for right in twin.branch(["4", "5"])]
    assert [end.rewards["reader_0"] for end in ends] == [1.0, 0.0] * 3
    assert (env.replays.runs, env.replays.calls) == (5, 3)
    assert env.replays.seconds > 0


def test_a_snapshot_travels_to_another_process_and_goes_on_there() -> None:
    env = played(started(relay), "note")
    snapshot = pickle.loads(pickle.dumps(env.snapshot()))
    other = program_env(relay, roles=ROLES)
    other.restore(snapshot)
    assert played(other, "4").rewards["reader_0"] == 1.0


_CALLS = st.lists(st.tuples(st.sampled_from(ROLES), st.text(max_size=3)), min_size=1, max_size=5)


@settings(max_examples=15, deadline=None)
@given(_CALLS, st.data())
def test_replays_come_to_the_place_where_the_episode_is(calls: Any, data: st.DataObject) -> None:
    def solve(task: int, base_url: str) -> float:
        answer = ""
        for role, text in calls:
            answer = asked(base_url, role, user(f"{text}{answer}"))["content"]
        return len(answer)

    env = started(solve, settle=0)
    for (role, text), following in itertools.pairwise([*calls, None]):
        shown = env.text_for(f"{role}_0")
        assert shown.startswith(text)
        reply = data.draw(st.text(max_size=3))
        one, two = env.branch([reply, f"{reply}x"])
        if following is not None:
            assert two.text_for(two.agent_selection) == f"{following[1]}{reply}x"
        env = one
    assert env.rewards[f"{calls[-1][0]}_0"] == len(reply)


def test_a_program_that_asks_something_else_when_it_runs_again_is_named() -> None:
    clock = itertools.count()

    def solve(task: int, base_url: str) -> float:
        asked(base_url, "writer", user("write"))
        asked(base_url, "reader", user(f"it is {next(clock)} o'clock"))
        return 1.0

    env = played(started(solve, settle=0), "a")
    with pytest.raises(
        CloneError, match=r"messages\[0\].content was .it is 0 .* is .it is 1 .*grpo"
    ):
        env.branch(["b", "c"])


def test_a_program_that_ends_earlier_when_it_runs_again_is_named() -> None:
    runs = itertools.count()

    def solve(task: int, base_url: str) -> float:
        asked(base_url, "writer", user("write"))
        if next(runs) == 0:
            asked(base_url, "reader", user("read"))
        return 1.0

    env = played(started(solve), "a")
    with pytest.raises(CloneError, match="ended before it asked reader"):
        env.branch(["b", "c"])


def test_programs_with_side_effects_are_not_run_again() -> None:
    env = started(relay, replay=False)
    with pytest.raises(ConfigError, match="whole episodes"):
        env.branch(["a", "b"])


# Parallel calls


def together(task: int, base_url: str) -> float:
    def ask(number: int) -> str:
        time.sleep(0.001 * ((number * 7) % 3))
        role = ROLES[number % 2]
        return asked(base_url, role, user(f"part {number // 3}"))["content"]

    with ThreadPoolExecutor(6) as pool:
        return float("".join(pool.map(ask, range(6))) != "")


def test_calls_that_wait_together_have_one_order_and_are_replayed() -> None:
    orders = set()
    for _ in range(2):
        env, order = started(together, settle=0.15), []
        while not any(env.terminations.values()):
            order.append((env.agent_selection, env.text_for(env.agent_selection)))
            env = env.branch(["same", f"{len(order)}"])[1]
        orders.add(tuple(order))
    assert len(orders) == 1
    assert [agent for agent, _ in order] == ["writer_0"] * 3 + ["reader_0"] * 3


def test_overlapping_calls_of_a_program_that_was_said_to_have_none_are_an_error() -> None:
    def begun() -> Any:
        env = started(together, settle=0)
        threading.Event().wait(0.2)  # until the others have come, too
        return env

    with pytest.raises(ConfigError, match="settle"):
        played(begun(), "a", "b", "c")


def equal(task: int, base_url: str) -> float:
    async def main() -> list[str]:
        client = AsyncOpenAI(base_url=base_url, api_key="local", timeout=60)
        messages: Any = user("?")
        calls = [client.chat.completions.create(model="writer", messages=messages) for _ in "123"]
        return [str(reply.choices[0].message.content) for reply in await asyncio.gather(*calls)]

    return float(asked(base_url, "reader", user(",".join(asyncio.run(main()))))["content"])


@pytest.mark.slow
def test_equal_calls_at_the_same_time_are_replayed_as_they_were_answered() -> None:
    for seed in range(12):
        env = started(equal, seed=seed)
        for reply in "abc":
            env = env.branch([reply, f"{reply}!"])[seed % 2]
        # Which of them had which reply is the client's affair; a replay has what the episode had.
        replies = env.text_for("reader_0").replace("!", "").split(",")
        assert sorted(replies) == ["a", "b", "c"]
        assert [copy.rewards["reader_0"] for copy in env.branch(["1", "2"])] == [1.0, 2.0]


def test_the_time_of_a_replay_is_counted_from_call_to_call() -> None:
    def slow(task: int, base_url: str) -> float:
        for _ in range(4):
            asked(base_url, "writer", user("?"))
            time.sleep(0.3)
        return 1.0

    env = played(started(slow, seconds=0.8), "a", "b", "c")
    for copy in env.branch(["d", "e"]):
        assert copy.rewards["writer_0"] == 1.0


def test_a_program_that_changes_its_task_changes_it_for_itself(tmp_path: Path) -> None:
    def solve(task: Any, base_url: str) -> float:
        asked(base_url, "writer", user(f"{task.pop('question')} {task['seen']}"))
        task["seen"].append(1)
        return 1.0

    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({"question": "?", "seen": []}))
    env = program_env(solve, dataset=file)
    for _ in range(2):
        env.reset(seed=0)
        assert env.text_for("writer_0") == "? []"
        env.step("x")


# Failures


def unreachable(task: int) -> None:
    def solve() -> None:
        client: Any = OpenAI(base_url="http://127.0.0.1:1/v1", api_key="local", max_retries=0)
        client.chat.completions.create(model="writer", messages=user("?"))

    solve()


def test_a_function_that_takes_any_argument_gets_all() -> None:
    def solve(task: int, **given: Any) -> float:
        text = asked(given["base_url"], "writer", user("?"))["content"]
        return float(text) if given.keys() == {"base_url", "api_key", "seed", "pay"} else 0.0

    assert played(started(solve), "1").infos["writer_0"]["team_reward"] == 1.0


def test_numbers_of_numpy_are_rewards() -> None:
    for result, team in ((np.int64(1), 1.0), (np.float32(0.5), 0.5), (np.True_, 1.0)):

        def solve(task: int, base_url: str, result: Any = result) -> Any:
            asked(base_url, "writer", user("?"))
            return result

        assert played(started(solve), "x").infos["writer_0"]["team_reward"] == team


def test_a_failure_while_roles_are_looked_for_says_what_to_name(caplog: Any) -> None:
    def solve(task: int, base_url: str) -> float:
        plan = asked(base_url, "writer", user("plan"))["content"].split()[0]
        return float(asked(base_url, "reader", user(plan))["content"])

    env = program_env(solve)
    assert "asked writer and ended with IndexError" in caplog.text
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=r"no role 'reader' .*--env-args.roles"):
        env.step("x")

    def waits(task: int, base_url: str) -> None:
        asked(base_url, "writer", user("plan"))
        threading.Event().wait(0.5)

    with pytest.raises(ConfigError, match="asked writer, and then: neither"):
        program_env(waits, seconds=0.1)


def test_what_fails_before_any_reply_is_an_error_with_the_programs_traceback() -> None:
    def broken(task: int) -> float:
        raise RuntimeError("no key")

    with pytest.raises(ConfigError, match=r"no key; .* api_key .*\n[\s\S]*RuntimeError: no key"):
        started(broken)
    with pytest.raises(ConfigError, match="does its client use base_url"):
        started(lambda task: 1.0)
    with pytest.raises(ConfigError, match="the function yields"):
        started(lambda task: (yield))
    with pytest.raises(ConfigError, match=r"in solve\n.*client.chat"):
        started(unreachable)
    with pytest.raises(ConfigError, match="asks no model"):
        started(lambda task: [threading.Event().wait(0.02) for _ in range(99)], seconds=0.05)


def test_what_fails_after_a_reply_ends_the_episode_without_a_reward() -> None:
    def solve(task: int, base_url: str) -> float:
        answer = asked(base_url, "writer", user("number?"))["content"]
        while answer == "wait":
            threading.Event().wait(0.01)
        return 1 / int(answer)

    for reply, error in (("x", "ValueError"), ("0", "ZeroDivisionError"), ("wait", "hang: ")):
        env = played(started(solve, seconds=0.3), reply)
        assert env.rewards["writer_0"] == 0.0
        assert env.infos["writer_0"]["parse_error"].startswith(error)
        assert all(env.terminations.values())


def test_a_loop_that_swallows_every_error_is_truncated() -> None:
    def solve(task: int, base_url: str) -> float:
        while True:
            try:
                asked(base_url, "writer", user("again"))
            except Answered as error:
                if error.args[0] == 410:
                    raise

    env = played(started(solve, max_turns=3), "a", "b", "c")
    assert all(env.truncations.values())


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("well", "a reward is a number, or a mapping"),
        (None, "returned None"),
        ({"teem": 1.0}, "an entry 'teem'"),
        (float("nan"), "finite number"),
        ({"team": "1"}, "finite number"),
        (10**400, "finite number"),
        ({"team": 1.0, "success": "no"}, "success 'no'; it is true or false"),
    ],
)
def test_what_is_no_reward_is_refused(result: Any, why: str) -> None:
    def solve(task: int, base_url: str) -> Any:
        asked(base_url, "writer", user("?"))
        return result

    with pytest.raises(ConfigError, match=why):
        played(started(solve), "!")


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"role": "wrter", "messages": user("?")}, "did you mean 'writer'"),
        (
            {"role": "writer", "messages": user("?"), "logprobs": True},
            "'logprobs' is not supported",
        ),
        ({"role": "writer", "messages": user("?"), "n": 2}, "n=2 is not supported"),
        ({"role": "writer", "messages": user("?"), "tools": [{}]}, "tools must be a list"),
        (
            {"role": "writer", "messages": user("?"), "stop": ["", 1]},
            "stop must be a text or a list",
        ),
        ({"role": "writer", "messages": []}, "messages are missing"),
        ({"role": "writer", "messages": [{"role": "king", "content": "?"}]}, "'king'"),
        (
            {"role": "writer", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "no text",
        ),
    ],
)
def test_a_request_that_cannot_be_answered_ends_the_run_also_if_the_program_swallows_it(
    request_: Any, why: str
) -> None:
    def solve(task: int, base_url: str) -> float:
        with contextlib.suppress(Answered):
            asked(base_url, **request_)
        asked(base_url, "writer", user("instead"))
        return 1.0

    with pytest.raises(ConfigError, match=why):
        started(solve)


def test_a_client_that_asks_again_after_its_timeout_is_the_same_decision() -> None:
    def solve(task: int, base_url: str) -> float:
        with pytest.raises(TimeoutError):
            sent(f"{base_url}/chat/completions", QUESTION, timeout=0.05)
        return float(asked(base_url, "writer", user("?"))["content"] == "once")

    env = started(solve)
    threading.Event().wait(0.3)  # the client's timeout
    assert played(env, "once").rewards["writer_0"] == 1.0


def test_a_client_that_did_not_wait_is_told_to_wait_longer() -> None:
    def solve(task: int, base_url: str) -> float:
        with pytest.raises(TimeoutError):
            sent(f"{base_url}/chat/completions", QUESTION, timeout=0.05)
        left.set()
        answered.wait(5)
        return 1.0

    left, answered = threading.Event(), threading.Event()
    env = started(solve)
    left.wait(5)
    threading.Timer(0.1, answered.set).start()
    with pytest.raises(ConfigError, match="longer timeout"):
        env.step("too late")


def test_a_request_that_its_program_gave_up_is_named_also_once_its_connection_is_closed() -> None:
    def unread(base_url: str) -> None:
        with pytest.raises(Answered, match="over"):
            asked(base_url, "reader", user("?"))

    def solve(task: int, base_url: str) -> float:
        threads.append(threading.Thread(target=unread, args=[base_url]))
        threads[0].start()
        asked(base_url, "writer", user("?"))
        over.wait(5)
        return 1.0

    threads, over = list[threading.Thread](), threading.Event()
    env = played(started(solve, settle=0.2), "first")
    over.set()
    threads[0].join(5)
    threading.Event().wait(0.1)  # until the server has closed its side, too
    with pytest.raises(
        ConfigError, match="no longer waited when reader replied: cancel no request"
    ):
        env.step("too late")


def test_a_program_that_moves_all_episodes_to_another_folder_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def solve(task: int, base_url: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            asked(base_url, "writer", user("?"))
        return 1.0

    with pytest.raises(ConfigError, match="changed the working directory of all episodes"):
        started(solve)
    assert Path.cwd() == tmp_path


def test_a_proxy_of_the_network_is_not_asked_for_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_run, "_fronts", {})
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "intra.net")
    monkeypatch.setenv("no_proxy", "intra.net")

    def solve(task: int, base_url: str) -> float:
        client: Any = OpenAI(base_url=base_url, api_key="local", max_retries=0)
        client.chat.completions.create(model="writer", messages=user("?"))
        return 1.0

    assert played(started(solve), "!").rewards["writer_0"] == 1.0
    assert os.environ["no_proxy"] == "127.0.0.1,intra.net"


@pytest.mark.slow
def test_runs_that_are_forgotten_leave_no_thread() -> None:
    before = {*threading.enumerate()}
    for _ in range(3):
        played(started(relay), "a")
        started(relay).branch(["a", "b", "c"])
    gc.collect()
    threads = [t for t in threading.enumerate() if t not in before and t.name == "program"]
    for thread in threads:
        thread.join(9)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/embeddings", {}, 404),
        ("/chat/completions", "no object", 400),
        ("/pay", {"tea": 1}, 400),
        ("..x/v1/models", None, 410),
    ],
)
def test_wrong_paths_and_bodies_are_refused_in_json(path: str, body: Any, status: int) -> None:
    def solve(task: int, base_url: str) -> float:
        asked(base_url, "writer", user(base_url))
        return 1.0

    env = started(
        solve
    )  # kept: an environment that nobody holds ends its program, and then all is 410
    base_url = env.text_for("writer_0")
    with pytest.raises(Answered) as refused:
        sent(base_url.replace("/v1", path[2:]) if path.startswith("..") else base_url + path, body)
    assert refused.value.args[0] == status
    assert refused.value.args[1]


def test_a_path_that_is_not_served_is_named_whatever_the_client_makes_of_the_answer() -> None:
    def solve(task: int, base_url: str, first: str = "no") -> float:
        if first != "no":
            asked(base_url, "writer", user("?"))
        with contextlib.suppress(Answered):
            sent(f"{base_url}/embeddings", {})
        raise RuntimeError("404")

    with pytest.raises(ConfigError, match="first call: POST /embeddings is not served here"):
        started(solve)
    env = played(started(partial(solve, first="yes")), "!")
    assert env.infos["writer_0"]["parse_error"].startswith("POST /embeddings is not served here")


def test_a_program_that_has_paid_need_not_return_a_reward() -> None:
    def solve(task: int, base_url: str, pay: Any) -> None:
        asked(base_url, "writer", user("?"))
        pay(team=0.5)

    assert played(started(solve), "!").rewards["writer_0"] == 0.5


@pytest.mark.parametrize(
    ("paid", "why"),
    [({"role": ["writer"]}, r"pays the role \['writer'\]"), ({"team": "1"}, "finite")],
)
def test_a_payment_that_cannot_be_paid_is_named(paid: Any, why: str) -> None:
    def solve(task: int, base_url: str) -> None:
        asked(base_url, "writer", user("?"))
        sent(f"{base_url}/pay", paid)

    with pytest.raises(ConfigError, match=why):
        played(started(solve), "!")


# Conversations and tools

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}


def test_a_conversation_with_tools_is_shown_and_its_calls_are_answered() -> None:
    def solve(task: int, base_url: str) -> float:
        messages = [{"role": "system", "content": "You add."}, *user("2 + 3?")]
        message = asked(base_url, "writer", messages, tools=[TOOL])
        [call] = message["tool_calls"]
        result = str(sum(json.loads(call["function"]["arguments"]).values()))
        told = {"role": "tool", "tool_call_id": call["id"], "content": result}
        return float(asked(base_url, "writer", [*messages, message, told])["content"] == "5")

    env = started(solve)
    shown = env.text_for("writer_0")
    assert isinstance(shown, Conversation)
    assert shown == "[tools] add\n\n[system] You add.\n\n[user] 2 + 3?"
    call = 'I add. <tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    played(env, call)
    again = pickle.loads(pickle.dumps(env.text_for("writer_0")))
    assert [message["role"] for message in again.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert played(env, "5").rewards["writer_0"] == 1.0


def test_tools_that_may_not_be_called_are_neither_shown_nor_read() -> None:
    def solve(task: int, base_url: str) -> float:
        message = asked(base_url, "writer", user("?"), tools=[TOOL], tool_choice="none")
        return float("tool_calls" not in message and message["content"] == call)

    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    env = started(solve)
    assert env.text_for("writer_0") == "?"
    assert played(env, call).rewards["writer_0"] == 1.0


def test_responses_are_the_same_decisions_as_chat_completions() -> None:
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}

    def solve(task: int, base_url: str) -> float:
        ask = OpenAI(base_url=base_url, api_key="local").responses.create
        items: list[Any] = user("2 + 3?")
        settings: Any = {"model": "writer", "instructions": "You add.", "tools": [tool]}
        first = ask(input=items, max_output_tokens=9, reasoning={"effort": "low"}, **settings)
        items += [item.model_dump() for item in first.output]
        call: Any = first.output[-1]
        result = str(sum(json.loads(call.arguments).values()))
        items += [{"type": "function_call_output", "call_id": call.call_id, "output": result}]
        return float(ask(input=items, **settings).output_text == "5")

    env = started(solve)
    assert env.text_for("writer_0") == "[tools] add\n\n[system] You add.\n\n[user] 2 + 3?"
    call = 'I add. <tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    env = env.branch([call, call])[1]
    assert [message["role"] for message in env.text_for("writer_0").messages] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert env.text_for("writer_0").messages[2]["content"] == "I add."
    assert played(env, "5").rewards["writer_0"] == 1.0


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"stream": True}, "'stream of a response' is not supported"),
        ({"previous_response_id": "resp_1"}, "'previous_response_id' is not supported"),
        ({"tools": [{"type": "web_search"}]}, "tools must be a list of functions"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference'"),
        ({"input": None}, "messages are missing"),
    ],
)
def test_what_responses_have_alone_is_refused_by_name(body: Any, why: str) -> None:
    def solve(task: int, base_url: str) -> float:
        with contextlib.suppress(Answered):
            sent(f"{base_url}/responses", {"model": "writer", "input": "?", **body})
        return 1.0

    with pytest.raises(ConfigError, match=why):
        started(solve)


@pytest.mark.parametrize("options", [{"include_usage": True}, ["no", "object"], None])
def test_a_stream_has_the_reply_in_one_piece(options: Any) -> None:
    def solve(task: int, base_url: str) -> float:
        body = QUESTION | {"stream": True, "stream_options": options}
        stream = sent(f"{base_url}/chat/completions", body).decode()
        lines = [line[6:] for line in stream.splitlines() if line]
        assert lines.pop() == "[DONE]"
        first, second, *rest = map(json.loads, lines)
        assert second["choices"][0]["finish_reason"] == "stop"
        assert ["usage" in last for last in rest] == [True] * isinstance(options, dict)
        return float(first["choices"][0]["delta"]["content"] == "whole")

    assert played(started(solve), "whole").rewards["writer_0"] == 1.0


@pytest.mark.parametrize(
    ("text", "left", "calls"),
    [
        ("no call", "no call", []),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", {})]),
        ('a <tool_call>\n{"name": "f", "arguments": {"x": [1]}}', "a", [("f", {"x": [1]})]),
        ('{"name": "f", "parameters": {"x": 1}}', "", [("f", {"x": 1})]),
        ('<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', None, []),
        ('<tool_call>{"name": 3}</tool_call>', None, []),
        ("<tool_call>[1]</tool_call>", None, []),
        ('<tool_call>{"name": "f"} and more</tool_call>', None, []),
        ("<tool_call>" + "[" * 3000 + "</tool_call>", None, []),
    ],
)
def test_calls_are_read_and_what_is_malformed_stays_text(text: str, left: Any, calls: Any) -> None:
    assert read_calls(text) == (text if left is None else left, calls)


@given(st.text(alphabet='<tool_call>/{"name": "f"}[] ', max_size=60))
def test_no_reply_raises_where_calls_are_read(text: str) -> None:
    left, calls = read_calls(text * 3)
    assert calls or left == text * 3
    many = '<tool_call>{"name": "f"}</tool_call>' * (MOST_CALLS + 2)
    assert len(read_calls(many)[1]) == MOST_CALLS


@given(
    st.dictionaries(st.sampled_from(["temperature", "seed", "user", "max_tokens"]), st.integers())
)
def test_a_decision_is_the_same_whatever_the_client_says_of_sampling(more: Any) -> None:
    body = {"messages": user("?"), "model": "writer", "tools": [TOOL]}
    turned = dict(reversed([*(body | more).items()]))
    assert ChatCall.of(turned, ROLES).digest == ChatCall.of(body, ROLES).digest
    with pytest.raises(NotServed):
        ChatCall.of(body | {"logit_bias": {"1": 1}}, ROLES)


def test_settings_of_sampling_that_are_ignored_are_said_once(caplog: Any) -> None:
    program_calls._warn_of.cache_clear()
    for _ in range(2):
        ChatCall.of(
            QUESTION | {"temperature": 0, "max_tokens": 5, "top_p": None, "user": "me"}, ROLES
        )
    assert caplog.text.count("the program sends max_tokens, temperature, ignored here") == 1


def test_trees_that_compare_what_is_paid_at_once_are_refused_where_a_program_pays_at_its_end() -> (
    None
):
    for pays, missing in (("late", ["early_rewards"]), ("early", [])):
        env = program_env(relay, roles=ROLES, pays=pays)
        assert lacking(METHODS.load("at_grpo").needs, env) == missing
        assert lacking(METHODS.load("look_ahead").needs, env) == []
