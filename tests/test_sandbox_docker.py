"""The Docker back end on a real engine: the self-check, the container's walls, and faults."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("docker", reason="the docker extra is not installed")

from pettingllms.cli import sandbox as command
from pettingllms.errors import ConfigError, SandboxUnavailable
from pettingllms.sandbox import Case, Limits, docker
from pettingllms.sandbox.client import PooledSandbox, WorkerConnection
from pettingllms.sandbox.docker import ContainerChannel, DockerSandbox
from pettingllms.sandbox.selfcheck import GROUPS, Behavior
from tests import engine as engines
from tests.behaviors import ALL

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]

SLEEP = "import time; time.sleep(0.4); print('done')"
PROBE = (Path(__file__).parent / "container_probe.py").read_text()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A maker of clients for an engine that has the image."""
    with contextlib.ExitStack() as stack:
        url = None
        if not engines.reachable(None):
            url = stack.enter_context(engines.own_engine(tmp_path_factory.mktemp("engine")))
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setenv("DOCKER_HOST", url)
        with contextlib.closing(docker.connect()) as client:
            docker.build_image(client, base=engines.host_base(client))
        yield docker.connect


@pytest.fixture(scope="module")
def sandbox(engine: Any) -> Iterator[DockerSandbox]:
    with DockerSandbox(1, connect=engine) as sandbox:
        yield sandbox


@pytest.fixture
def own(engine: Any) -> Iterator[DockerSandbox]:
    """A sandbox for one test, which may break it."""
    with DockerSandbox(1, connect=engine) as sandbox:
        sandbox.run(["1"], [Case()])
        yield sandbox


def container(sandbox: DockerSandbox) -> str:
    [link] = sandbox._pool._all
    assert isinstance(link.channel, ContainerChannel)
    assert link.channel.id is not None
    return link.channel.id


def ours(engine: Any) -> set[str]:
    with contextlib.closing(engine()) as client:
        containers = client.containers.list(
            all=True, filters={"label": docker.OWNER_LABEL}, ignore_removed=True
        )
        return {container.id for container in containers}


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(("group", "behavior"), ALL, ids=[f"{g}: {b.name}" for g, b in ALL])
def test_behavior(sandbox: DockerSandbox, group: str, behavior: Behavior):
    assert behavior.check(sandbox) == ""


def test_programs_are_in_namespaces_inside_the_container(sandbox: DockerSandbox):
    [[result]] = sandbox.run(["1"], [Case()])
    assert result.isolation == "docker+namespaces+landlock+seccomp"


def test_without_namespaces_programs_of_a_container_write_no_file(engine: Any):
    """As on hosts whose AppArmor profile forbids mounts inside of containers."""
    options = json.dumps({"without": ["namespaces"]})
    command, host = (options,), docker.host_config(1024, 1.0)
    write = "open('/tmp/x', 'w').write('1')"
    with PooledSandbox(
        lambda: WorkerConnection(
            ContainerChannel(engine, docker.image_name(), command, host), "docker"
        ),
        1,
    ) as sandbox:
        [[result], [other]] = sandbox.run([write, "print(1)"], [Case()])
        assert sandbox.isolation == ("docker", "landlock", "seccomp")
    assert "Read-only file system" in result.stderr
    assert other.stdout == "1\n"


def test_the_container_itself_is_a_wall(engine: Any):
    host = docker.host_config(512, 1.0) | {"auto_remove": False}
    with contextlib.closing(engine()) as client:
        made = client.api.create_container(
            docker.image_name(),
            entrypoint=["python3", "-c", PROBE],
            user="65534:65534",
            network_disabled=True,
            host_config=client.api.create_host_config(
                **host | {"log_config": {"Type": "json-file", "Config": {}}}
            ),
        )
        try:
            client.api.start(made["Id"])
            client.api.wait(made["Id"])
            output = client.api.logs(made["Id"]).decode()
        finally:
            client.api.remove_container(made["Id"], force=True)
    report = json.loads(output)
    assert report["uid"] == 65534
    assert report["capabilities"] == ["0" * 16] * 5
    assert (report["privileges"], report["seccomp"]) == ("1", "2")
    assert report["interfaces"] == ["lo"]
    assert report["socket"] == report["connect"] == 1  # EPERM
    assert report["root"] == 30  # EROFS
    assert report["tmp"] == errno.EROFS
    assert report["secrets"] == []
    assert not report["shm"]
    assert not report["docker"]


