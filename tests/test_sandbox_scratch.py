"""Scratch folders of workers without namespaces: only what the launcher made is ever removed.

Everything that could delete runs in a mount namespace of its own.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pettingllms.sandbox import Case, Limits
from pettingllms.sandbox.embedded import EmbeddedSandbox, ScratchFolder, remove_leftovers
from pettingllms.sandbox.worker import folders
from tests.kernel import needs_namespaces
from tests.private_tmp import in_private_tmp
from tests.processes import eventually

pytestmark = needs_namespaces

START = """
import os, sys
from pathlib import Path
from pettingllms.sandbox import Case
from pettingllms.sandbox.workers import ProcessChannel
from pettingllms.sandbox.embedded import EmbeddedSandbox
from pettingllms.sandbox.client import WorkerConnection
Path("/tmp/canary/deep").mkdir(parents=True)
Path("/tmp/canary/deep/file").write_text("alive")
"""
END = "\nprint(Path('/tmp/canary/deep/file').read_text(), sorted(os.listdir('/tmp')))\n"
SMALL = Limits(tmp_mib=4)
QUICK = Limits(cpu_s=0.3)
KEEP_DELETED = """
import os, time
for n in range({count}):
    fd = os.open(str(n), os.O_CREAT | os.O_RDWR)
    os.unlink(str(n))
    os.write(fd, bytes(1 << 20))
time.sleep({seconds})
"""
ALIVE = "alive ['canary']\n"


@pytest.mark.parametrize(
    "without", [("seccomp",), ("namespaces",), ("namespaces", "landlock", "seccomp")]
)
def test_closing_a_sandbox_leaves_the_temporary_folder_alone(without: tuple[str, ...]):
    code = f"""
with EmbeddedSandbox(1, without={without}, allow_unsafe=True) as sandbox:
    [[result]] = sandbox.run(["open('x', 'w').write('1'); print(2)"], [Case()])
    assert result.stdout == "2\\n", result
"""
    assert in_private_tmp(START + code + END) == ALIVE


def test_a_worker_that_lies_about_its_folder_gets_nothing_deleted():
    worker = """
import sys
sys.path[:0] = PATH
from pettingllms.sandbox.worker import frames
hello = {"protocol": 1, "layers": [], "problems": [], "python": "3", "scratch": "/tmp"}
sys.stdout.buffer.write(frames.encode(hello))
sys.stdout.buffer.flush()
sys.stdin.read()
"""
    worker = f"{worker!r}.replace('PATH', repr(sys.path))"  # as seen in there
    code = f"WorkerConnection(ProcessChannel((sys.executable, '-c', {worker}), {{}})).close()"
    assert in_private_tmp(START + code + END) == ALIVE


@pytest.mark.parametrize(
    "attack",
    [
        "os.rename(own, own + 'x'); os.symlink('/tmp/canary', own)",
        "os.rename(own, own + 'x'); os.rename('/tmp/canary', own)",
        "os.symlink('/tmp/canary', 'a'); os.mkdir('d'); os.symlink('/tmp/canary', 'd/b')",
    ],
)
def test_a_program_that_replaces_its_folder_gets_nothing_else_deleted(attack: str):
    """The first two need a program that nothing confines; they may leave their own mess."""
    code = f"""
import logging
layers = ("namespaces", "landlock", "seccomp")
sandbox = EmbeddedSandbox(1, without=layers, allow_unsafe=True)
attack = "import os; own = os.getcwd(); " + {attack!r}
try:
    # As root, programs are nobody: give the attack its chance.
    os.system("chmod 777 /tmp/canary")
    sandbox.run(["print(1)"], [Case()])
    [outer] = Path("/tmp").glob("pettingllms-scratch-*")
    outer.chmod(0o777)
    sandbox.run([attack], [Case()])
except Exception as error:
    print(type(error).__name__, file=sys.stderr)
finally:
    sandbox.close()
found = [path for path in Path("/tmp").rglob("deep/file")]
print(len(found), found[0].read_text())
"""
    assert in_private_tmp(START + code) == "1 alive\n"


def test_the_folder_of_a_killed_process_is_removed_by_the_next_start_and_no_other():
    code = """
