"""The Ray cluster of a run: one started on this machine, or one that is running already.

A cluster started here listens on 127.0.0.1 alone, lives in a temporary folder of its own, and ends
with this process however that ends (`pettingllms.distributed.guardian`). Ray's token authentication
stays as it is. `address="local"` is given, because without an address Ray joins any cluster that it
finds on the machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import logging
import math
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pettingllms import __path__ as package_path
from pettingllms import __version__
from pettingllms.data.rows import data_digests
from pettingllms.distributed.heart import watched
from pettingllms.distributed.pools import WORKERS, placed, pools_of
from pettingllms.errors import ConfigError, PettingLLMsError
from pettingllms.samplers.vllm_args import require_vllm
from pettingllms.trainers.config import ResolvedConfig

BESIDE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch between a node that others can reach ("1") and one on the loopback address."""
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0
"""In which a running cluster has to let a process in."""
NODE_SECONDS = 180.0
"""For a node to start a process and import this package there, however busy it is."""
PREFIX = "pllms-ray-"
"""Begins the name of the folder of a cluster that a run starts for itself."""
OTHER_EXTRAS = r"extra == .(?!train|ray|vllm|math|reasoning)"
"""Requirements that change no number."""
_TRIAL = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    sys.exit(" ".join(str(error).split()))
"""


@contextlib.contextmanager
def connected(
    config: ResolvedConfig, learners: Sequence[str] = (), policies: Sequence[str] = ()
) -> Iterator[Any]:
    """Connects this process to Ray; yields the module `ray`.

    A connection that this process has already is used, and stays.

    Args:
        config: says how many workers, where, and with what.
        learners: policies that learn, each in a process.
        policies: those that are sampled, by engines if the settings say so.

    Raises:
        ConfigError: Ray or vLLM is not installed, nothing answers, the cluster runs another version of Ray,
            Python, this package or what that needs, or it has too few CPUs or GPUs.
    """
    address, pools = config.ray_address, pools_of(config, learners, policies)
    if config.sampler == "vllm":
        require_vllm()
    if address is None:
        os.environ.setdefault(BESIDE, "0")  # Ray's own processes read it, too
        # Of the processes that are started, which share this machine's cores; this one has imported torch.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    ray = require_ray()
    if ray.is_initialized():
        with watched(ray):
            yield ray
        return
    with contextlib.ExitStack() as stack:
        if address is None:
            folder = stack.enter_context(_guarded_folder())
            cpus = sum(share.cpus * share.ranks * share.replicas for share in pools.values())
            _start(ray, cpus + (config.workers - 1) * pools[WORKERS].cpus, folder)
        else:
            _join(ray, address)
        stack.callback(ray.shutdown)
        if address is not None:
            check_nodes(ray, config)
        placed(pools, config.workers, config.device, ray.cluster_resources())
        stack.enter_context(watched(ray))
        yield ray


def require_ray() -> Any:
    """The module `ray`.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"workers need Ray, which cannot be imported ({error}): pip install 'pettingllms[ray]'"
        ) from error
    return ray


def _start(ray: Any, cpus: float, folder: Path) -> None:
    # Where Ray was imported before, it has read the variable already.
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    _init(
        ray,
        f"Ray cannot start in {folder}; TMPDIR chooses another place",
        address="local",
        num_cpus=max(os.cpu_count() or 1, math.ceil(cpus)),
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(folder),
        # What a killed worker has started ends with it, and not when the cluster does.
        _system_config={"process_group_cleanup_enabled": True},
    )


def _join(ray: Any, address: str) -> None:
    if address.startswith("ray://"):
        raise ConfigError(
            f"ray_address {address}: run the command on a machine of the cluster, with auto or "
            "HOST:PORT; Ray's client is not supported"
        )
    if address == "auto" and not os.environ.get("RAY_ADDRESS"):
        address = _shared(ray)
    host, _, port = address.rpartition(":")
    if address != "auto":
        # Ray itself waits for minutes where nothing answers.
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"ray_address {address}: nothing answers there ({error}); give auto, or HOST:PORT "
                "as `ray start --head` prints it"
            ) from error
    _try(address)
    _init(ray, f"ray_address {address}", address=address)


def _shared(ray: Any) -> str:
    """The address of a cluster on this machine that no run has started for itself; Ray's `auto` takes any.

    Raises:
        ConfigError: there are only such.
    """
    if not (taken := private_addresses()):
        return "auto"
    services = ray._private.services
    if not (others := sorted(services.find_gcs_addresses() - taken)):
        raise ConfigError(
            "ray_address auto: the only Ray clusters on this machine belong to other runs; start one "
            "with `ray start --head`, or leave --ray-address out for a cluster of this run's own"
        )
    latest: str = services.find_bootstrap_address(None)
    return latest if latest in others else others[0]


