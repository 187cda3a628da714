"""`math`, whose tasks begin late where a variable of the process says so: a run that waits computes nothing."""

from __future__ import annotations

import os
import time
from typing import Any

from pettingllms.envs import math_v0

PAUSE = "PETTINGLLMS_TEST_PAUSE"
"""Seconds, before a task begins."""


class env(math_v0.raw_env):
    def _start(self, seed: int, options: dict[str, Any]) -> Any:
        time.sleep(float(os.environ.get(PAUSE, "0")))
        return super()._start(seed, options)
