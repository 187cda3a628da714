"""Every version of Python that is supported and found here passes the self-check."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel import needs_namespaces

pytestmark = needs_namespaces

ROOT = Path(__file__).parent.parent
CHECK = """
from pettingllms.sandbox import open_sandbox
from pettingllms.sandbox.selfcheck import self_check
with open_sandbox("embedded", 1) as sandbox:
    reports = list(self_check(sandbox))
print(len(reports), [report for report in reports if report.complaint])
"""


def interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or one of pyenv's, which are often not on it."""
    others = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for python in (shutil.which(f"python{version}"), *map(str, others)):
        if python and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            return python
    return None


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_another_python_passes_the_self_check(version: str):
    python = interpreter(version)
    if python is None or sys.version.startswith(version):
        pytest.skip(f"no other Python {version} here")
    # The sandbox needs no package beside its own.
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, "-s", "-c", CHECK], env=environment, capture_output=True, text=True, check=True
    )
    count, _, complaints = done.stdout.partition(" ")
    assert int(count) > 50
    assert complaints == "[]\n"
