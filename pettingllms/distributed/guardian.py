"""Outlives a run: removes the folder of its cluster, and ends what Ray leaves behind if it is killed.

    python -m pettingllms.distributed.guardian FOLDER

Waits for the end of its standard input, which comes with the end of the process that started it. Ray
ends its daemons and workers by itself then, but its agents take minutes. Only processes whose command
line or open files name the folder are ended; it is the run's own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

GRACE_SECONDS = 8.0
"""In which Ray ends its processes by itself."""


def main(folder: Path) -> None:
    """Waits, ends what is left, removes the folder."""
    sys.stdin.buffer.read()
    began = time.monotonic()
    while (left := processes_of(folder)) and time.monotonic() < began + 2 * GRACE_SECONDS:
        if time.monotonic() > began + GRACE_SECONDS:
            for process in left:
                with contextlib.suppress(OSError):  # it has ended, or is another user's
                    os.kill(process, signal.SIGKILL)
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: Path) -> list[int]:
    """Processes of Ray, other than this one, that belong to the cluster in the folder."""
    pids, name = [], os.fsencode(folder)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            # Agents and workers give themselves titles; their logs are in the folder.
            belongs = name in words or (words.startswith(b"ray::") and _has_open(process, folder))
        except OSError:
            continue  # it has ended, or is another user's
        if belongs and int(process.name) != os.getpid():
            pids.append(int(process.name))
    return pids


def _has_open(process: Path, folder: Path) -> bool:
    return any(str(fd.readlink()).startswith(f"{folder}/") for fd in (process / "fd").iterdir())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
