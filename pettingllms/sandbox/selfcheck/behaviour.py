"""One behavior that every back end must have: a program, and what may come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from textwrap import dedent, indent

from pettingllms.sandbox.types import Case, Limits, RunResult, Sandbox

TIGHT = Limits(cpu_s=0.25, wall_s=10.0, memory_mib=256, output_kib=64, processes=16)
"""Limits for programs that break one: small, so that the check is short."""
ENOUGH = replace(TIGHT, cpu_s=5.0, wall_s=30.0)
"""Limits for all other programs: imports alone take longer than `TIGHT` where the machine is busy."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A program to run and what its result must look like.

    Without `stdout`, the output may be anything but the word `ESCAPED`, which attacks print
    when they get through.
    """

    name: str
    """Says what is expected, as in `a loop ends at the CPU limit`."""
    program: str
    statuses: tuple[str, ...] = ("ok",)
    stdout: str | None = None
    stderr: str = ""
    """Must occur in standard error."""
    hidden: tuple[str, ...] = ()
    """Must occur nowhere in the result."""
    value: str | None = None
    case: Case = field(default_factory=Case)
    limits: Limits | None = None
    """None: `TIGHT` where the CPU limit is an expected end, else `ENOUGH`."""
    before: Sequence[str] = ()
    """Programs run first, on the same case, to leave something behind."""

    def complaint(self, result: RunResult) -> str:
        """Why `result` is not as expected; empty if it is."""
        if result.status not in self.statuses:
            return f"status {result.status}, expected {' or '.join(self.statuses)}"
        if self.stdout is not None and result.stdout != self.stdout:
            return f"printed {result.stdout[:200]!r}, expected {self.stdout[:200]!r}"
        if self.value is not None and result.value != self.value:
            return f"returned {result.value!r}, expected {self.value!r}"
        if self.stderr not in result.stderr:
            return f"standard error {result.stderr[-200:]!r} does not mention {self.stderr!r}"
        said = f"{result.stdout}{result.stderr}{result.value}"
        shown = [text for text in ("ESCAPED", *self.hidden) if text in said]
        return f"the result contains {shown[0]!r}: {said[:200]!r}" if shown else ""

    def check(self, sandbox: Sandbox) -> str:
        """Run it; why it failed, or empty."""
        programs = [*self.before, self.program]
        limits = self.limits or (TIGHT if "cpu_limit" in self.statuses else ENOUGH)
        rows = sandbox.run(programs, [self.case], limits=limits)
        return self.complaint(rows[-1][0])


def attack(
    name: str, code: str, *, statuses: tuple[str, ...] = ("ok",), setup: str = ""
) -> Behaviour:
    """A program that tries `code`, says `held` if an exception stopped it and `ESCAPED` if not.

    A program that the kernel stops (`forbidden`, `killed`) says nothing, and passes as well.
    """
    body = indent(dedent(code).strip(), "    ")
    program = f"""\
import os, sys, ctypes, errno, socket, signal
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
{dedent(setup).strip()}
try:
{body}
except (OSError, ImportError, ValueError, AttributeError) as error:
    print("held")
else:
    print("ESCAPED")
"""
    return Behaviour(name, program, statuses=(*statuses, "forbidden", "killed"))
