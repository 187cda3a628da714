"""The program's filter, run in an interpreter of BPF, against the tables and the container's profile."""

from __future__ import annotations

import errno
import fcntl
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.sandbox import docker
from pettingllms.sandbox.worker import seccomp

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
EPERM, EAGAIN, ENOSYS = (seccomp.refuse(code) for code in (1, 11, 38))
F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ, F_ADD_SEALS, F_SETOWN, F_OFD_SETLK = (
    1024,
    1026,
    1031,
    1033,
    8,
    37,
)
LOAD, AND, RETURN, ALWAYS, EQUAL, AT_LEAST = 0x20, 0x54, 0x06, 0x05, 0x15, 0x35


def verdict(machine: str, number: int, *arguments: int, pid: int = 1, narrow: bool = False) -> int:
    """What the filter says to a call, computed instruction by instruction."""
    return run(machine, MACHINES[machine], number, arguments, pid=pid, narrow=narrow)


def run(
    machine: str,
    architecture: int,
    number: int,
    arguments: tuple[int, ...],
    *,
    pid: int = 1,
    narrow: bool = False,
) -> int:
    padded = [value & 0xFFFFFFFFFFFFFFFF for value in (*arguments, *[0] * 6)][:6]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *padded)
    program = FILTERS.setdefault(
        (machine, pid, narrow), seccomp.program_filter(pid, machine, narrow=narrow).instructions
    )
    at, loaded = 0, 0
    while True:
        code, true, false, k = program[at]
        at += 1
        if code == LOAD:
            [loaded] = struct.unpack_from("<I", data, k)
        elif code == AND:
            loaded &= k
        elif code == ALWAYS:
            at += k
        elif code == EQUAL:
            at += true if loaded == k else false
        elif code == AT_LEAST:
            at += true if loaded >= k else false
        else:
            assert code == RETURN
            return k


FILTERS: dict[tuple[str, int, bool], tuple[seccomp.Instruction, ...]] = {}
machines = pytest.mark.parametrize("machine", MACHINES)


@machines
def test_every_call_of_the_tables_has_its_verdict(machine: str):
    for name, number in seccomp.numbers(seccomp.ALLOWED, machine).items():
        assert verdict(machine, number) == seccomp.ALLOW, name
    for name, number in seccomp.numbers(seccomp.HOSTILE, machine).items():
        assert verdict(machine, number) == seccomp.KILL_PROCESS, name


@machines
@given(number=st.integers(0, 0x3FFFFFFF) | st.integers(0, 600))
def test_every_other_call_is_refused(machine: str, number: int):
    listed = {
        value
        for table in (seccomp.ALLOWED, seccomp.CHECKED, seccomp.HOSTILE)
        for value in seccomp.numbers(table, machine).values()
    }
    if number not in listed:
        assert verdict(machine, number) == (EPERM if number < max(listed) else ENOSYS)


@machines
@given(number=st.integers(0, 0xFFFFFFFF), architecture=st.integers(0, 0xFFFFFFFF))
def test_calls_of_another_architecture_kill(machine: str, number: int, architecture: int):
    if architecture != MACHINES[machine]:
        assert run(machine, architecture, number, ()) == seccomp.KILL_PROCESS


@machines
@given(number=st.integers(0x40000000, 0xFFFFFFFF))
def test_calls_of_the_x32_table_kill(machine: str, number: int):
    assert verdict(machine, number) == seccomp.KILL_PROCESS


@machines
@given(operation=st.integers(0, 511))
def test_nobody_waits_for_threads_of_another_process(machine: str, operation: int):
    number = seccomp.numbers(seccomp.CHECKED, machine)["futex"]
    expected = seccomp.ALLOW if operation & 128 else EAGAIN
    assert verdict(machine, number, 4096, operation) == expected


@machines
@given(flags=st.integers(0, 2**64 - 1))
def test_only_threads_can_be_made(machine: str, flags: int):
    number = seccomp.numbers(seccomp.CHECKED, machine)["clone"]
    thread = flags & 0x10000 and not flags & 0x7E020080
    assert verdict(machine, number, flags) == (seccomp.ALLOW if thread else EAGAIN)


@machines
@pytest.mark.parametrize(("name", "signal_at"), [("kill", 1), ("tgkill", 2), ("tkill", 1)])
@given(pid=st.integers(1, 99999), target=st.integers(-5, 99999), signal=st.integers(0, 64))
def test_signals_reach_nobody_else(
    machine: str, name: str, signal_at: int, pid: int, target: int, signal: int
):
    number = seccomp.numbers(seccomp.CHECKED, machine)[name]
    FILTERS.clear()
    arguments = [target, 0, 0]
    arguments[signal_at] = signal
    to_itself = seccomp.TRAP if signal == 9 else seccomp.ALLOW
    expected = to_itself if target == pid else EPERM
    assert verdict(machine, number, *arguments, pid=pid) == expected


@machines
@given(pointer=st.integers(0, 2**64 - 1))
def test_nothing_is_sent_to_an_address(machine: str, pointer: int):
    number = seccomp.numbers(seccomp.CHECKED, machine)["sendto"]
    expected = EPERM if pointer else seccomp.ALLOW
    assert verdict(machine, number, 3, 0, 0, 0, pointer) == expected


@machines
@given(
    pid=st.sampled_from([0, 1, 2, 77]),
    kind=st.integers(0, 15),
    new=st.sampled_from([0, 1 << 32, 0x7FFF00001000]),
)
def test_the_limit_of_cpu_time_can_be_read_but_not_changed(
    machine: str, pid: int, kind: int, new: int
):
    number = seccomp.numbers(seccomp.CHECKED, machine)["prlimit64"]
    allowed = pid in (0, 1) and (kind != 0 or new == 0)
    expected = seccomp.ALLOW if allowed else EPERM
    assert verdict(machine, number, pid, kind, new) == expected


@machines
def test_new_programs_and_processes_are_refused(machine: str):
    numbers = seccomp.numbers(seccomp.CHECKED, machine)
    expected = {"execve": EPERM, "execveat": EPERM, "clone3": ENOSYS, "fork": EAGAIN}
    for name, wanted in (expected | {"vfork": EAGAIN}).items():
        if name in numbers:
            assert verdict(machine, numbers[name]) == wanted, name


@machines
def test_a_narrow_filter_leaves_the_metadata_of_files_alone(machine: str):
    numbers = seccomp.numbers(seccomp.ALLOWED, machine)
    for name in seccomp.METADATA:
        if name in numbers:
            assert verdict(machine, numbers[name], narrow=True) == EPERM, name
    assert verdict(machine, numbers["openat"], narrow=True) == seccomp.ALLOW


@machines
def test_the_hosts_file_cache_carries_no_message_between_programs(machine: str):
    """Advice does nothing, and no read says whether it had to wait for the disk."""
    calls = {
        **seccomp.numbers(seccomp.ALLOWED, machine),
        **seccomp.numbers(seccomp.CHECKED, machine),
    }
    assert verdict(machine, calls["fadvise64"], 3, 0, 0, 4) == seccomp.refuse(0)
    for name in ("preadv2", "pwritev2"):
        assert verdict(machine, calls[name], 3, 4096, 1, 0, 0, 0) == seccomp.ALLOW
        for flag in (1, 2, 4, 8, 16):
            assert verdict(machine, calls[name], 3, 4096, 1, 0, 0, flag) == EPERM
    for advice in (9, 12, 20, 21, 22, 25):  # MERGEABLE, COLD, PAGEOUT and COLLAPSE among them
        assert verdict(machine, calls["madvise"], 4096, 4096, advice) == EPERM
    for advice in (0, 4, 8, 14):
        assert verdict(machine, calls["madvise"], 4096, 4096, advice) == seccomp.ALLOW
    assert "membarrier" not in calls


@machines
def test_no_option_of_a_socket_can_be_set_and_no_file_locked(machine: str):
    """Buffers of sockets are memory past the limit, as are locks, which also carry messages."""
    calls = seccomp.numbers(seccomp.CHECKED, machine)
    assert "setsockopt" not in seccomp.numbers(f"{seccomp.ALLOWED} {seccomp.CHECKED}", machine)
    assert verdict(machine, calls["flock"], 3, 2) == seccomp.refuse(errno.ENOLCK)
    for command in (fcntl.F_SETLK, fcntl.F_SETLKW):
        assert verdict(machine, calls["fcntl"], 3, command) == seccomp.refuse(0)
    for command in (F_SETPIPE_SZ, F_SETLEASE, F_OFD_SETLK, F_NOTIFY, F_ADD_SEALS, F_SETOWN):
        assert verdict(machine, calls["fcntl"], 3, command) == EPERM
    for option in range(80):
        allowed = seccomp.ALLOW if option in (3, 4, 38, 39) else EPERM
        assert verdict(machine, calls["getsockopt"], 3, 1, option) == allowed


@machines
@given(option=st.integers(0, 80), value=st.integers(0, 2))
def test_a_program_can_only_name_its_process(machine: str, option: int, value: int):
    """Nor can it become dumpable again."""
    number = seccomp.numbers(seccomp.CHECKED, machine)["prctl"]
    assert verdict(machine, number, option, value) == (
        seccomp.ALLOW if option in (15, 16) else EPERM
    )


def test_the_worker_profile_has_what_the_worker_needs_and_no_sockets():
    [allowed, _] = docker.worker_profile()["syscalls"]
    names = set(allowed["names"])
    assert {"clone", "unshare", "mount", "pivot_root", "seccomp", "execve"} <= names
    assert not names & {"socket", "connect", "bind", "ptrace", "bpf", "keyctl", "io_uring_setup"}
