"""What the viewer reads: folders, the index of large files, answers; and the command around it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pettingllms.cli import view
from pettingllms.errors import ConfigError, UnknownNameError
from pettingllms.evaluation.scores import scores_by_task
from pettingllms.rollout.files import METRICS, TRAJECTORIES, CandidateRow, DecisionRow, EpisodeRow
from pettingllms.rollout.trajectory import Overlong, success_rate
from pettingllms.statistics import paired_difference
from pettingllms.viewer.episodes import EpisodeIndex, encoded, facts, parsed, shown
from pettingllms.viewer.folders import checked, sources_in
from pettingllms.viewer.library import Library
from tests.viewer_runs import (
    HOSTILE,
    add_step,
    candidate,
    episode,
    eval_folder,
    lines,
    run_folder,
)

ROOT = Path(__file__).parents[1]


def opened(path: Path) -> Any:
    return lambda: path.open("rb") if path.exists() else None


def indexed(path: Path) -> EpisodeIndex:
    index = EpisodeIndex(opened(path))
    index.refresh()
    return index


def about(index: EpisodeIndex) -> list[tuple[Any, ...]]:
    return [tuple(entry) for label in index.labels for entry in index.entries(label)]


# The format


def test_the_records_have_the_keys_that_are_written() -> None:
    row = json.loads(lines([episode("t", [["a", "b"]])], step=1))
    optional = {
        "team",
        "early",
        "overlong",
        "came_from",
        "later",
        "credited",
        "unplayed",
        "refused",
        "size",
        "without",
    }
    assert set(row) == set(EpisodeRow.__annotations__) - optional
    assert list(row)[-1] == "decisions"  # readers rely on it
    decision = row["decisions"][0]
    assert set(decision) == set(DecisionRow.__annotations__) - optional
    assert set(decision["candidates"][0]) == set(CandidateRow.__annotations__) - optional


def test_the_page_gets_everything_but_token_ids() -> None:
    row = json.loads(lines([episode("t", [["a", "bc"]])], step=1))
    kept = shown(row)
    assert {**kept, "decisions": 0} == {**row, "decisions": 0}
    decision, written = kept["decisions"][0], row["decisions"][0]
    assert decision["prompt_tokens"] == len(written["prompt_ids"])
    assert [reply["tokens"] for reply in decision["candidates"]] == [1, 2]
    assert "token_ids" not in encoded(kept).decode()
    assert decision["candidates"][1]["logprob"] == -1.0


def test_facts_say_what_the_table_filters_by() -> None:
    best = candidate("b", reward=1.0, chosen=True, info={"statuses": ["ok", "timeout", "ok"]})
    worst = candidate("a", reward=0.0, info={"parse_error": "no program", "statuses": "odd"})
    made = episode("t", [["x"]])
    row: Any = json.loads(lines([made], step=1))
    from dataclasses import replace

    row["decisions"] = json.loads(
        lines([replace(made, groups=(replace(made.groups[0], candidates=(worst, best)),))])
    )["decisions"]
    (group,) = facts(row)["groups"]
    assert group["statuses"] == {"ok": 2, "timeout": 1}
    assert (group["low"], group["high"], group["chosen"]) == (0.0, 1.0, 1.0)
    assert (group["unread"], group["solved"], group["width"], group["flat"]) == (1, 1, 2, False)


def test_every_number_of_the_page_is_in_its_answers(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "runs" / "one", steps=0, alpha=2.0)
    trees = [episode("t:0", [["a", "b", "c", "d"], ["e", "f"]])]
    whole = [episode("t:1", [["x"], ["y"]], index=n) for n in range(2)]
    rows = [json.loads(line) for line in lines([*trees, *whole], step=1).splitlines()]
    rows[0]["decisions"][0]["candidates"][1]["advantage"] = [0.5, 1.0, 0.0]
    rows[0]["decisions"][0]["candidates"][0]["later"] = {"reward": 1.0, "tokens": 4}
    rows[0]["decisions"][0]["candidates"][3]["reward"] = 2.0 * 1.0 + 0.0
    (run / TRAJECTORIES).write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    times = {"kind": "train", "step": 1, "time/step": 4.0, "time/sample": 3.0}
    (run / METRICS).write_bytes(json.dumps(times).encode() + b"\n")
    library = Library([tmp_path / "runs"])
    [source] = library.sources()
    tree, one, _ = library.facts(source, "1", 0)["rows"]
    assert tree["rewards"]["coder"] == {"mean": 2.0, "low": 0.25, "high": 2.0, "wide": True}
    assert (tree["flat"], one["flat"], one["rewards"]["tester"]["wide"]) == (False, True, False)
    page = library.episode(source, 1)
    first, second = page["row"]["decisions"]
    assert first["compared"] == {
        "values": [1.25, 0.5, 0.75, 2.0], "low": 0.5, "high": 2.0, "mean": 1.125, "flat": False,
        "deviation": pytest.approx(0.6614378),
    }  # fmt: skip
    assert second["compared"]["deviation"] == pytest.approx(0.5 / 2**0.5)
    candidates = first["candidates"]
    assert candidates[1]["advantage_mean"] == 0.5
    assert candidates[1]["logprob_per_token"] == -0.5
    assert [reply["alpha"] for reply in candidates] == [2.0, 2.0, 2.0, 2.0]
    assert library.episode(source, 2)["compared"]["flat"]
    assert library.metrics(source, 0)["rows"][0]["time_share/sample"] == 0.75
    [label] = library.labels(source)["labels"]
    assert label == {"label": "1", "episodes": 3, "said": 3, "solved": 3, "share": 1.0}


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_any_text_reaches_the_page_as_it_was_written(text: str) -> None:
    row = parsed(lines([episode("t", [[text]], prompt=text)], step=1))
    sent = json.loads(encoded(shown(row)))
    assert sent["decisions"][0]["candidates"][0]["completion"] == text
    assert sent["decisions"][0]["prompt"] == text


def test_numbers_that_json_does_not_know_are_null() -> None:
    assert encoded({"a": [float("nan"), float("inf"), 1.0]}) == b'{"a":[null,null,1.0]}'


# The index


def test_an_index_knows_every_line_by_its_step(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run", steps=3) / TRAJECTORIES
    index = indexed(path)
    assert index.labels == ["1", "2", "3"]
    assert [entry.success for entry in index.entries("2")] == [True, True]
    content = path.read_bytes().split(b"\n")
    for label in index.labels:
        for entry in index.entries(label):
            assert index.text(entry).rstrip(b"\n") == content[entry.line - 1]
            assert json.loads(index.text(entry))["task"] == entry.task
    assert index.entry(3) is not None
    assert index.entry(7) is None


def test_a_growing_file_is_indexed_from_where_it_was(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run", steps=1) / TRAJECTORIES
    index = indexed(path)
    add_step(path.parent, 2)
    half = lines([episode("late", [["x"]])], step=3)
    with path.open("ab") as file:
        file.write(half[:50])
    index.refresh()
    assert index.labels == ["1", "2"]
    assert index.broken == {}
    with path.open("ab") as file:
        file.write(half[50:])
    index.refresh()
    assert index.labels == ["1", "2", "3"]
    assert about(index) == about(indexed(path))


def head(**changed: Any) -> bytes:
    """The line of an episode with other values."""
    row = json.loads(lines([episode("t", [["x"]])], step=1))
    return json.dumps(changed | {k: v for k, v in row.items() if k not in changed}).encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{broken", "Expecting"),
        (b"[1, 2]", "list"),
        (b'{"format": 99, "step": 1, "decisions": []}', "format 99"),
        (b'{"format": 1, "step": 1, "decisions": []}', "no 'success'"),
        (b'{"format": 1, "success": 7, "decisions": []}', "success is 7"),
        (b"[" * 100_000, "recursion"),
        (b'{"\xff": 1}', "codec"),
        (b"", "Expecting"),
        (head(success=1), "success is 1"),
        (head(episode=1e999), "infinity"),
        (head(returns={"a": 10**400}), "too large"),
        (head(returns={"a": 1e999}), "the returns are inf"),
        (head(returns={"a": math.nan}), "the returns are nan"),
        (head(returns={"a": 1e308, "b": 1e308}), "the returns are inf"),
    ],
    ids=range(14),
)
def test_a_broken_line_is_named_and_skipped(tmp_path: Path, line: bytes, reason: str) -> None:
    path = run_folder(tmp_path / "run", steps=1) / TRAJECTORIES
    good = path.read_bytes().split(b"\n")[0]
    path.write_bytes(b"\n".join([good, line, good, b""]))
    index = indexed(path)
    assert [entry.line for entry in index.entries("1")] == [1, 3]
    assert list(index.broken) == [2]
    assert reason in index.broken[2]


def test_a_line_that_is_broken_inside_is_named_when_it_is_read(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "runs" / "one", steps=1)
    content = (run / TRAJECTORIES).read_bytes().replace(b'"role": "tester"', b'"role" "tester"', 1)
    (run / TRAJECTORIES).write_bytes(content)
    library = Library([tmp_path / "runs"])
    source = library.source("runs/one")
    answer = library.facts(source, "1", 0)
    assert [row["line"] for row in answer["rows"]] == [2]
    assert answer["broken"][0][0] == 1
    with pytest.raises(ConfigError, match=r"line 1 of trajectories\.jsonl is broken"):
        library.episode(source, 1)


DROPPED = object()


@pytest.mark.parametrize(
    "wrong",
    [DROPPED, None, 10**400, "x", [[]], {"a": None}, math.nan, 1e308],
    ids=range(8),
)
def test_what_a_page_reads_is_there_or_the_line_is_named(tmp_path: Path, wrong: Any) -> None:
    run = run_folder(tmp_path / "runs" / "one", steps=1)
    good = (run / TRAJECTORIES).read_bytes().split(b"\n")[0]
    library = Library([tmp_path / "runs"])
    [source] = library.sources()
    needed = {"prompt", "completion", "team_reward", "local_reward", "reward", "token_ids", "info"}
    for place in range(3):
        for key in list(part(json.loads(good), place)):
            row = json.loads(good)
            changed = part(row, place)
            changed[key] = wrong
            if wrong is DROPPED:
                del changed[key]
            (run / TRAJECTORIES).write_bytes(json.dumps(row).encode() + b"\n" + good + b"\n")
            answers = library.labels(source), library.facts(source, "1", 0)
            found = library.search(source, "1", "print", 0)
            assert 2 in [row["line"] for row in answers[1]["rows"]], key
            assert 2 in found["rows"], key
            assert all(map(encoded, [*answers, found, library.listed(), library.tasks(source)]))
            named = [line for answer in answers for line, _ in answer["broken"]]
            if wrong is DROPPED and key in needed:
                assert named == [1], key
            if 1 not in named and 1 in [row["line"] for row in answers[1]["rows"]]:
                assert encoded(library.episode(source, 1))


def part(row: Any, place: int) -> dict[str, Any]:
    """An episode, its first decision, or that one's first candidate."""
    inside = [row, row["decisions"][0], row["decisions"][0]["candidates"][0]]
    found: dict[str, Any] = inside[place]
    return found


