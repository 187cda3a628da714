"""Outlives a run: removes the folder of its cluster, and ends what Ray leaves behind if it is killed.

    python -m pettingllms.distributed.guardian FOLDER

Waits for the end of its standard input, which comes with the end of the process that started it. Ray
ends its daemons and workers by itself then, but not all of its agents. Only processes whose command
line names the folder are ended; it is the run's own.
"""

from __future__ import annotations

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
    until = time.monotonic() + GRACE_SECONDS
    while (left := processes_of(folder)) and time.monotonic() < until:
        time.sleep(0.2)
    while left:
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
        left = processes_of(folder)
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: Path) -> list[int]:
    """Processes, other than this one, whose command line names the folder."""
    found, name = [], os.fsencode(folder)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if int(process.name) != os.getpid() and any(name in word for word in words):
            found.append(int(process.name))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
