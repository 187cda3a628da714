"""The Docker back end: the same worker, each in a warm container of its own.

The `docker` package talks to the engine (images, containers, leftovers); podman's compatible
socket works where it offers the same. A container is started once and serves
requests as long as the sandbox is open; it has no network, a read-only root, no capabilities, and cannot gain any. Its seccomp
profile is made from the worker's tables. Inside, the worker makes namespaces for every program as
it does on the host.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import socket
import struct
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pettingllms.errors import ConfigError, SandboxUnavailable, did_you_mean
from pettingllms.sandbox.client import PooledSandbox, WorkerConnection
from pettingllms.sandbox.embedded import WORKER_MAIN, usable_cores
from pettingllms.sandbox.types import Limits, RunPlan, RunProgress
from pettingllms.sandbox.worker import frames, seccomp
from pettingllms.sandbox.workers import WorkerLost

logger = logging.getLogger(__name__)

OWNER_LABEL = "pettingllms.sandbox.owner"

MEMORY_MIB = 2048
"""Memory of a container, unless the limits of the runs need more."""

_MIB = 1 << 20
_RESERVED_MIB = 192
"""Part of a container's memory for the worker, its files in memory, and the program's own."""
_PROCESSES = 1024
_OPEN_FILES = 4096
_TIMEOUT_S = 60

Connect = Callable[[], Any]
"""Makes a new `docker.DockerClient`."""


def connect(url: str | None = None) -> Any:
    """A client for the engine at `url`; by default the one that the `docker` command would find.

    Raises:
        SandboxUnavailable: the `docker` package is missing, or no engine answers.
    """
    try:
        import docker
    except ImportError:
        raise SandboxUnavailable(
            "the docker back end needs the docker package: pip install 'pettingllms[docker]'"
        ) from None
    try:
        environment = {"DOCKER_HOST": url} if url else None
        options = docker.utils.kwargs_from_env(environment=environment)
        _probe(options.get("base_url"), secure=bool(options.get("tls")))
        client = docker.from_env(timeout=_TIMEOUT_S, environment=environment)
    except (docker.errors.DockerException, OSError) as error:
        raise SandboxUnavailable(
            f"no Docker engine answers ({error}); start one, or set DOCKER_HOST to its socket"
        ) from error
    return client


def _probe(url: str | None, *, secure: bool) -> None:
    """Fail at once where nothing listens; the client would leave a socket open then."""
    url = url or "unix:///var/run/docker.sock"
    if secure or url.startswith("ssh://"):
        host = url.partition("://")[2].partition(":")[0]
        raise SandboxUnavailable(
            f"DOCKER_HOST={url} cannot be used, since the frames of a worker need a plain socket; "
            "forward the engine's instead: ssh -nNT -L "
            f"/tmp/engine.sock:/var/run/docker.sock {host} & export "
            "DOCKER_HOST=unix:///tmp/engine.sock, and unset DOCKER_TLS_VERIFY"
        )
    if "unix://" in url:
        with socket.socket(socket.AF_UNIX) as attempt:
            attempt.settimeout(_TIMEOUT_S)
            attempt.connect(url.partition("unix://")[2])


_BLOCK = struct.Struct(">BxxxI")
_STDERR = 2
_NOTES_BYTES = 2000


class AttachedStream(frames.Stream):
    """Frames from a container's standard output; what it says on standard error is kept aside.

    The engine sends output in blocks, `u8 stream, 3 zeros, u32 length`; input goes to the container
    unchanged. docker-py reads such blocks as well, without a deadline.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd, fd)
        self.notes = b""
        self._left = 0
        """Bytes of the present block that are still to be read."""

    def read_into(self, view: memoryview, deadline: float | None = None) -> None:
        """Fill `view` from the container's standard output."""
        filled = 0
        while filled < len(view):
            while not self._left:
                self._next_block(deadline)
            count = min(self._left, len(view) - filled)
            super().read_into(view[filled : filled + count], deadline)
            self._left -= count
            filled += count

    def _next_block(self, deadline: float | None) -> None:
        stream, size = _BLOCK.unpack(self._read_raw(_BLOCK.size, deadline))
        if stream > _STDERR:
            raise frames.FrameError(f"the engine sent a block of stream {stream}, expected 0 to 2")
        if stream == _STDERR:
            self.notes = (self.notes + self._read_raw(size, deadline))[-_NOTES_BYTES:]
        else:
            self._left = size

    def _read_raw(self, size: int, deadline: float | None) -> bytes:
        data = bytearray(size)
        super().read_into(memoryview(data), deadline)
        return bytes(data)