@pytest.mark.parametrize(
    "line",
    [
        {"time/step": 0.5, "time/x": 10**400},
        [["time/step", 1], [5, 6]],
    ],
)
def test_a_row_of_metrics_that_cannot_be_shown_is_named(tmp_path: Path, line: Any) -> None:
    run = run_folder(tmp_path / "run", steps=1)
    with (run / METRICS).open("a") as file:
        file.write(json.dumps(line) + "\n")
    library = Library([run])
    answer = library.metrics(library.sources()[0], 0)
    assert [row["step"] for row in answer["rows"]] == [1]
    assert [number for number, _ in answer["broken"]] == [2]


@pytest.mark.parametrize("weight", [2, 1e999, 10**400, "x", None], ids=range(5))
def test_the_weight_of_a_reward_may_be_anything(tmp_path: Path, weight: Any) -> None:
    run = run_folder(tmp_path / "run", steps=1, alpha=weight)
    row = json.loads((run / TRAJECTORIES).read_bytes().split(b"\n")[0])
    part(row, 2)["team_reward"] = 10**308
    (run / TRAJECTORIES).write_text(json.dumps(row) + "\n")
    library = Library([run])
    assert encoded(library.episode(library.sources()[0], 1))


def test_what_was_read_can_be_answered_however_deep_it_is() -> None:
    deep = json.loads("[" * 600 + "NaN, 1e999" + "]" * 600)
    assert encoded(deep) == b"[" * 600 + b"null,null" + b"]" * 600


