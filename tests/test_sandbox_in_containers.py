"""The embedded back end inside other people's containers: what holds there, and the cure."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("docker", reason="the docker extra is not installed")

from pettingllms.sandbox import docker, isolation
from tests import engine as engines

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[1]
START = """
import json, os, sys
sys.path.insert(0, "/src")
from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox import Case, Limits, open_sandbox
"""
LOOK = (
    START
    + """
sandbox = open_sandbox("embedded", 1)
def result(program, **limits):
    return sandbox.run([program], [Case()], limits=Limits(**limits))[0][0]
look = result("import os; print(os.getuid(), os.getcwd())")
written = result("open('/tmp/x', 'w').write('1')")
full = result(
    "for n in range(10**6):\\n with open(str(n), 'wb') as file: file.write(bytes(1 << 20))",
    tmp_mib=16,
)
sandbox.close()
try:
    open_sandbox("embedded", 1, require_isolation="full").close()
    refused = ""
except SandboxUnavailable as error:
    refused = str(error)
print(json.dumps({
    "isolation": look.isolation, "stdout": look.stdout, "stderr": look.stderr[-300:],
    "written": written.status, "full": full.status, "left": os.listdir("/tmp"),
    "refused": refused,
}))
"""
)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with contextlib.closing(docker.connect()) as client:
        engines.host_base(client)
        yield client


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if not engines.reachable(None):
            url = stack.enter_context(engines.own_engine(tmp_path_factory.mktemp("engine")))
            stack.enter_context(pytest.MonkeyPatch.context()).setenv("DOCKER_HOST", url)
        yield


def look(client: Any, *, options: Sequence[str] = (), **host: Any) -> dict[str, Any]:
    """What `LOOK` finds in a container that is started in the usual way, with `options`."""
    output = client.containers.run(
        engines.BASE,
        ["python3", "-c", LOOK],
        remove=True,
        network_disabled=True,
        security_opt=list(options),
        volumes={str(ROOT / "pettingllms"): {"bind": "/src/pettingllms", "mode": "ro"}},
        **host,
    )
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


def test_a_default_container_holds_programs_by_less_and_says_so(client: Any):
    report = look(client)
    assert report["isolation"] == "landlock+seccomp"
    assert report["stdout"] == "65534 /\n", report
    assert (report["written"], report["full"], report["left"]) == ("error", "error", [])
    assert "namespaces" in report["refused"]
    assert " ".join(isolation.CONTAINER_OPTIONS) in report["refused"]


@pytest.mark.parametrize("user", ["0:0", "65534:65534", "1000:1000"])
def test_the_cure_gives_a_container_every_layer(client: Any, user: str):
    """Root has no CAP_SYS_ADMIN there, and gets its namespaces inside a user namespace."""
    options = isolation.CONTAINER_OPTIONS[1::2]
    assert isolation.CONTAINER_OPTIONS[::2] == ("--security-opt",) * len(options)
    report = look(client, options=options, user=user)
    assert report["isolation"] == "namespaces+landlock+seccomp", report
    assert report["stdout"] == "65534 /scratch/tmp\n", report
    assert (report["written"], report["full"]) == ("ok", "error")
    assert (report["left"], report["refused"]) == ([], "")


def test_root_without_any_capability_still_holds_programs(client: Any):
    report = look(client, cap_drop=["ALL"])
    assert report["isolation"] == "landlock+seccomp"
    assert report["full"] == "error"
