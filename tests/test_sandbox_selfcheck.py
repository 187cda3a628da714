"""The self-check on the embedded back end: every behavior is a test of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pettingllms.sandbox import Case, open_sandbox
from pettingllms.sandbox.embedded import EmbeddedSandbox
from pettingllms.sandbox.selfcheck import GROUPS, Behavior, self_check
from pettingllms.sandbox.types import Sandbox
from tests.behaviors import ALL, ATTACKS
from tests.behaviors.leftovers import LEAVE_SECRET, SEARCH_MEMORY
from tests.kernel import needs_namespaces
from tests.private_tmp import in_private_tmp

pytestmark = needs_namespaces


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_sandbox("embedded", workers=1) as sandbox:
        yield sandbox


@pytest.mark.parametrize(("group", "behavior"), ALL, ids=[f"{g}: {b.name}" for g, b in ALL])
def test_behavior(sandbox: Sandbox, group: str, behavior: Behavior):
    assert behavior.check(sandbox) == ""


def test_there_are_enough_behaviors_with_names_of_their_own():
    names = [behavior.name for _, behavior in ALL]
    assert len(names) >= 240
    assert len(set(names)) == len(names)


def test_the_search_of_memory_finds_what_is_there(sandbox: Sandbox):
    [[searched]] = sandbox.run([f"{LEAVE_SECRET}\n{SEARCH_MEMORY}"], [Case()])
    assert searched.stdout.endswith("True True\n")


def test_a_complaint_is_made_where_nothing_is_isolated():
    # These attacks succeed, and two of them leave a link in /tmp.
    code = """
from pettingllms.sandbox.embedded import EmbeddedSandbox
from pettingllms.sandbox.selfcheck import ISOLATION
layers = ("namespaces", "landlock", "seccomp")
with EmbeddedSandbox(1, without=layers, allow_unsafe=True) as unsafe:
    for behavior in ISOLATION[:12]:
        if behavior.check(unsafe):
            print(behavior.name)
"""
    before = set(Path("/tmp").iterdir())
    complaints = in_private_tmp(code).splitlines()
    assert "users of the host are not visible" in complaints
    assert "there is no /proc" in complaints
    assert not {Path("/tmp/hard"), Path("/tmp/link")} & (set(Path("/tmp").iterdir()) - before)


def test_landlock_and_seccomp_alone_withstand_every_attack():
    with EmbeddedSandbox(1, without=("namespaces",)) as sandbox:
        complaints = {b.name: b.check(sandbox) for b in ATTACKS}
        [[result]] = sandbox.run(["print(1)"], [Case()])
    assert result.isolation == "landlock+seccomp"
    assert {name: text for name, text in complaints.items() if text} == {}


WRITE = """
import os, tempfile
for folder in (".", "/tmp", "/var/tmp", "/dev/shm", os.path.dirname(os.__file__)):
    for make in (lambda: open(f"{folder}/x", "w"), lambda: os.mkdir(f"{folder}/y"), lambda: os.symlink("/", f"{folder}/z")):
        try: make(); print("written", folder)
        except OSError: pass
try: tempfile.TemporaryFile(); print("written")
except OSError: print(os.getcwd())
"""


def test_without_namespaces_programs_write_no_file_at_all():
    with EmbeddedSandbox(1, without=("namespaces",)) as sandbox:
        [[result]] = sandbox.run([WRITE], [Case()])
    assert result.stdout == "/\n"


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


def test_namespaces_and_seccomp_alone_withstand_every_attack():
    with EmbeddedSandbox(1, without=("landlock",)) as sandbox:
        complaints = {b.name: b.check(sandbox) for b in ATTACKS}
    assert {name: text for name, text in complaints.items() if text} == {}


def test_the_reports_cover_every_group(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    for group in GROUPS:
        monkeypatch.setitem(GROUPS, group, GROUPS[group][-1:])
    reports = list(self_check(sandbox))
    assert [report.group for report in reports] == list(GROUPS)
    assert all(report.complaint == "" for report in reports)
