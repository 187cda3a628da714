"""Turns a fresh interpreter into a serving worker: preload, look around, isolate, serve.

The one argument is a JSON object: `packages` to preload, `parent` and `core` (see `Options`),
`allow_unsafe`, and `without` (layers to leave out, for tests of what happens where the kernel lacks
them).
"""

from __future__ import annotations

import _imp
import contextlib
import fcntl
import functools
import gc
import importlib
import itertools
import json
import os
import resource
import select
import signal
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from pettingllms.sandbox.worker import (
    frames,
    isolation,
    kernel,
    process,
    program,
    rootfs,
    seccomp,
    server,
    supervisor,
)

PROTOCOL = 1
# fmt: off
PRELOADED = (
    "bisect", "collections.abc", "contextlib", "copy", "functools", "heapq", "io", "itertools", "json",
    "linecache", "math", "operator", "random", "re", "string", "threading", "time", "traceback", "types",
    "typing",
)
# fmt: on
"""The modules that small programs import most. Each one makes every fork a little slower."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_OWN = "pettingllms"
_PENDING_SIGNALS = 1024
_READY: list[Any] = []
_KEPT: list[object] = []
"""Objects kept alive so that no process spends time on deallocating them."""
_ISOLATED = (isolation.NAMESPACES, isolation.LANDLOCK)


class Options(NamedTuple):
    """The launcher's options."""

    packages: Sequence[str] = ()
    allow_unsafe: bool = False
    without: Sequence[str] = ()
    parent: int = 0
    """The process that the worker ends with, 0 in a container."""
    core: int | None = None
    """The core that this worker and its programs keep to; None: the kernel places them."""


def main(arguments: Sequence[str]) -> process.ProgramProcess:
    """Become a worker. Returns in a program's process, with what that has to do.

    What this function holds is written to in every program's process, where it returns.
    """
    _READY.extend(_prepare(arguments))
    gc.collect()
    kernel.trim_heap()
    # A collection in a forked process then leaves these objects, and so shared memory, alone.
    gc.freeze()
    gc.disable()
    forks = supervisor.start_fork_server(_READY[0])
    if isinstance(forks, process.ProgramProcess):
        return forks
    gc.enable()
    return _serve(forks, *_READY)


def _prepare(arguments: Sequence[str]) -> tuple[Any, ...]:
    """Isolate this process; returns the work of program's processes, the stream, and the greeting."""
    options = Options(**json.loads(arguments[0]))
    _end_with(options.parent)
    if options.core is not None:
        with contextlib.suppress(OSError):  # it has been taken from us since the launcher looked
            os.sched_setaffinity(0, {options.core})
    # The launcher's own mask would show in the modes of the files that programs make.
    os.umask(0o022)
    kernel.share_one_heap()
    # Python leaves SIGINT ignored where the launcher was started so, as shells start background
    # jobs, and programs would see it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stream = _take_stream()
    # A request takes a descriptor for each of its inputs.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Blocked signals wait in the kernel's memory, which no other limit of a program covers.
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (_PENDING_SIGNALS, _PENDING_SIGNALS))
    try:
        _preload(options)
        confinement, hello = _isolate(options)
    except (OSError, ImportError, RuntimeError) as error:
        stream.write(frames.encode({"failure": f"{type(error).__name__}: {error}"[:2000]}))
        sys.exit(1)
    work = process.ProgramProcess(confinement, process.HintPage(), _set_the_stage())
    return work, stream, hello


