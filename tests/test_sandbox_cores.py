"""Workers and cores: as many workers as cores keep to one each, and any other number to none."""

from __future__ import annotations

import os
import signal

import pytest

from pettingllms.sandbox import Case, open_sandbox
from pettingllms.sandbox.client import PooledSandbox
from pettingllms.sandbox.workers import ProcessChannel
from tests.kernel import needs_namespaces
from tests.processes import alive, descendants, eventually

CORES = sorted(os.sched_getaffinity(0))
SPIN = "print(sum(range(10**6)))"

pytestmark = [
    needs_namespaces,
    pytest.mark.skipif(len(CORES) < 2, reason="one core can only be kept to"),
]


def pids(sandbox: PooledSandbox) -> list[int]:
    channels = [link.channel for link in sandbox._pool._all]
    return [channel.pid for channel in channels if isinstance(channel, ProcessChannel)]


def cores_of(sandbox: PooledSandbox) -> list[set[int]]:
    """For each worker: where it, its fork server and a waiting process may run."""
    return [set().union(*map(os.sched_getaffinity, descendants(pid))) for pid in pids(sandbox)]


def busy(sandbox: PooledSandbox) -> None:
    """Has all workers started."""
    sandbox.run([SPIN] * 8 * len(CORES), [Case()])


def test_as_many_workers_as_cores_keep_to_one_each_also_a_replaced_one():
    with open_sandbox("embedded") as sandbox:
        assert isinstance(sandbox, PooledSandbox)
        busy(sandbox)
        assert sorted(map(sorted, cores_of(sandbox))) == [[core] for core in CORES]
        killed = pids(sandbox)[0]
        os.kill(killed, signal.SIGKILL)
        assert eventually(lambda: not alive(killed))
        busy(sandbox)
        assert sorted(map(sorted, cores_of(sandbox))) == [[core] for core in CORES]


@pytest.mark.parametrize("workers", [1, len(CORES) + 1])
def test_fewer_or_more_workers_are_placed_by_the_kernel(workers: int):
    with open_sandbox("embedded", workers=workers) as sandbox:
        assert isinstance(sandbox, PooledSandbox)
        busy(sandbox)
        assert all(cores == set(CORES) for cores in cores_of(sandbox))


def test_a_pool_that_its_owner_keeps_to_one_core_is_left_there():
    os.sched_setaffinity(0, CORES[:1])
    try:
        with open_sandbox("embedded") as sandbox:
            assert isinstance(sandbox, PooledSandbox)
            assert sandbox._pool.size == 1
    finally:
        os.sched_setaffinity(0, CORES)
