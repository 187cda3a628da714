"""Python code in a mount namespace of its own, where /tmp may be filled, replaced, or deleted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def in_private_tmp(code: str, *, options: str = "size=64m") -> str:
    """Run `code` with an empty tmpfs as /tmp; returns what it prints.

    The checkout is seen at /mnt, since it may lie below /tmp itself.

    Raises:
        AssertionError: it fails, with its standard error.
    """
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--mount", "--user", "--map-root-user"]
    command = (
        f'mount --bind "$0" /mnt && mount -t tmpfs -o {options},mode=1777 tmpfs /tmp && exec "$@"'
    )
    python, *path = (str(at).replace(str(ROOT), "/mnt", 1) for at in (sys.executable, *sys.path))
    run = subprocess.run(
        ["unshare", *namespaces, "sh", "-c", command, str(ROOT), python, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={**os.environ, "TMPDIR": "/tmp", "PYTHONPATH": os.pathsep.join(path)},
    )
    assert run.returncode == 0, run.stderr
    return run.stdout