@pytest.mark.parametrize("damage", ["other", "shorter", "longer"])
def test_an_index_starts_again_when_the_file_is_another_one(tmp_path: Path, damage: str) -> None:
    path = run_folder(tmp_path / "run", steps=3) / TRAJECTORIES
    index = indexed(path)
    if damage == "shorter":
        os.truncate(path, path.read_bytes().index(b"\n") + 1)
    else:
        count = 4 if damage == "other" else 400
        path.write_bytes(lines([episode("other", [["x"]])] * count, step=9))
    index.refresh()
    assert about(index) == about(indexed(path))


# Folders


def test_runs_and_evaluations_are_found_below_a_folder(tmp_path: Path) -> None:
    run_folder(tmp_path / "runs" / "one")
    run_folder(tmp_path / "runs" / "paper" / "arm" / "two")
    eval_folder(tmp_path / "runs" / "one_eval" / "coding")
    (tmp_path / "runs" / "latest").symlink_to("one")
    (tmp_path / "runs" / "notes").mkdir()
    kinds = {source.name: source.kind for source in sources_in([tmp_path / "runs"])}
    assert kinds == {
        "runs/one": "run",
        "runs/paper/arm/two": "run",
        "runs/one_eval/coding": "eval",
    }
    # A path that was named may be a link.
    assert [s.name for s in sources_in([tmp_path / "runs" / "latest"])] == ["runs/one"]


