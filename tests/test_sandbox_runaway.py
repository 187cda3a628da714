"""A program that breaks its time limit pays for it once, and nobody else does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pettingllms.sandbox import Case, Limits
from pettingllms.sandbox.client import PooledSandbox
from pettingllms.sandbox.embedded import EmbeddedSandbox
from pettingllms.sandbox.workers import ProcessChannel

LOOP = "while True: pass"
SLEEP = "import time; time.sleep(99)"
ECHO = "print(input())"
LOOP_FROM_2 = "n = int(input())\nwhile n >= 2: pass\nprint(n)"
SHORT = Limits(cpu_s=0.2, wall_s=10.0)
CASES = [Case(str(n)) for n in range(6)]


@pytest.fixture(scope="module")
def one() -> Iterator[PooledSandbox]:
    with EmbeddedSandbox(1) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def two() -> Iterator[PooledSandbox]:
    with EmbeddedSandbox(2) as sandbox:
        yield sandbox


def statuses(rows):
    return [[result.status for result in row] for row in rows]


def cpu_of_programs(sandbox: PooledSandbox) -> float:
    """CPU seconds of all processes that the workers have waited for."""

    def below(pid: int) -> list[int]:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    channels = [link.channel for link in sandbox._pool._all]
    servers = [pid for c in channels if isinstance(c, ProcessChannel) for pid in below(c.pid)]
    stats = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in servers]
    return sum(int(ticks) for fields in stats for ticks in fields[13:15]) / os.sysconf("SC_CLK_TCK")


def spent(sandbox: PooledSandbox, work: Callable[[], object]) -> float:
    sandbox.run([ECHO] * 8, [Case("x")])  # every worker is there
    before = cpu_of_programs(sandbox)
    work()
    return cpu_of_programs(sandbox) - before


def test_an_endless_loop_costs_its_limit_once(one: PooledSandbox):
    seen = []

    def work() -> None:
        seen.append(one.run([LOOP], CASES, limits=SHORT))

    assert spent(one, work) < 3 * SHORT.cpu_s
    assert statuses(seen[0]) == [["cpu_limit"] * 6]


def test_an_endless_loop_costs_its_limit_at_most_once_a_worker(two: PooledSandbox):
    seen = []
    cases = [Case(str(n)) for n in range(16)]

    def work() -> None:
        seen.append(two.run([LOOP], cases, limits=SHORT))

    assert spent(two, work) < 5 * SHORT.cpu_s
    assert statuses(seen[0]) == [["cpu_limit"] * 16]


def test_a_list_of_several_requests_costs_the_limit_once_as_well(one: PooledSandbox):
    cases = [Case(str(n)) for n in range(1100)]
    assert spent(one, lambda: one.run([LOOP], cases, limits=SHORT)) < 5 * SHORT.cpu_s


def test_a_sleeper_costs_its_wall_limit_once(one: PooledSandbox):
    [row] = one.run([SLEEP], CASES, limits=Limits(wall_s=0.3))
    assert [result.status for result in row] == ["wall_limit"] * 6
    assert [result.isolation == "not run" for result in row] == [False] + [True] * 5


def test_the_results_depend_on_the_order_of_the_cases_alone(two: PooledSandbox):
    rows = two.run([LOOP_FROM_2, ECHO, LOOP_FROM_2], CASES, limits=SHORT)
    late = ["ok", "ok", *["cpu_limit"] * 4]
    assert statuses(rows) == [late, ["ok"] * 6, late]
    assert [result.stdout for result in rows[0]] == ["0\n", "1\n", "", "", "", ""]
    assert "not run: cpu_limit on an earlier case" in rows[0][3].stderr
    assert (rows[0][3].cpu_s, rows[0][3].isolation) == (0.0, "not run")
    assert "not run" not in rows[0][2].stderr


def test_every_case_is_run_where_the_caller_wants_that(one: PooledSandbox):
    program = "n = int(input())\nwhile n == 1: pass\nprint(n)"
    [row] = one.run([program], CASES[:3], limits=SHORT, end_at_limit=False)
    assert [result.status for result in row] == ["ok", "cpu_limit", "ok"]


def test_other_failures_end_nothing(one: PooledSandbox):
    program = "import os\nn = int(input())\nif n == 0: os.abort()\nif n == 1: x = bytes(1 << 40)\nprint(n)"
    [row] = one.run([program], CASES[:3])
    assert [result.status for result in row] == ["killed", "memory_limit", "ok"]