def test_the_container_has_no_more_than_it_was_given(engine: Any, own: DockerSandbox):
    with contextlib.closing(engine()) as client:
        attributes = client.containers.get(container(own)).attrs
    host = attributes["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 2048 << 20
    assert host["PidsLimit"] > 0
    assert host["NanoCpus"] == 10**9
    assert host["Privileged"] is False
    assert not host["Binds"]
    assert host["CapDrop"] == ["ALL"]
    assert host["ReadonlyRootfs"] is True


def test_many_callers_use_all_containers(engine: Any):
    wrong: list[str] = []
    with DockerSandbox(2, connect=engine) as sandbox:

        def call(n: int) -> None:
            for k in range(5):
                [[result]] = sandbox.run(["print(input())"], [Case(f"{n}.{k}")])
                if result.stdout != f"{n}.{k}\n":
                    wrong.append(result.stdout)

        threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(sandbox._pool._all) == 2
    assert wrong == []


def test_a_large_input_and_a_large_output_pass(sandbox: DockerSandbox):
    program = "import sys; n = len(sys.stdin.read()); sys.stdout.write('x' * (1 << 20)); sys.stderr.write(str(n))"
    [[result]] = sandbox.run([program], [Case("y" * (16 << 20))])
    assert (len(result.stdout), result.stderr) == (1 << 20, str(16 << 20))


def test_a_killed_container_is_replaced(engine: Any, own: DockerSandbox):
    first = container(own)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.extend(own.run([SLEEP], [Case()] * 3)))
    thread.start()
    time.sleep(0.5)
    with contextlib.closing(engine()) as client:
        client.api.kill(first)
    thread.join(60)
    assert [[r.status for r in row] for row in results] == [["ok"] * 3]
    assert container(own) != first


def test_a_paused_container_is_replaced(
    engine: Any, own: DockerSandbox, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pettingllms.sandbox.client.GRACE_S", 0.3)
    first = container(own)
    with contextlib.closing(engine()) as client:
        client.api.pause(first)
    monkeypatch.setattr("pettingllms.sandbox.client.START_S", 30.0)
    [[result]] = own.run(["print(1)"], [Case()], limits=Limits(wall_s=1.0))
    assert result.stdout == "1\n"
    assert eventually(lambda: first not in ours(engine))


def test_closing_leaves_no_container(engine: Any):
    before = ours(engine)
    with DockerSandbox(2, connect=engine) as sandbox:
        sandbox.run(["print(1)"] * 6, [Case()])
        assert len(ours(engine) - before) == 2
    assert eventually(lambda: ours(engine) == before)


def test_a_killed_users_containers_end(engine: Any):
    before = ours(engine)
    code = """
import os
from pettingllms.sandbox import Case, open_sandbox
s = open_sandbox("docker", 1)
s.run(["1"], [Case()])
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert eventually(lambda: ours(engine) == before)


def test_left_overs_are_removed_and_only_those_of_the_dead(engine: Any, own: DockerSandbox):
    living = container(own)
    dead = docker.owner_mark().split(":")
    dead[2:] = ["999999999", "1"]
    with contextlib.closing(engine()) as client:
        made = {
            owner: client.api.create_container(
                docker.image_name(), labels={docker.OWNER_LABEL: owner}
            )["Id"]
            for owner in (
                ":".join(dead),
                "another-machine:b:c:4:5",
                "nonsense",
                docker.owner_mark(),
            )
        }
        foreign = client.api.create_container(docker.image_name())["Id"]
        try:
            assert docker.remove_orphans(client) == 1
            left = {other.id for other in client.containers.list(all=True)}
        finally:
            for identity in {*made.values(), foreign}:
                with contextlib.suppress(Exception):
                    client.api.remove_container(identity, force=True)
    assert left >= {living, foreign, *list(made.values())[1:]}
    assert made[":".join(dead)] not in left


def test_a_missing_image_is_named_with_its_cure(engine: Any):
    with pytest.raises(SandboxUnavailable, match="pettingllms-sandbox build --packages no_such"):
        DockerSandbox(1, packages=("no_such",), connect=engine)


def test_limits_beyond_the_container_are_refused(sandbox: DockerSandbox):
    with pytest.raises(ConfigError, match="larger memory_mib"):
        sandbox.run(["1"], [Case()], limits=Limits(memory_mib=4096))


def test_packages_are_built_in_and_importable(engine: Any):
    packages = ("numpy",)
    with contextlib.closing(engine()) as client:
        # Without pip and an index: the base has them already.
        docker.build_image(client, base=engines.host_base(client, packages))
        image = client.images.get(docker.image_name())
        image.tag(*docker.image_name(packages).split(":"))
    with DockerSandbox(1, packages=packages, connect=engine) as sandbox:
        program = "import numpy; print(numpy.arange(4).sum())"
        [[result]] = sandbox.run([program], [Case()], limits=Limits(memory_mib=1024))
    assert result.stdout == "6\n", result.stderr


def test_the_command_checks_this_back_end(
    engine: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    for group in GROUPS:
        monkeypatch.setitem(GROUPS, group, GROUPS[group][-1:])
    assert command.main(["check", "--sandbox", "docker"]) == 0
    assert "docker+namespaces" in capsys.readouterr().out
    assert command.main(["doctor"]) == 0
    assert docker.image_name() in capsys.readouterr().out


def test_an_engine_that_stops_in_the_middle_gives_no_verdict(tmp_path: Path):
    with engines.own_engine(Path(f"/tmp/engine-{os.getpid()}")) as url:
        connect = functools.partial(docker.connect, url)
        with contextlib.closing(connect()) as client:
            docker.build_image(client, base=engines.host_base(client))
        sandbox = DockerSandbox(1, connect=connect)
        sandbox.run(["1"], [Case()])
        outcomes: list[object] = []

        def run() -> None:
            try:
                outcomes.append(sandbox.run([SLEEP], [Case()] * 20))
            except SandboxUnavailable as error:
                outcomes.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.6)
        engines.stop_at(url)
        thread.join(60)
        assert isinstance(outcomes[0], SandboxUnavailable)
        sandbox.close()