class ContainerChannel:
    """A worker in a container that was made for it.

    Raises:
        WorkerLost: the engine does not start it.
    """

    def __init__(self, connect: Connect, image: str, command: Sequence[str], host: Any) -> None:
        self._owner = os.getpid()
        self._connect = connect
        self.id: str | None = None
        """The container's; None where it is gone."""
        self._socket: socket.socket | None = None
        try:
            with contextlib.closing(connect()) as client:
                self._socket = self._start(client.api, image, command, host)
        except SandboxUnavailable as error:
            raise WorkerLost(str(error)) from error
        except Exception as error:
            # The container may have been made before something failed.
            self.kill()
            if _is_trouble(error):
                raise WorkerLost(f"the engine started no container: {error}") from error
            raise
        self._attached = AttachedStream(self._socket.fileno())
        self.stream: frames.Stream = self._attached

    def _start(self, api: Any, image: str, command: Sequence[str], host: Any) -> socket.socket:
        created = api.create_container(
            image,
            command=list(command),
            user="65534:65534",
            stdin_open=True,
            network_disabled=True,
            # The worker is process 1, which never gets a SIGTERM that it does not handle.
            stop_signal="SIGKILL",
            labels={OWNER_LABEL: owner_mark()},
            host_config=api.create_host_config(**host),
        )
        self.id = created["Id"]
        # Attached before the start, so that nothing is missed.
        parts = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        mine = _own_socket(api.attach_socket(self.id, params=parts))
        api.start(self.id)
        return mine

    def kill(self) -> None:
        """Have the engine kill the container, which it then removes."""
        if self.id is None or os.getpid() != self._owner:
            return
        # Forgotten first, since several threads may call this, and once is enough.
        identity, self.id = self.id, None
        try:
            with contextlib.closing(self._connect()) as client:
                client.api.remove_container(identity, force=True)
        except SandboxUnavailable as error:
            logger.warning("container %s is left to the next start: %s", identity[:12], error)
        except Exception as error:
            if not _is_trouble(error):
                raise
            # It is being removed, or gone already, because its worker has ended.
            logger.debug("container %s: %s", identity[:12], error)

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            # A shutdown would reach the process that this one was forked from, too.
            if os.getpid() == self._owner:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def notes(self) -> str:
        """The end of what the container wrote to standard error."""
        stderr = self._attached.notes.decode("utf-8", "replace").strip()
        return f": {stderr}" if stderr else ""


def _own_socket(attached: Any) -> socket.socket:
    """A plain socket of our own for the one that the client made, and closes when it likes."""
    raw: socket.socket = getattr(attached, "_sock", attached)
    mine = raw.dup()
    attached.close()
    raw.close()
    return mine


def _is_trouble(error: Exception) -> bool:
    """Tell whether `error` is the engine's or the connection's, not a mistake of ours."""
    import docker.errors
    import requests

    return isinstance(
        error, docker.errors.DockerException | requests.RequestException | OSError | WorkerLost
    )