def test_equal_names_are_told_apart(tmp_path: Path) -> None:
    for place in ("a", "b"):
        run_folder(tmp_path / place / "runs" / "one")
    names = [s.name for s in sources_in([tmp_path / "a" / "runs", tmp_path / "b" / "runs"])]
    assert names == ["runs/one", "runs/one#2"]


def test_a_folder_may_have_the_name_that_another_would_be_given(tmp_path: Path) -> None:
    for place in ("a/runs/x", "a/runs/x#2", "a/runs/x#3", "b/runs/x"):
        run_folder(tmp_path / place)
    names = [s.name for s in sources_in([tmp_path / "a" / "runs", tmp_path / "b" / "runs"])]
    assert sorted(names) == ["runs/x", "runs/x#2", "runs/x#3", "runs/x#4"]


@pytest.mark.parametrize("name", [TRAJECTORIES, METRICS, "config.yaml", "run.json"])
def test_nothing_outside_the_folders_is_read(tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(lines([episode("secret", [["secret"]])], step=1))
    run = run_folder(tmp_path / "runs" / "one")
    (run / name).unlink()
    (run / name).symlink_to(secret)
    library = Library([tmp_path / "runs"])
    (source,) = library.sources()
    everything = [
        library.listed(),
        library.metrics(source, 0),
        library.labels(source),
        library.facts(source, "1", 0),
        library.results(source),
    ]
    assert b"secret" not in encoded(everything)


def test_a_link_to_a_folder_and_a_pipe_are_not_followed(tmp_path: Path) -> None:
    run_folder(tmp_path / "elsewhere" / "two")
    run = run_folder(tmp_path / "runs" / "one")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    (run / METRICS).unlink()
    os.mkfifo(run / METRICS)
    library = Library([tmp_path / "runs"])
    (source,) = library.sources()
    assert library.metrics(source, 0)["rows"] == []
    # The folder itself is exchanged for a link while the viewer runs.
    run.rename(tmp_path / "moved")
    run.symlink_to(tmp_path / "moved")
    assert source.open(TRAJECTORIES) is None


def test_the_state_of_a_run_follows_from_its_files(tmp_path: Path) -> None:
    import fcntl

    run = run_folder(tmp_path / "runs" / "one")
    (source,) = sources_in([tmp_path / "runs"])
    for log in (METRICS, TRAJECTORIES):
        os.utime(run / log, (0, 0))
    assert source.state() == "interrupted"
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if Path("/proc/locks").exists():
            assert source.state() == "running"
    add_step(run, 3)
    assert source.state() == "running"
    (run / "summary.json").write_text("{}")
    assert source.state() == "finished"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["nowhere"], "'nowhere' is no folder"),
        (["rons"], "did you mean 'runs'"),
        (["empty"], "holds no run and no evaluation"),
        ([], "neither runs/ nor evals/ here"),
    ],
)
def test_a_path_without_a_run_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    if given == ["rons"]:
        run_folder(tmp_path / "runs" / "one")
    with pytest.raises(ConfigError, match=message):
        checked(given)