import subprocess, time
user = '''
import os, sys
from pettingllms.sandbox import Case
from pettingllms.sandbox.embedded import EmbeddedSandbox
sandbox = EmbeddedSandbox(1, without=("namespaces",))
sandbox.run(["open('x', 'w')"], [Case()])
if sys.argv[1] == "killed": os.kill(os.getpid(), 9)
print("started", flush=True)
sys.stdin.read()
'''
def start(how):
    return subprocess.Popen(
        [sys.executable, "-c", user, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
living = start("living")
assert living.stdout.readline() == b"started\\n"
before = set(os.listdir("/tmp"))
Path("/tmp/pettingllms-scratch-link").symlink_to("/tmp/canary")
assert start("killed").wait() == -9
time.sleep(0.5)
left = set(os.listdir("/tmp")) - before - {"pettingllms-scratch-link"}
assert len(left) == 1, left
EmbeddedSandbox(1).close()
assert set(os.listdir("/tmp")) == before | {"pettingllms-scratch-link"}
Path("/tmp/pettingllms-scratch-link").unlink()
living.communicate()
"""
    assert in_private_tmp(START + code + END) == ALIVE


def test_a_folder_of_another_user_or_in_use_is_no_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    used = ScratchFolder()
    assert remove_leftovers() == 0
    foreign = tmp_path / "pettingllms-scratch-foreign"
    foreign.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: foreign.stat().st_uid + 1)
    assert remove_leftovers() == 0
    used.remove()
    assert list(tmp_path.iterdir()) == [foreign]


def test_a_forked_process_leaves_its_parents_folder(tmp_path: Path):
    code = """
import os
from pathlib import Path
from pettingllms.sandbox import Case, Limits
from pettingllms.sandbox.embedded import EmbeddedSandbox
from pettingllms.sandbox.embedded import ScratchFolder, remove_leftovers
folder = ScratchFolder()
pid = os.fork()
if pid == 0:
    folder.remove()
    os._exit(remove_leftovers())
assert os.waitpid(pid, 0)[1] == 0
print(Path(folder.path).is_dir())
folder.remove()
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert run.stdout == "True\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("write", "status"),
    [
        ("open('x', 'wb').write(bytes(3 << 20))", "ok"),
        ("for n in range(100): open(str(n), 'wb').write(bytes(1 << 20))", "output_limit"),
        ("for n in range(2000): open(str(n), 'w').close()", "output_limit"),
        ("for n in range(9): open(str(n), 'wb').write(bytes(1 << 20))", "output_limit"),
        (KEEP_DELETED.format(count=3, seconds=0.5), "ok"),
        (KEEP_DELETED.format(count=40, seconds=12), "output_limit"),
    ],
)
def test_files_beyond_the_limit_end_a_program_without_a_mount(write: str, status: str):
    with EmbeddedSandbox(1, without=("namespaces",)) as sandbox:
        rows = sandbox.run([write, "import os; print(os.listdir())"], [Case()], limits=SMALL)
    assert [result.status for [result] in rows] == [status, "ok"]
    assert rows[1][0].stdout == "[]\n"


def processes_below(pid: int) -> list[int]:
    """Running or not yet waited for."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    found: list[int] = []
    for file in children:
        with contextlib.suppress(OSError):  # it has just ended
            found += map(int, file.read_text().split())
    return [each for child in found for each in (child, *processes_below(child))]


def test_no_process_is_left_of_programs_without_a_mount():
    """A worker, its fork server, and at times a process with its watcher that waits for a job."""
    program = "import tempfile\nwith tempfile.TemporaryFile() as f: print(f.write(b'abc'))"
    outside = set(processes_below(os.getpid()))
    with EmbeddedSandbox(1, without=("namespaces",)) as sandbox:
        rows = sandbox.run([program, "while True: pass"] * 3, [Case()], limits=QUICK)
        assert eventually(lambda: len(set(processes_below(os.getpid())) - outside) <= 4)
    assert [result.status for [result] in rows] == ["ok", "cpu_limit"] * 3
    assert eventually(lambda: not set(processes_below(os.getpid())) - outside)


def test_emptying_a_folder_never_changes_what_a_link_in_it_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A program that still runs puts a link in a folder's place right after it was looked at."""
    victim, top = tmp_path / "victim", tmp_path / "top"
    victim.mkdir(mode=0o755)
    (top / "a").mkdir(parents=True)
    is_folder = folders._is_folder

    def looked_at(name: str, folder: int) -> bool:
        found = is_folder(name, folder)
        (top / name).rmdir()
        (top / name).symlink_to(victim)
        return found

    monkeypatch.setattr(folders, "_is_folder", looked_at)
    fd = folders.open_folder(str(top))
    try:
        with pytest.raises(OSError, match="a"):
            folders.empty(fd)
    finally:
        os.close(fd)
    assert stat.S_IMODE(victim.stat().st_mode) == 0o755


def test_programs_of_root_run_as_nobody_without_namespaces_or_the_reason_is_said(
    caplog: pytest.LogCaptureFixture,
):
    """A default container, where Python is readable: tests/test_sandbox_in_containers.py."""
    with EmbeddedSandbox(1, without=("namespaces",)) as sandbox:
        [[result]] = sandbox.run(["import os; print(os.getuid(), os.getgroups())"], [Case()])
        [link] = sandbox._pool._all
    problems = [problem for problem in link.problems if problem.startswith("user: ")]
    if os.geteuid() != 0:
        assert result.stdout == f"{os.getuid()} {os.getgroups()}\n"
    elif problems:
        assert "Permission denied" in problems[0]
        assert result.stdout.startswith("0 ")
        assert problems[0] in caplog.text
    else:
        assert result.stdout == "65534 []\n"