class DockerSandbox(PooledSandbox):
    """Runs programs in containers.

    Args:
        workers: containers, started when needed; the number of cores by default.
        packages: third-party packages that programs may import; the image must have been built
            with them.
        memory_mib: of each container, without swap; the limits of a run must fit in it.
        cpus: CPU of each container.
        runtime: OCI runtime of the containers, as `docker run --runtime` names it; None for the
            engine's default.
        connect: makes a client for the engine.

    Raises:
        SandboxUnavailable: there is no engine, or it lacks the image.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        packages: Sequence[str] = (),
        memory_mib: int = MEMORY_MIB,
        cpus: float = 1.0,
        runtime: str | None = None,
        connect: Connect = connect,
    ) -> None:
        self._memory_mib = memory_mib
        image = image_name(packages)
        with contextlib.closing(connect()) as client:
            _require_image(client, image, packages)
            _require_runtime(client, runtime)
            remove_orphans(client)
        options = json.dumps({"packages": list(packages)})
        host = host_config(memory_mib, cpus)
        if runtime is not None:
            host["runtime"] = runtime
        super().__init__(
            lambda: WorkerConnection(ContainerChannel(connect, image, (options,), host), "docker"),
            workers or usable_cores(),
        )

    def _do_all(self, plan: RunPlan, progress: RunProgress) -> None:
        wanted = _needed_mib(plan.limits)
        if wanted > self._memory_mib:
            raise ConfigError(
                f"a run that may use {plan.limits.memory_mib} MiB needs a container of {wanted} MiB, "
                f"these have {self._memory_mib}; open the sandbox with a larger memory_mib"
            )
        super()._do_all(plan, progress)


def memory_for(limits: Limits) -> int:
    """MiB of a container in which runs with these limits fit."""
    return max(MEMORY_MIB, _needed_mib(limits))


def _needed_mib(limits: Limits) -> int:
    return limits.memory_mib + limits.tmp_mib + _RESERVED_MIB


def host_config(memory_mib: int, cpus: float) -> dict[str, Any]:
    """Restrictions of a container, as arguments of the engine's API."""
    return {
        "auto_remove": True,
        "network_mode": "none",
        "read_only": True,
        "mem_limit": memory_mib * _MIB,
        # As much as the memory alone: no swap.
        "memswap_limit": memory_mib * _MIB,
        "pids_limit": _PROCESSES,
        "nano_cpus": round(cpus * 1e9),
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges", f"seccomp={json.dumps(worker_profile())}"],
        # Without /dev/shm, where a program could leave something for the next one.
        "ipc_mode": "none",
        "ulimits": [{"Name": "nofile", "Soft": _OPEN_FILES, "Hard": _OPEN_FILES}],
        # Output would be written to the host's disk a second time.
        "log_config": {"Type": "none", "Config": {}},
    }


def _require_image(client: Any, image: str, packages: Sequence[str]) -> None:
    import docker.errors

    try:
        client.images.get(image)
    except docker.errors.ImageNotFound:
        extra = f" --packages {','.join(packages)}" if packages else ""
        raise SandboxUnavailable(
            f"the engine has no image {image}; make it with `pettingllms-sandbox build{extra}`, "
            "or by sandbox/build-offline.sh where there is no registry"
        ) from None


def _require_runtime(client: Any, runtime: str | None) -> None:
    if runtime and runtime not in (runtimes := client.info().get("Runtimes", {})):
        raise SandboxUnavailable(
            f"the engine has no runtime {runtime!r}; {did_you_mean(runtime, runtimes)} Add it to the "
            "engine with `dockerd --add-runtime` or in /etc/docker/daemon.json"
        )


def remove_orphans(client: Any) -> int:
    """Remove the containers whose process has been killed, and no others; returns how many."""
    removed = 0
    # Containers may go while they are listed.
    for container in client.containers.list(
        all=True, filters={"label": OWNER_LABEL}, ignore_removed=True
    ):
        if is_orphan(container.labels.get(OWNER_LABEL, "")):
            logger.info("removing container %s of a process that has ended", container.short_id)
            try:
                container.remove(force=True)
            except Exception as error:
                if not _is_trouble(error):
                    raise
                logger.debug("container %s: %s", container.short_id, error)
            removed += 1
    return removed


def owner_mark(pid: int | None = None) -> str:
    """A name for process `pid`, by default this one, that no other process ever has.

    Boot, PID namespace, process id and the process's start; empty where there is no /proc, as on macOS.
    """
    pid = os.getpid() if pid is None else pid
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return ""
    start = "gone"
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        # After the name, which may hold blanks and brackets; field 22 of proc(5).
        start = stat.rsplit(")", 1)[1].split()[19]
    return f"{boot}:{namespace}:{pid}:{start}"


def is_orphan(owner: str) -> bool:
    """Tell whether the process that `owner_mark` named has certainly ended; False if unknown.

    The engine removes containers at the next boot, and the number of a process says nothing on another
    machine or in another namespace.
    """
    place, _, process = owner.rpartition(":")[0].rpartition(":")
    if not process.isdigit():
        return False
    now = owner_mark(int(process))
    return now.startswith(f"{place}:") and owner != now