# Answers


def test_parts_of_an_answer_join_to_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_folder(tmp_path / "runs" / "one", steps=0)
    rows = [episode(f"t:{n}", [["a", "find me" if n % 3 == 0 else "b"]]) for n in range(20)]
    (run / TRAJECTORIES).write_bytes(lines(rows, step=1))
    (run / METRICS).write_bytes(b"")
    library = Library([tmp_path / "runs"])
    (source,) = library.sources()
    whole = library.facts(source, "1", 0)["rows"]
    monkeypatch.setattr("pettingllms.viewer.library.PART", 3000)
    for ask, expected in [
        (lambda after: library.facts(source, "1", after), whole),
        (
            lambda after: library.search(source, "1", "FIND", after),
            [n + 1 for n in range(0, 20, 3)],
        ),
    ]:
        joined, after, asked = [], 0, 0
        while after is not None:
            chunk = ask(after)
            joined += chunk["rows"]
            after, asked = chunk["next"], asked + 1
        assert joined == expected
        assert asked > 3


def test_metrics_are_read_from_where_they_were_read_to(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "runs" / "one", steps=2)
    library = Library([tmp_path / "runs"])
    (source,) = library.sources()
    first = library.metrics(source, 0)
    assert [row["step"] for row in first["rows"]] == [1, 2]
    add_step(run, 3)
    with (run / METRICS).open("ab") as file:
        file.write(b'{"half')
    then = library.metrics(source, first["next"])
    assert [row["step"] for row in then["rows"]] == [3]
    assert library.metrics(source, then["next"])["rows"] == []
    # Resuming cuts the log.
    os.truncate(run / METRICS, first["next"])
    again = library.metrics(source, then["next"])
    assert again["restarted"]
    assert [row["step"] for row in again["rows"]] == [1, 2]


def test_the_episodes_of_a_task_are_known_to_each_other(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "runs" / "one", steps=0)
    rows = [episode(f"t:{n // 4}", [["a"]], index=n % 4) for n in range(8)]
    (run / TRAJECTORIES).write_bytes(lines(rows, step=1))
    (run / METRICS).write_bytes(b"")
    library = Library([tmp_path / "runs"])
    (source,) = library.sources()
    assert [line for line, *_ in library.episode(source, 6)["beside"]] == [5, 6, 7, 8]
    with pytest.raises(UnknownNameError, match="line 99"):
        library.episode(source, 99)
    with pytest.raises(UnknownNameError, match="did you mean 'runs/one'"):
        library.source("runs/onee")


def test_the_viewer_writes_nothing_into_a_run(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "runs" / "one")
    before = {path: path.read_bytes() for path in run.rglob("*")}
    library = Library([tmp_path / "runs"])
    (source,) = library.sources()
    library.listed()
    library.labels(source)
    library.facts(source, "1", 0)
    assert {path: path.read_bytes() for path in run.rglob("*")} == before


# The command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "x"], "a port is a number"),
        (["--port", "70000"], "from 0 to 65535"),
        (["--steps", "1"], "--steps and --tasks need --export"),
        (["--tasks", "0", "--export", "x.html"], "1 or more"),
        (["--steps", "one", "--export", "x.html"], "steps are numbers"),
        (["--export", "x.html", "--port", "1"], "listens on no port"),
        (["--exprot", "x"], "did you mean '--export'"),
    ],
)
def test_a_wrong_option_is_one_clear_error(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        view.parse(words)


def test_viewing_needs_no_deep_learning_library_and_says_what_it_needs(tmp_path: Path) -> None:
    run_folder(tmp_path / "runs" / "one")
    missing = ["torch", "transformers", "trl", "peft", "datasets", "starlette"]
    program = f"""
import sys
for name in {missing}:
    sys.modules[name] = None
from pettingllms.cli.view import main
sys.exit(main({[str(tmp_path / "runs")]}))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == ("error: starlette is not installed; pip install 'pettingllms[serve]'\n")


def test_a_taken_port_is_an_error_only_where_it_was_asked_for() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"cannot listen on 127.0.0.1, port {port}: .*choose another --port"
        ):
            view._listening(port)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(view, "PORT", port)
            with view._listening(None) as other:
                assert other.getsockname()[1] != port


# Evaluations by task


def test_tasks_are_grouped_with_their_own_text_and_the_hardest_stand_first(tmp_path: Path) -> None:
    path = eval_folder(tmp_path / "evals" / "mine", teams=())
    text = "Read this.\\nTask {}\\nWrite a program.".replace("\\n", "\n")
    with (path / TRAJECTORIES).open("ab") as file:
        for team, solved in (("base", (4, 2, 0)), ("adapters", (4, 4, 1))):
            for task, most in enumerate(solved):
                for n in range(4):
                    # Of several replies the best succeeds, of one in vain there is none.
                    made = episode(f"t:{task}", [["x"]], index=n, prompt=text.format(task))
                    row = json.loads(lines([made], team=team)) | {"success": n < most}
                    file.write(json.dumps(row).encode() + b"\n")
    library = Library([tmp_path / "evals"])
    [source] = library.sources()
    tasks = library.tasks(source)["tasks"]
    assert [(row["task"], row["text"]) for row in tasks] == [
        ("t:2", "Task 2"), ("t:1", "Task 1"), ("t:0", "Task 0"),
    ]  # fmt: skip
    assert tasks[0]["teams"]["adapters"] | {"lines": 0} == {
        "episodes": 4, "said": 4, "solved": 1, "share": 0.25, "lines": 0,
    }  # fmt: skip
    pair = library.compare((source, "base"), (source, "adapters"))
    # 4 of 4, not the share of one.
    assert [(row["a"]["solved"], row["b"]["solved"], row["b"]["said"]) for row in pair["rows"]] == [
        (4, 4, 4), (2, 4, 4), (0, 1, 4),
    ]  # fmt: skip
    assert pair["counts"] == {"right": 2, "wrong": 0, "same": 1}
    expected = paired_difference([1.0, 0.5, 0.0], [1.0, 1.0, 0.25], share=True, seed=0)
    assert pair["difference"] == expected._asdict() | {"verdict": "not decided"}


def test_a_prompt_without_room_fails_as_in_the_results(tmp_path: Path) -> None:
    unread = Overlong("coder_0", 200, 100)
    whole = [episode(f"t:{task}", [["x"]]) for task in range(3)]
    cut = [whole[0], replace(whole[1], groups=(), overlong=unread), whole[2]]
    mute = [replace(made, groups=(), overlong=unread) for made in whole]
    path = eval_folder(tmp_path / "mine", teams=())
    teams = {"whole": whole, "cut": cut, "mute": mute}
    content = b"".join(lines(made, team=team) for team, made in teams.items())
    (path / TRAJECTORIES).write_bytes(content)
    library = Library([path])
    [source] = library.sources()
    for row in library.labels(source)["labels"]:
        scores = scores_by_task(teams[row["label"]]).values()
        said = [score["success"] for score in scores if "success" in score]
        assert (row["said"], row["solved"]) == (len(said), sum(said))
    [hardest, *_] = library.tasks(source)["tasks"]
    assert (hardest["task"], hardest["teams"]["cut"]["share"]) == ("t:1", 0.0)
    pair = library.compare((source, "whole"), (source, "cut"))
    assert pair["counts"] == {"right": 0, "wrong": 1, "same": 2}
    shown_rows = library.facts(source, "cut", 0)["rows"]
    assert [row["success"] for row in shown_rows] == [True, False, True]
    # The success of a training step leaves them out.
    run = run_folder(tmp_path / "run", steps=0)
    (run / TRAJECTORIES).write_bytes(lines(cut, step=1))
    trained = Library([run])
    [step] = trained.labels(trained.sources()[0])["labels"]
    assert step["share"] == success_rate(cut) == 1.0
    assert step["said"] == 2


def test_a_link_is_followed_once_and_not_when_the_next_run_begins(tmp_path: Path) -> None:
    run_folder(tmp_path / "runs" / "one")
    latest = tmp_path / "runs" / "latest"
    latest.symlink_to("one")
    library = Library([latest])
    latest.unlink()
    latest.symlink_to("two")  # which has nothing to show yet
    assert [source.name for source in library.sources()] == ["runs/one"]
