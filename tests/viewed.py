"""`pettingllms-view` as users start it, for tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

ROOT = Path(__file__).parents[1]


class Viewer(NamedTuple):
    """A running viewer."""

    port: int
    process: subprocess.Popen[str]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def get(
        self, path: str, host: str | None = None, method: str = "GET"
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer; the path is sent as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True)
            connection.putheader("Host", f"127.0.0.1:{self.port}" if host is None else host)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()

    def ask(self, name: str, **values: Any) -> Any:
        """The answer to a question of the page."""
        status, _, body = self.get(f"/api/{name}?{urlencode(values)}")
        answer = json.loads(body)
        assert status == 200, answer
        return answer


@contextlib.contextmanager
def viewer(*words: str, cwd: Path) -> Iterator[Viewer]:
    """Runs `pettingllms-view` in `cwd`; it must stop at SIGINT with exit code 0."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "pettingllms.cli.view", "--port", "0", *words],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), address
            yield Viewer(int(address.rstrip("/").rpartition(":")[2]), process)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()
