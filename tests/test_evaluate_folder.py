"""The folder of an evaluation: only whole chunks count, and only those of the same evaluation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from pettingllms.data.rows import digest
from pettingllms.errors import RunFolderError
from pettingllms.evaluation.folder import (
    EvalFolder,
    read_trajectories,
    revision,
    write_file,
)
from pettingllms.rollout.files import RESULTS, SETTINGS
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs import TRAJECTORIES
from pettingllms.types import Candidate, Completion, Group, GroupKey, Task

TASKS = [Task("test:0", 0), Task("test:1", 1), Task("test:2", 2)]
SETTINGS_OF = {"env": "quiz", "seed": 0, "temperature": 0.7}


def games(*tasks: Task, samples: tuple[int, ...] = (0,)) -> list[Trajectory]:
    info = {"success": True, "note": "ünïcode \u2028 \ud800"}
    completion = Completion((5, 6), (7,), (), "so", truncated=False, version=0)
    candidate = Candidate(completion, 1.5, 1.0, 0.5, chosen=True, info=info)
    return [
        Trajectory.of(
            task,
            n,
            [
                Group(
                    GroupKey(task.id, n, "judge_0", "judge", 0, 0, "0"),
                    "judge",
                    "why?",
                    (5, 6),
                    (candidate,),
                )
            ],
            early={},
            cooperative=True,
        )
        for n in samples
        for task in tasks
    ]


def begun(path: Path) -> bytes:
    """A folder with two chunks, of two tasks and of one."""
    with EvalFolder(path, SETTINGS_OF) as folder:
        folder.add("base", games(*TASKS[:2]))
        folder.add("base", games(TASKS[2]))
    return (path / TRAJECTORIES).read_bytes()


def test_finished_episodes_are_there_again(tmp_path: Path) -> None:
    begun(tmp_path)
    with EvalFolder(tmp_path, SETTINGS_OF) as folder:
        folder.expect(["base"], TASKS, 1)
        assert folder.take("base", TASKS[:2], [0]) == games(*TASKS[:2])
        assert folder.take("base", TASKS[2:], [0]) == games(TASKS[2])
        assert folder.take("base", TASKS, [1]) == []


@pytest.mark.parametrize("kept", [0, 1])
def test_a_chunk_that_is_not_whole_is_cut(tmp_path: Path, kept: int) -> None:
    whole = begun(tmp_path)
    lines = whole.splitlines(keepends=True)
    half = b"".join(lines[:kept]) + lines[kept][:40]
    (tmp_path / TRAJECTORIES).write_bytes(half)
    with EvalFolder(tmp_path, SETTINGS_OF) as folder:
        assert folder.take("base", TASKS[:2], [0]) == []
        assert (tmp_path / TRAJECTORIES).read_bytes() == b""
        folder.add("base", games(*TASKS[:2]))
        assert folder.take("base", TASKS[2:], [0]) == []
        folder.add("base", games(TASKS[2]))
    assert (tmp_path / TRAJECTORIES).read_bytes() == whole


def test_of_an_incomplete_chunk_nothing_stays_and_of_the_others_all(tmp_path: Path) -> None:
    lines = begun(tmp_path).splitlines(keepends=True)
    (tmp_path / TRAJECTORIES).write_bytes(lines[0] + lines[2])
    with EvalFolder(tmp_path, SETTINGS_OF) as folder:
        # What is added meanwhile stays, too.
        folder.add("other", games(TASKS[2]))
        added = (tmp_path / TRAJECTORIES).read_bytes().splitlines(keepends=True)[-1]
        assert folder.take("base", TASKS[:2], [0]) == []
        assert folder.take("base", TASKS[2:], [0]) == games(TASKS[2])
    assert (tmp_path / TRAJECTORIES).read_bytes() == lines[2] + added
    (tmp_path / TRAJECTORIES).write_bytes(lines[0] + lines[0])
    with pytest.raises(RunFolderError, match="damaged in line 2: an episode is there twice"):
        EvalFolder(tmp_path, SETTINGS_OF)


def test_more_samples_continue_a_finished_folder_and_fewer_are_refused(tmp_path: Path) -> None:
    sizes = SETTINGS_OF | {"tasks": len(TASKS)}
    few, more = sizes | {"samples": 1}, sizes | {"samples": 2}
    with EvalFolder(tmp_path, few) as folder:
        folder.add("base", games(*TASKS))
        folder.write(RESULTS, "{}")
    with pytest.raises(RunFolderError, match="temperature"):
        EvalFolder(tmp_path, more | {"temperature": 1.0})
    assert (tmp_path / RESULTS).exists()
    with EvalFolder(tmp_path, more) as folder:
        assert folder.head["settings"]["samples"] == 2
        assert folder.take("base", TASKS, [0]) == games(*TASKS)
        assert folder.take("base", TASKS, [1]) == []
    assert not (tmp_path / RESULTS).exists()  # unfinished again
    with pytest.raises(RunFolderError, match=r"samples 2, now it is 1"):
        EvalFolder(tmp_path, few)


def test_of_a_last_chunk_that_becomes_larger_nothing_stays_and_the_folder_stays_locked(
    tmp_path: Path,
) -> None:
    sizes = SETTINGS_OF | {"tasks": len(TASKS), "at_once": 64}
    with EvalFolder(tmp_path, sizes | {"samples": 3}) as folder:
        for team in ("adapters", "base"):
            for samples in ((0,), (1,), (2,)):  # the last is the first of 2 and 3
                folder.add(team, games(*TASKS, samples=samples))
        folder.write(RESULTS, "{}")
    with EvalFolder(tmp_path, sizes | {"samples": 4}) as folder:
        for team in ("adapters", "base"):
            assert folder.take(team, TASKS, [0]) == games(*TASKS)
            assert folder.take(team, TASKS, [1]) == games(*TASKS, samples=(1,))
            assert folder.take(team, TASKS, [2, 3]) == []
        with pytest.raises(RunFolderError, match="in use"):  # although the log is another file
            EvalFolder(tmp_path, sizes | {"samples": 4})
    assert len((tmp_path / TRAJECTORIES).read_bytes().splitlines()) == 2 * 2 * len(TASKS)


def test_whole_chunks_before_the_cut_stay(tmp_path: Path) -> None:
    whole = begun(tmp_path)
    (tmp_path / TRAJECTORIES).write_bytes(whole[:-5])
    with EvalFolder(tmp_path, SETTINGS_OF) as folder:
        assert folder.take("base", TASKS[:2], [0]) == games(*TASKS[:2])
        assert folder.take("base", TASKS[2:], [0]) == []
    assert (tmp_path / TRAJECTORIES).read_bytes() == b"".join(whole.splitlines(keepends=True)[:2])


def test_another_evaluation_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    whole = begun(tmp_path)
    with pytest.raises(RunFolderError, match=r"temperature 0\.7, now it is 1\.0.*--out"):
        EvalFolder(tmp_path, SETTINGS_OF | {"temperature": 1.0})
    with pytest.raises(RunFolderError, match=r"top_p None, now it is 0\.9"):
        EvalFolder(tmp_path, SETTINGS_OF | {"top_p": 0.9})
    with (
        EvalFolder(tmp_path, SETTINGS_OF) as folder,
        pytest.raises(
            RunFolderError, match=r"episode 0 of task test:0 by 'base', which .* of 'adapters'"
        ),
    ):
        folder.expect(["adapters"], TASKS, 1)
    assert (tmp_path / TRAJECTORIES).read_bytes() == whole


def test_settings_may_change_until_the_first_game(tmp_path: Path) -> None:
    EvalFolder(tmp_path, SETTINGS_OF).close()
    EvalFolder(tmp_path, {"env": "other"}).close()
    assert json.loads((tmp_path / SETTINGS).read_text())["settings"] == {"env": "other"}


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with EvalFolder(tmp_path, SETTINGS_OF), pytest.raises(RunFolderError, match="in use"):
        EvalFolder(tmp_path, SETTINGS_OF)
    EvalFolder(tmp_path, SETTINGS_OF).close()


@pytest.mark.parametrize("line", [b"{}\n", b"nonsense\n", b'{"team": "a", "format": 2}\n'])
def test_damage_is_named_with_its_place(tmp_path: Path, line: bytes) -> None:
    whole = begun(tmp_path)
    (tmp_path / TRAJECTORIES).write_bytes(whole + line)
    with pytest.raises(RunFolderError, match="damaged in line 4"):
        EvalFolder(tmp_path, SETTINGS_OF)


def test_only_a_finished_evaluation_is_read(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no evaluation"):
        read_trajectories(tmp_path)
    begun(tmp_path)
    with pytest.raises(RunFolderError, match="not finished"):
        read_trajectories(tmp_path)
    write_file(tmp_path / RESULTS, "{}")
    assert read_trajectories(tmp_path) == {"base": games(*TASKS)}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="choose another folder"):
        EvalFolder(tmp_path / "file", {})
    with pytest.raises(RunFolderError, match="cannot write"):
        write_file(tmp_path / "file" / "x", "")


def test_the_revision_is_that_of_the_repository_around(tmp_path: Path) -> None:
    assert revision(tmp_path) is None

    def git(*words: str) -> str:
        name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        command = ["git", "-C", str(tmp_path), *name, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init")
    assert revision(tmp_path) is None  # no commit yet
    (tmp_path / "mine.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-m", "one")
    (tmp_path / "inside").mkdir()
    assert revision(tmp_path / "inside") == {"commit": git("rev-parse", "HEAD"), "changed": False}
    (tmp_path / "mine.py").write_text("x = 2\n")
    assert revision(tmp_path) == {"commit": git("rev-parse", "HEAD"), "changed": True}


def test_a_digest_follows_contents_and_names_and_not_the_place(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder / "sub").mkdir(parents=True)
        (tmp_path / folder / "sub" / "a").write_text("x")
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    assert digest(tmp_path / "one" / "sub" / "a") == digest(tmp_path / "two" / "sub" / "a")
    (tmp_path / "two" / "sub" / "a").write_text("y")
    assert digest(tmp_path / "one") != digest(tmp_path / "two")
    (tmp_path / "two" / "sub" / "a").write_text("x")
    (tmp_path / "two" / "sub" / "a").rename(tmp_path / "two" / "sub" / "b")
    assert digest(tmp_path / "one") != digest(tmp_path / "two")
