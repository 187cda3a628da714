"""Which layers hold is said everywhere, and less than required is refused."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pettingllms.cli import sandbox as command
from pettingllms.errors import ConfigError, SandboxUnavailable
from pettingllms.sandbox import Case, isolation, open_sandbox
from pettingllms.sandbox.embedded import EmbeddedSandbox, launch
from pettingllms.sandbox.worker import kernel
from pettingllms.session import run_training as train
from pettingllms.trainers.config import ATGRPOConfig
from tests.kernel import needs_namespaces

pytestmark = needs_namespaces

WEAK = ("landlock", "seccomp")


def settings(folder: Path, **changes: Any) -> ATGRPOConfig:
    return ATGRPOConfig(
        env="math", output_dir=str(folder), max_steps=1, eval_steps=0, eval_tasks=1, **changes
    )


class Said:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def evaluating(self, what: str, done: int, total: int) -> None: ...

    def step(self, *_: object) -> None: ...


def test_a_sandbox_says_what_holds_its_programs():
    with open_sandbox("embedded", 1, require_isolation="full") as sandbox:
        assert sandbox.isolation == isolation.LAYERS
        [[result]] = sandbox.run(["1"], [Case()])
        assert result.isolation == "+".join(sandbox.isolation)
    with EmbeddedSandbox(1, without=("namespaces",)) as sandbox:
        assert sandbox.isolation == WEAK
    with EmbeddedSandbox(1, without=isolation.LAYERS, allow_unsafe=True) as sandbox:
        assert sandbox.isolation == ("none",)


@pytest.mark.parametrize("missing", isolation.LAYERS[:2])
def test_less_than_required_is_refused_with_a_cure(missing: str):
    with EmbeddedSandbox(1, without=(missing,)) as sandbox:
        message = f"{missing}: left out on request"
        with pytest.raises(SandboxUnavailable, match=message) as caught:
            sandbox.require_isolation("full")
        assert isolation.cure(missing) in str(caught.value)
        with pytest.raises(SandboxUnavailable, match=message):
            sandbox.run(["1"], [Case()])
        assert not sandbox._pool._all


def test_a_worker_that_is_already_there_is_refused_as_well():
    with EmbeddedSandbox(1, without=("namespaces",)) as sandbox:
        sandbox.run(["1"], [Case()])
        with pytest.raises(SandboxUnavailable, match="namespaces"):
            sandbox.require_isolation("full")


def test_a_later_worker_that_isolates_less_is_refused(monkeypatch: pytest.MonkeyPatch):
    """As where the machine's user namespaces are used up: what a run has said holds for all of it."""
    with EmbeddedSandbox(2) as sandbox, sandbox._pool.worker():
        assert sandbox._pool.held_by == isolation.LAYERS
        monkeypatch.setattr(sandbox._pool, "_launch", lambda: launch(without=("namespaces",)))
        with pytest.raises(SandboxUnavailable, match=r"first worker has .*namespaces: left out"):
            sandbox.run(["1"], [Case()])


def test_root_that_is_the_only_user_of_its_namespace_gets_every_layer():
    """As below `unshare -r`: it can become nobody else."""

    def layers() -> list[str]:
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(kernel.CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", user), ("gid_map", group)):
            line = text if text == "deny" else f"0 {text} 1"
            Path("/proc/self", name).write_text(str(line))
        with contextlib.closing(launch()) as link:
            return list(link.layers)

    assert tuple(kernel.in_another_process(layers)) == isolation.LAYERS


def test_an_unknown_level_is_named():
    with pytest.raises(ConfigError, match="did you mean 'full'"):
        open_sandbox("embedded", 1, require_isolation="ful")


def test_the_command_takes_the_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    program = tmp_path / "program.py"
    program.write_text("print(1)")
    assert command.main(["run", str(program), "--require-isolation", "full"]) == 0
    assert capsys.readouterr().out == "1\n"
    assert command.main(["run", str(program), "--require-isolation", "most"]) != 0
    assert "any" in capsys.readouterr().err


def test_a_run_says_and_writes_which_layers_hold(tmp_path: Path):
    display = Said()
    train(settings(tmp_path / "run", require_isolation="full"), display=display, stop=lambda: True)
    [start] = json.loads((tmp_path / "run" / "run.json").read_text())
    assert start["isolation"] == "namespaces+landlock+seccomp"
    assert "isolation of model-written programs: namespaces+landlock+seccomp" in display.lines


@pytest.mark.slow
def test_a_run_on_a_weaker_machine_says_so_or_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with EmbeddedSandbox(1, without=("namespaces",)) as weak:
        monkeypatch.setattr("pettingllms.envs.team_env.shared_sandbox", lambda _: weak)
        display = Said()
        train(settings(tmp_path / "any"), display=display, stop=lambda: True)
        [start] = json.loads((tmp_path / "any" / "run.json").read_text())
        assert start["isolation"] == "landlock+seccomp"
        assert any("only landlock+seccomp, without namespaces" in line for line in display.lines)
        with pytest.raises(SandboxUnavailable, match="namespaces"):
            train(settings(tmp_path / "full", require_isolation="full"))
    assert not (tmp_path / "full").exists()


FENCED = """
import os
os.mkdir("/tmp/a")
open("/tmp/x", "w").write(input())
os.rename("/tmp/x", "/tmp/a/y")
print(open("/tmp/a/y").read())
try: print(len(os.listdir("/")) > 0)
except PermissionError: print("fenced")
"""


def test_one_landlock_ruleset_fences_every_run_and_leaves_each_its_own_folder():
    """It is made once, before the mounts of the runs; nothing else forbids to list the root."""
    cases = [Case(str(n)) for n in range(3)]
    with EmbeddedSandbox(1) as sandbox:
        [row] = sandbox.run([FENCED], cases)
    assert [result.stdout for result in row] == [f"{n}\nfenced\n" for n in range(3)]
    with EmbeddedSandbox(1, without=("landlock",)) as sandbox:
        [[result]] = sandbox.run([FENCED], cases[:1])
    assert result.stdout == "0\nTrue\n"