def private_addresses() -> set[str]:
    """Addresses of the clusters on this machine that runs have started for themselves."""
    addresses = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            words = os.fsdecode((process / "cmdline").read_bytes())
            if f"/{PREFIX}" in words:
                addresses |= set(re.findall(r"--gcs-address=([\w.:-]+)", words))
    return addresses


def _try(address: str) -> None:
    """Joins the cluster in a process of its own: where one is dying, Ray waits or aborts the process.

    Raises:
        ConfigError: it cannot be joined, or does not answer in time.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRIAL, address],
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"ray_address {address}: the cluster did not answer within {ANSWER_SECONDS:g} seconds; "
            "is it being stopped? `ray status` asks it"
        ) from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ConfigError(f"ray_address {address}: {reason}")


def check_nodes(ray: Any, config: ResolvedConfig) -> None:
    """Compares the `versions` on all nodes with those here.

    Raises:
        ConfigError: a node has another, lacks the package, or does not answer; names the first.
    """
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    data = config.dataset, config.env_args
    here = versions(*data)
    for node in (entry for entry in ray.nodes() if entry["Alive"]):
        place, name = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False), node["NodeName"]
        ask = ray.remote(num_cpus=0, max_retries=1, scheduling_strategy=place)(versions)
        with on_node(name):
            try:
                there = ray.get(ask.remote(*data), timeout=NODE_SECONDS)
            except GetTimeoutError as error:
                raise ConfigError(f"no answer within {NODE_SECONDS:g} seconds") from error
            except RayError as error:
                why = str(error).strip().splitlines()[-1]
                raise ConfigError(f"pettingllms {__version__} cannot be imported: {why}") from error
            check_same(here, there)


def check_same(driver: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Compares what a node has with what the driver has; a `ConfigError` names the first difference."""
    for what in {**driver, **there}:
        ours, theirs = (side.get(what, "missing") for side in (driver, there))
        if theirs != ours:
            raise ConfigError(
                f"{what} is {theirs}, and {ours} where the driver runs; make it the same on every node"
            )


@contextlib.contextmanager
def on_node(name: str | None = None) -> Iterator[None]:
    """Names a node of several, that of this process by default, in errors of the block."""
    try:
        yield
    except PettingLLMsError as error:
        name = name or require_ray().util.get_node_ip_address()
        if not name.startswith("127."):  # else the only one
            error.args = (f"on node {name} of the cluster: {error}",)
        raise


def sent(plan: Any) -> Any:
    """A reference to what processes are made from.

    Raises:
        ConfigError: it holds an environment that cannot be sent to another process.
    """
    import ray

    try:
        return ray.put(plan)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the environment cannot be sent to workers ({error}); give what makes it, such as its "
            "class or a path my_package.my_env:env"
        ) from error


def versions(dataset: str | None, env_args: Mapping[str, Any]) -> dict[str, str]:
    """What must be equal on all nodes: Python, this package, its source, what it plays and trains with, data."""
    installed = {
        "Python": platform.python_version(),
        "pettingllms": __version__,
        "source of pettingllms": source(package_path),
    }
    for name in sorted(dependencies()):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            # A CPU's and a GPU's PyTorch have the same version, but for what follows its plus.
            installed[name] = importlib.metadata.version(name).partition("+")[0]
    data = data_digests(dataset, env_args)
    return installed | {f"data of {name}": digest for name, digest in data.items()}


def dependencies() -> set[str]:
    """The packages that this one plays and trains with; none where it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        wanted = importlib.metadata.requires("pettingllms") or []
        used = (requirement for requirement in wanted if not re.search(OTHER_EXTRAS, requirement))
        return {re.split(r"[^\w.-]", requirement)[0] for requirement in used}
    return set()


def source(folders: Sequence[str]) -> str:
    """A digest of the Python files in the folders."""
    digest = hashlib.sha256()
    for folder in map(Path, folders):
        for file in sorted(folder.rglob("*.py")):
            digest.update(f"{file.relative_to(folder)}\n{file.stat().st_size}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


@contextlib.contextmanager
def _guarded_folder() -> Iterator[Path]:
    """A temporary folder that is removed at the end, also if this process is killed."""
    # The paths of Ray's sockets begin with it, and the system bounds them to 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    guardian = subprocess.Popen(  # its standard input ends with this process
        [sys.executable, "-m", "pettingllms.distributed.guardian", str(folder)],
        stdin=subprocess.PIPE,
        # What it might say must not end it where nobody reads, as behind `| head`.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the run, not for who cleans up after it
    )
    try:
        yield folder
    finally:
        assert guardian.stdin is not None
        guardian.stdin.close()
        guardian.wait()


def _init(ray: Any, failed: str, **options: Any) -> None:
    """Calls `ray.init`, and restores the signal handlers that it replaces; a `ConfigError` begins with `failed`."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{failed}: {' '.join(str(error).split())}") from error
    # Ray prints a paragraph for each process that dies; `fleet` logs a line.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    if threading.current_thread() is threading.main_thread():
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
