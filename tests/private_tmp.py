"""Python code in a mount namespace of its own, where /tmp may be filled, replaced, or deleted."""

from __future__ import annotations

import os
import subprocess
import sys


def in_private_tmp(code: str, *, options: str = "size=64m") -> str:
    """Run `code` with an empty tmpfs as /tmp; returns what it prints.

    Raises:
        AssertionError: it fails, with its standard error.
    """
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--mount", "--user", "--map-root-user"]
    command = f'mount -t tmpfs -o {options},mode=1777 tmpfs /tmp && exec "$@"'
    run = subprocess.run(
        ["unshare", *namespaces, "sh", "-c", command, "sh", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={**os.environ, "TMPDIR": "/tmp", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr
    return run.stdout
