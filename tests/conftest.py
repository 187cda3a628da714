"""What holds for every test: no network, no hub, one thread a process, fixed seeds."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before torch and the hub's client are imported, which read these once. With one process a core,
# more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Ray gives its workers the lowest priority but four: beside anything else that computes, they do not start
# for minutes.
os.environ.setdefault("RAY_worker_niceness", "0")
# Each vLLM engine would spend ten seconds on compiling C++ for functions that it also has in Python. The test of
# `pettingllms-serve` with vLLM leaves that on, as users have it.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
# Small pictures, also in the processes that tests start: a short run spends a third of its time on its curves.
os.environ.setdefault("MATPLOTLIBRC", str(Path(__file__).with_name("matplotlibrc")))

import hypothesis
import pytest

gc.set_threshold(50_000)  # as in commands (`pettingllms.cli`)

# A shell ignores SIGINT in its background jobs, and children inherit that: in commands that tests
# start, Ctrl-C would then do nothing.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("here", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spares `-m ray` the import of all files without that mark, most of the time of a short kind."""
    mark = str(config.option.markexpr).partition(" ")[0]
    if not collection_path.is_file() or mark in ("", "not"):
        return None
    return f"mark.{mark}" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_finish() -> None:
    """Keeps the search for garbage away from what was imported: pytest searches five times when it ends."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: much of the time of a test is that of programs in a sandbox."""
    return 1 + (os.cpu_count() or 1)


@pytest.fixture(autouse=True)
def _fixed_torch_seed() -> None:
    if torch := sys.modules.get("torch"):
        # `torch.manual_seed` writes the stack down for every kind of accelerator that is not used yet.
        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            host = str(address[0])
            if host not in ("localhost", "::1") and not host.startswith("127."):
                raise OSError(f"tests use no network, but this one connects to {host}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect_here)
        yield


@pytest.fixture
def as_published() -> Iterator[None]:
    """Pictures with all that they have outside of tests, see `matplotlibrc`."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield
