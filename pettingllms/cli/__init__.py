"""The commands: one module each, which reads options, calls the package and prints."""

import atexit
import gc
import os
import time
from pathlib import Path


def busy(cores: int) -> bool:
    """Returns whether other programs run on half of the cores; True where the system is not Linux."""
    running = list[int]()
    for _ in range(5):  # the median of 50 ms, because something always wakes up for a moment
        time.sleep(0.01)
        try:
            # The fourth field is "2/345": threads that run or want to, this one counted, of all.
            field = Path("/proc/loadavg").read_text(encoding="ascii").split()[3]
        except OSError:
            return True
        running.append(int(field.partition("/")[0]) - 1)
    return sorted(running)[2] >= cores / 2


# Importing torch and transformers makes 400,000 objects; to look for garbage after every 700 would take a quarter of that time.
gc.set_threshold(50_000)
atexit.register(gc.freeze)  # to look for it once more at the end takes a second

# Read when torch is imported. Threads that spin while they wait for each other make a step of SmolLM2 twice as fast on idle
# cores, and three times as slow beside two busy processes (two cores each).
if "OMP_WAIT_POLICY" not in os.environ and busy(os.cpu_count() or 1):
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

# oneDNN keeps up to 1,024 kernels, one for each shape of a batch, so that a run on a CPU grows for dozens of steps: after ten
# on SmolLM2 it held 0.3 GiB more than with this bound, which costs 4 % more CPU time.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
