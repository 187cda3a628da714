"""Engines behind TLS: the relay moves every byte both ways, and containers run programs over it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox import Case, docker, docker_image
from pettingllms.sandbox.docker import DockerSandbox
from pettingllms.sandbox.docker_streams import plain_end
from tests import engine as engines

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, and a key and certificate for `localhost` signed by it."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(("openssl", *words), cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "rsa:2048", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=ca")
    openssl("req", *new, "-keyout", "key.pem", "-out", "request", "-subj", "/CN=localhost")
    (folder / "names").write_text(
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"
    )
    signed = ("-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-extfile", "names")
    openssl("x509", "-req", "-in", "request", *signed, "-out", "cert.pem")
    return folder


@contextlib.contextmanager
def connected(certificates: Path) -> Iterator[tuple[ssl.SSLSocket, socket.socket]]:
    """Both ends of a TLS connection; the second one is the relay's plain socket."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    trusting = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    made: list[ssl.SSLSocket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            made.append(serving.wrap_socket(listening.accept()[0], server_side=True))

        thread = threading.Thread(target=accept)
        thread.start()
        raw = socket.create_connection(listening.getsockname())
        secure = trusting.wrap_socket(raw, server_hostname="localhost")
        thread.join()
    with made[0] as far, plain_end(secure) as near:
        far.settimeout(20)
        near.settimeout(20)
        yield far, near


def received(end: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (more := end.recv(1 << 16)):
        data += more
    return bytes(data)


@needs_openssl
def test_every_byte_arrives_both_ways_at_once_however_slow_the_reader(certificates):
    up, down = os.urandom(5 << 20), os.urandom(7 << 20)
    with connected(certificates) as (far, near):
        # One thread an end: an SSL socket takes no reads and writes at the same time.
        def play_far() -> None:
            time.sleep(0.3)
            assert received(far, len(up)) == up
            far.sendall(down)

        thread = threading.Thread(target=play_far)
        thread.start()
        near.sendall(up)
        time.sleep(0.3)
        assert received(near, len(down)) == down
        thread.join()


@needs_openssl
def test_what_was_sent_before_the_far_end_closed_still_arrives(certificates):
    with connected(certificates) as (far, near):
        far.sendall(b"x" * 300_000)
        far.shutdown(socket.SHUT_RDWR)
        assert received(near, 400_000) == b"x" * 300_000


@needs_openssl
def test_closing_the_plain_end_closes_the_connection_and_ends_the_thread(certificates):
    with connected(certificates) as (far, near):
        near.close()
        assert received(far, 1) == b""
    deadline = time.monotonic() + 10
    while any(thread.name == "tls relay" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_engine_by_ssh_is_refused_with_the_way_that_works(monkeypatch):
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@host")
    with pytest.raises(SandboxUnavailable, match=r"ssh -nNT -L .* me@host"):
        docker.connect()


@pytest.mark.docker
@pytest.mark.timeout(180)
@needs_openssl
def test_an_engine_behind_tls_runs_programs(certificates, monkeypatch):
    # requests prefers these to the authority that the engine's address comes with.
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    names = {"ca": "tlscacert", "cert": "tlscert", "key": "tlskey"}
    options = [f"--{option}={certificates}/{name}.pem" for name, option in names.items()]
    options += ["--tlsverify", f"--host=tcp://127.0.0.1:{port}"]
    with engines.own_engine(Path(f"/tmp/engine-{os.getpid()}"), *options) as url:
        with contextlib.closing(docker.connect(url)) as client:
            docker_image.build_image(client, base=docker_image.host_base(client))
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{port}")
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
        monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates))
        program = "print(input()[::-1])"
        with DockerSandbox(2) as sandbox:
            rows = sandbox.run([program] * 4, [Case("ab" * 200_000)])
            assert {row[0].stdout for row in rows} == {"ba" * 200_000 + "\n"}
            with pytest.raises(SandboxUnavailable, match="no runtime 'runk'; did you mean 'runc'"):
                DockerSandbox(1, runtime="runk")
        with DockerSandbox(1, runtime="runc") as sandbox:
            [[result]] = sandbox.run(["print(1)"], [Case()])
        assert result.status == "ok"