def _serve(
    forks: supervisor.ForkServer,
    work: process.ProgramProcess,
    stream: frames.Stream,
    hello: dict[str, object],
) -> NoReturn:
    stream.write(frames.encode(hello))
    pool = supervisor.ProcessPool(work.isolation, work.hint, forks, stream.read_fd)
    try:
        server.serve(stream, pool)
    except (
        frames.FrameError,
        BrokenPipeError,
        supervisor.ClientGone,
        supervisor.JobFailed,
        supervisor.ForkServerGone,
    ):
        os._exit(0)


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its launcher ends, even if it has been stopped.

    The kernel forgets the request when the process changes its user, so it is repeated.
    """
    if parent:
        kernel.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)


def _take_stream() -> frames.Stream:
    """Move the protocol away from descriptors 0 and 1, which programs use."""
    read_fd = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    write_fd = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    return frames.Stream(read_fd, write_fd, patient=True)


def _preload(options: Options) -> None:
    # The interpreter starts with `-S`, which leaves these names out.
    importlib.import_module("_sitebuiltins")
    quitter = sys.modules["_sitebuiltins"]
    for name in ("exit", "quit"):
        setattr(sys.modules["builtins"], name, quitter.Quitter(name, "Ctrl-D (i.e. EOF)"))
    sys.modules["builtins"].help = quitter._Helper()  # type: ignore[attr-defined]
    standard, finders = tuple(sys.path), tuple(sys.meta_path)
    if options.packages:
        _add_sites()
        # A process with threads can neither enter a user namespace nor be forked safely.
        os.environ.update(dict.fromkeys(_THREADS, "1"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (*PRELOADED, *options.packages):
            importlib.import_module(name)
        for name in options.packages:
            # Parts that load when first used: their files may lie below a hidden /tmp by then.
            for attribute in getattr(sys.modules[name], "__all__", ()):
                getattr(sys.modules[name], attribute, None)
    # What else lies beside the packages is not known any more: it could be found, but not read.
    sys.meta_path[:] = finders
    for path in set(sys.path).difference(standard):
        forget = getattr(sys.path_importer_cache.get(path), "invalidate_caches", None)
        if forget is not None:
            forget()


def _set_the_stage() -> program.Streams:
    """Make everything look as a program should find it; returns its standard streams."""
    os.environ.clear()
    os.environ.update(program.ENVIRONMENT)
    sys.argv[:] = [program.FILE_NAME]
    sys.orig_argv[:] = [sys.executable, program.FILE_NAME]
    # Programs find in `sys.modules` what plain Python has there, and nothing of ours.
    module_names = [name for name in sys.modules if name.startswith((_OWN, "__main__"))]
    _KEPT.extend(sys.modules.pop(name) for name in module_names)
    program.rehearse()
    sys.modules["__main__"] = types.ModuleType("__main__")
    # Only now: a fork, such as the worker's own, gives `random` a new seed.
    _fix_random_numbers()
    program.refuse_processes()
    program.show_lines()
    _disguise()
    return program.open_streams()


def _disguise() -> None:
    """Name our code after nothing on this machine, for programs that look at the whole stack."""
    folder = os.path.dirname(__file__)
    functions = [value for value in gc.get_objects() if isinstance(value, types.FunctionType)]
    codes = [function.__code__ for function in functions]
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    for code in codes:
        if code.co_filename.startswith(folder):
            _imp._fix_co_filename(code, program.OWN_NAME)  # type: ignore[attr-defined]


def _add_sites() -> None:
    """Find packages where this interpreter does.

    That is in its virtual environment, in the user's folder, in the system's, and where `.pth`
    files lead, as those of packages installed for editing.
    """
    site: Any = importlib.import_module("site")
    prefixes = sys.prefix, sys.exec_prefix
    known_paths = site.venv(site.removeduppaths())
    if site.ENABLE_USER_SITE is not False and os.path.isdir(site.getusersitepackages()):
        site.addsitedir(site.getusersitepackages(), known_paths)
    site.addsitepackages(known_paths)
    sys.prefix, sys.exec_prefix = prefixes


def _fix_random_numbers() -> None:
    """Have random numbers without a seed begin alike in every run; those of the kernel are new."""
    random: Any = sys.modules["random"]
    numbers = itertools.count()
    set_seed = random.Random.seed

    @functools.wraps(set_seed)
    def seed(self: Any, a: Any = None, version: int = 2) -> None:
        set_seed(self, next(numbers) if a is None else a, version)

    random.Random.seed = seed
    random.seed = program.CALL_NAMES["seed"] = random._inst.seed
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(0)
        # NumPy takes the entropy of a generator without a seed from here.
        generator: Any = sys.modules["numpy.random.bit_generator"]
        generator.randbits = lambda bits: random.Random().getrandbits(bits)


def _isolate(options: Options) -> tuple[isolation.Isolation, dict[str, object]]:
    """Take the strongest isolation that works here; say which, and what was missing."""
    problems: list[str] = []
    seen = rootfs.find(options.packages)
    isolation.volunteer_for_oom()
    base_bytes = isolation.virtual_bytes()
    layers: list[str] = []
    writable = [rootfs.SCRATCH_PARENT]
    if _usable(isolation.NAMESPACES, options, problems, lambda: _try_namespaces(seen)):
        layers.append(isolation.NAMESPACES)
        isolation.enter_namespaces(seen)
        _end_with(options.parent)
        _continue_in_child()
        kernel.make_deadly(isolation.DEADLY)
    else:
        problems += _give_up_root(seen)
        os.chdir("/")
        writable = []  # no limit of the kernel's would bound what programs write there
        _end_with(options.parent)
    fence = None
    if _usable(isolation.LANDLOCK, options, problems, _try_landlock):
        layers.append(isolation.LANDLOCK)
        readable = (*seen.shown, *seen.packages)
        fence = isolation.fence(readable, rootfs.DEVICES, writable)
    program_filter = None
    if _usable(isolation.SECCOMP, options, problems, _try_seccomp):
        layers.append(isolation.SECCOMP)
        # Programs are pid 1 of their namespaces; without these, each gets one that names its pid.
        program_filter = seccomp.program_filter(1)
        kernel.make_deadly((signal.SIGSYS,))
    safe = isolation.SECCOMP in layers and any(layer in layers for layer in _ISOLATED)
    if not safe and not options.allow_unsafe:
        raise RuntimeError("; ".join(problems) or "no isolation was asked for")
    confinement = isolation.Isolation(
        layers=tuple(layers),
        fence=fence,
        filter=program_filter,
        # A descriptor of a process stands for its namespaces, also where there is no /proc.
        pid_namespace=os.pidfd_open(os.getpid()),
        base_bytes=base_bytes,
        base_processes=3,
    )
    hello: dict[str, object] = {
        "protocol": PROTOCOL,
        "layers": layers if safe else [],
        "problems": problems,
    }
    return confinement, hello


def _usable(layer: str, options: Options, problems: list[str], attempt: Callable[[], None]) -> bool:
    """Tell whether `attempt` works in a process of its own; adds the reason to `problems` if not."""
    if layer in options.without:
        problems.append(f"{layer}: left out on request")
        return False
    try:
        kernel.in_another_process(attempt)
    except OSError as problem:
        problems.append(f"{layer}: {problem}")
        return False
    return True


def _give_up_root(seen: rootfs.RootFs) -> list[str]:
    """Become nobody, if this is root; the problem otherwise."""
    if not isolation.is_root_among_users():
        return []
    try:
        kernel.in_another_process(lambda: _try_as_nobody(seen))
    except OSError as problem:
        return [f"user: programs run as root, without its capabilities: {problem}"]
    isolation.become_nobody()
    return []


def _try_as_nobody(seen: rootfs.RootFs) -> None:
    """Raise `OSError` if another user may not read the files that programs import."""
    isolation.become_nobody()
    for path in (*seen.shown, *seen.packages):
        if os.path.isdir(path):
            os.listdir(path)
        else:
            os.close(os.open(path, os.O_RDONLY))


def _try_namespaces(seen: rootfs.RootFs) -> None:
    """All that the worker and then a program's process do."""
    isolation.enter_namespaces(seen)
    kernel.in_another_process(_try_nested)


def _try_nested() -> None:
    pid_fd = os.pidfd_open(os.getpid())
    kernel.unshare(kernel.CLONE_NEWPID)
    kernel.setns(pid_fd, kernel.CLONE_NEWPID)
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("tmpfs", rootfs.SCRATCH, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV)


def _try_landlock() -> None:
    if isolation.version() == 0:
        raise OSError("the kernel has no Landlock, or it is not enabled")


def _try_seccomp() -> None:
    if not seccomp.supported():
        raise OSError(f"no system call table for {kernel.MACHINE}")
    kernel.forbid_new_privileges()
    seccomp.program_filter(os.getpid()).install()


def _continue_in_child() -> None:
    """Go on as pid 1 of the worker's PID namespace; this process only waits for it."""
    alive = os.pidfd_open(os.getpid())
    pid = os.fork()
    if pid == 0:
        kernel.die_with_parent()
        # The parent may have ended before the kernel knew of the request.
        if select.select([alive], [], [], 0)[0]:
            os._exit(1)
        os.close(alive)
        return
    os.closerange(0, 2)
    os.closerange(3, 1 << 20)
    _, status = os.waitpid(pid, 0)
    os._exit(abs(os.waitstatus_to_exitcode(status)) & 0xFF)
