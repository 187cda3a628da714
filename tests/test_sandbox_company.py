"""No run can tell in what company it is: alone, or among others in one request."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from pettingllms.sandbox import Case, Limits, RunResult, open_sandbox
from pettingllms.sandbox.types import Sandbox
from tests.kernel import needs_namespaces
from tests.sandbox_idioms import IDIOMS
from tests.test_sandbox_like_python import PROGRAMS

ALL = {**{f"like python: {name}": text for name, text in PROGRAMS.items()}, **IDIOMS}
CASES = [Case("3 4\n5\n"), Case(""), Case("a b\r\nlast line"), Case("3 4\n5\n")]
LIMITS = Limits(wall_s=60.0, tmp_mib=4)
GROUPS = 8


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_sandbox("embedded", workers=1) as sandbox:
        yield sandbox


def said(result: RunResult) -> tuple[str, int, str, str]:
    """What a run said, but for addresses, which are the worker's and the compiler's."""
    out, err = (re.sub("0x[0-9a-f]+", "0x", text) for text in (result.stdout, result.stderr))
    return result.status, result.exit_code, out, err


@pytest.mark.slow
@needs_namespaces  # elsewhere the files that a program leaves count for the next, and its process id differs
@pytest.mark.timeout(300)
@pytest.mark.parametrize("group", range(GROUPS))
def test_a_run_among_others_does_what_it_does_alone(sandbox: Sandbox, group: int):
    assert len(ALL) >= 200
    names = sorted(ALL)[group::GROUPS]
    together = sandbox.run([ALL[name] for name in names], CASES, limits=LIMITS)
    with open_sandbox("embedded", workers=1) as other:
        for name, row in zip(names, together, strict=True):
            for case, result in zip(CASES[:3], row[:3], strict=True):
                [[alone]] = other.run([ALL[name]], [case], limits=LIMITS)
                assert said(result) == said(alone), name
            # The last case is the first: a run's place makes no difference either.
            assert said(row[3]) == said(row[0]), name