# What the worker isolates programs with; their own filter refuses all of it.
_WORKER_ONLY = """
capset landlock_add_rule landlock_create_ruleset landlock_restrict_self memfd_create mount
pidfd_open pivot_root recvmsg seccomp sendmsg setgroups sethostname setns setpgid setresgid
setresuid umount2 unshare
"""
_MACHINES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_ALLOW, _ERRNO = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"
# Linux's number, because the client may run on macOS, where `errno` has others.
_ENOSYS = 38


def worker_profile() -> dict[str, Any]:
    """Build the profile for `docker run --security-opt seccomp=`: every call of worker and programs.

    It lets the worker make user namespaces without a capability; what programs may call is
    decided again, and more narrowly, by the filter that the worker installs.
    """
    tables = seccomp.ALLOWED, seccomp.CHECKED, _WORKER_ONLY
    syscalls = {entry.split(":")[0] for table in tables for entry in table.split()}
    allowed = sorted(syscalls - {"clone3"})
    # Without sub-architectures, which would let in the calls of 32-bit and x32 code, too.
    machines = [{"architecture": name, "subArchitectures": []} for name in _MACHINES.values()]
    rules = [
        {"names": allowed, "action": _ALLOW},
        # As if it were missing: the C library then uses `clone`, whose flags a filter can see.
        {"names": ["clone3"], "action": _ERRNO, "errnoRet": _ENOSYS},
    ]
    return {"defaultAction": _ERRNO, "archMap": machines, "syscalls": rules}


# ---------------------------------------------------------------------------------------- image
# The image that containers are made from: Python, the worker, and nothing that runs by itself.
#
# The base is the official slim image, pinned by digest in the Dockerfile, or another image with
# Python; without a registry, `sandbox/build-offline.sh` makes one.


IMAGE = "pettingllms-sandbox"

_WORKER_FOLDER = WORKER_MAIN.parent
_DOCKERFILE = Path(__file__).parent / "Dockerfile"


def worker_digest() -> str:
    """A short name for this version of the worker: an image made from another one is stale."""
    digest = hashlib.sha256()
    for file in sorted(_WORKER_FOLDER.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def image_name(packages: Sequence[str] = ()) -> str:
    """The name under which the image for these packages is kept."""
    # The same packages are the same image, in whichever order and case they are named.
    extra = "".join(f"-{name}" for name in sorted(packages))
    return f"{IMAGE}:{worker_digest()}{extra.lower()}"


def build_image(client: Any, *, packages: Sequence[str] = (), base: str | None = None) -> str:
    """Build the image with the engine behind `client`; returns its name.

    Args:
        client: a `docker.DockerClient`.
        packages: third-party packages to install, as for `pip`.
        base: another base image than the Dockerfile's.

    Raises:
        SandboxUnavailable: the engine could not do it.
    """
    arguments = {} if base is None else {"BASE": base}
    if packages:
        arguments["PACKAGES"] = " ".join(packages)
    import docker.errors

    name = image_name(packages)
    try:
        client.images.build(
            fileobj=io.BytesIO(_context()),
            custom_context=True,
            tag=name,
            target="with-packages" if "PACKAGES" in arguments else "sandbox",
            buildargs=arguments,
            rm=True,
            forcerm=True,
        )
    except docker.errors.DockerException as error:
        raise SandboxUnavailable(
            f"the engine could not build the image: {error}; without a registry, "
            "sandbox/build-offline.sh makes a base"
        ) from error
    return name


def _context() -> bytes:
    """The build context: the Dockerfile and the worker, always with the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(*_entry("Dockerfile", _DOCKERFILE.read_bytes()))
        for file in sorted(_WORKER_FOLDER.glob("*.py")):
            tar.addfile(*_entry(f"worker/{file.name}", file.read_bytes()))
    return buffer.getvalue()


def _entry(name: str, data: bytes) -> tuple[tarfile.TarInfo, io.BytesIO]:
    # Without a time, so that the same files give the same bytes.
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    return info, io.BytesIO(data)
