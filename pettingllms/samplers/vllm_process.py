"""vLLM's OpenAI server, which serves a team: started and stopped here, and entered here as well.

`VllmProcess` runs `python -m pettingllms.samplers.vllm_process`, which is vLLM's own server with two
things added: it ends with the process that started it, even if that process was killed, and
`RequestGuard` refuses requests without the key. The arguments are vLLM's.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import secrets
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from pettingllms.errors import SamplerUnavailable
from pettingllms.samplers.base import SamplingParams

BASE = "base"
"""The name of the bare base model, which nobody asks."""
START_SECONDS = 600.0
STOP_SECONDS = 20.0
_HOST = "127.0.0.1"
_TICK_SECONDS = 0.1
_LOG_LINES = 15
_PR_SET_PDEATHSIG = 1

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ServerError(Exception):
    """An answer with another status than 200; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass(frozen=True, slots=True)
class VllmEndpoint:
    """Address and API key of a server on this machine. JSON over HTTP; nothing is retried here."""

    url: str
    key: str | None = field(default=None, repr=False)

    def healthy(self, timeout: float) -> bool:
        """Returns whether the server reports that it is healthy.

        Raises:
            httpx2.HTTPError: it does not answer.
        """
        with self._client(timeout) as client:
            return client.get("/health").status_code == 200

    def get(self, path: str, timeout: float) -> Any:
        """The JSON at a path; raises as `post` does."""
        with self._client(timeout) as client:
            return _answer(client.get(path))

    def post(self, path: str, content: Mapping[str, Any], timeout: float) -> Any:
        """The answer to JSON content, decoded if it is JSON.

        Raises:
            ServerError: another status than 200.
            httpx2.HTTPError: no answer within `timeout` seconds, or not of HTTP.
        """
        with self._client(timeout) as client:
            return _answer(client.post(path, json=dict(content)))

    def stream(
        self, path: str, content: Mapping[str, Any], timeout: float
    ) -> Generator[dict[str, Any]]:
        """The events that answer JSON content; leaving the iterator ends the request.

        Raises:
            ServerError: another status than 200, or an error among the events.
            httpx2.HTTPError: no answer in time, or not of HTTP.
        """
        with (
            self._client(timeout) as client,
            client.stream("POST", path, json=dict(content)) as answer,
        ):
            if answer.status_code != 200:
                answer.read()
                raise ServerError(answer.status_code, _message(answer.text))
            for line in answer.iter_lines():
                text = line.removeprefix("data:").strip()
                if text == line.strip() or text == "[DONE]":  # no data, or the last
                    continue
                try:
                    event = json.loads(text)
                except ValueError as error:
                    raise ServerError(502, f"an event is not JSON: {text[:60]!r}") from error
                if not isinstance(event, dict) or "error" in event:
                    raise ServerError(500, _message(text))
                yield event

    def _client(self, timeout: float) -> httpx2.Client:
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        # Without the proxy that the environment may name: the server listens on this machine.
        return httpx2.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)


def _answer(response: httpx2.Response) -> Any:
    if response.status_code != 200:
        raise ServerError(response.status_code, _message(response.text))
    try:
        return response.json()
    except ValueError:
        return response.text


def _message(text: str) -> str:
    """The error message in any of the forms that vLLM uses."""
    try:
        error = json.loads(text).get("error", text)
        return str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        return text[:500]


def completion_body(
    model: str,
    prompt_ids: Sequence[int],
    n: int,
    params: SamplingParams,
    seed: int,
    end_ids: Sequence[int],
) -> dict[str, Any]:
    """The body of a request; names every parameter that a server could otherwise set by itself."""
    return {
        "model": model,
        "prompt": list(prompt_ids),
        "n": 1 if params.greedy else n,
        "max_tokens": params.max_new_tokens,
        "temperature": 0.0 if params.greedy else params.temperature,
        "top_p": 1.0 if params.greedy else params.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": None if params.greedy else seed,
        "logprobs": 0,
        "stop_token_ids": list(end_ids),
        "ignore_eos": True,
        "return_token_ids": True,
    }


class VllmProcess:
    """A vLLM server that this process starts, watches and stops.

    It listens on this machine only, asks for a random key, writes to a log file, and ends with this
    process in any case.
    """

    def __init__(self, model: str, arguments: Sequence[str], log: Path) -> None:
        self.log, self._key = log, secrets.token_urlsafe(24)
        self._words = ["--model", model, "--served-model-name", BASE, *arguments]
        self._words += ["--disable-uvicorn-access-log"]
        self._process: subprocess.Popen[bytes] | None = None
        self._stop: Any = None
        self.endpoint = VllmEndpoint(f"http://{_HOST}:0", self._key)

    @property
    def running(self) -> bool:
        """True while the process exists; it may hang."""
        return self._process is not None and self._process.poll() is None

    def start(self, seconds: float = START_SECONDS) -> None:
        """Starts the server and waits until it answers.

        Raises:
            SamplerUnavailable: it ended, or did not answer in time; quotes the end of its log.
        """
        port = free_port(_HOST)
        self.endpoint = VllmEndpoint(f"http://{_HOST}:{port}", self._key)
        words = [*self._words, "--host", _HOST, "--port", str(port)]
        words += ["--middleware", "pettingllms.samplers.vllm_process.RequestGuard"]
        environment = {
            # On a CPU, saves one of vLLM's three processes; has no effect on a GPU.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            **os.environ,
            # TRL sets this to ERROR when it is imported.
            "VLLM_LOGGING_LEVEL": "INFO",
            "VLLM_API_KEY": self._key,
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "PETTINGLLMS_PARENT": str(os.getpid()),
        }
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pettingllms.samplers.vllm_process", *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # In a process group of its own, so that Ctrl-C does not reach it and `_stop` ends all of it.
                start_new_session=True,
            )
        # Also at the end of the interpreter, and where this object is dropped without `stop`.
        self._stop = weakref.finalize(self, _stop, self._process)
        deadline = time.monotonic() + seconds
        # Loading a model may take minutes, and the server listens only afterwards.
        while not self._answers():
            if not self.running or time.monotonic() > deadline:
                state = "did not answer in time" if self.running else "ended"
                self.stop()
                raise SamplerUnavailable(f"the vLLM server {state} while starting{self.tail()}")
            time.sleep(_TICK_SECONDS)

    def stop(self) -> None:
        """Ends the server and everything it started; does nothing if none is running."""
        if self._stop is not None:
            self._stop()

    def wait(self) -> int:
        """Waits until the server ends by itself; its exit code."""
        return 0 if self._process is None else self._process.wait()

    def tail(self) -> str:
        """The end of the log, to append to an error's text."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[
                -_LOG_LINES:
            ]
        except OSError:
            lines = []
        return f"; the end of {self.log}:\n" + "\n".join(f"  | {line}" for line in lines)

    def _answers(self) -> bool:
        try:
            return self.endpoint.healthy(1.0)
        except httpx2.HTTPError:
            return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    # Asked first, so that vLLM can end its own processes.
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    # Even if the leader is gone: its engine's process may have outlived it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port(host: str) -> int:
    """A port on which no process listens at the moment."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


# ------------------------------------------------------------------------------ in the child


class RequestGuard:
    """ASGI middleware that asks for the key everywhere but at /health; vLLM does on some paths only.

    Only this package knows the key, and asks adapters alone: requests for the bare model would be
    computed with an adapter by vLLM 0.32 on a CPU, where both are in one batch.
    """

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]) -> None:
        self.app, self._words = app, f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuses a request, or passes it on."""
        if scope["type"] == "http" and scope["path"] != "/health":
            sent = dict(scope["headers"]).get(b"authorization", b"")
            if not secrets.compare_digest(sent, self._words):
                body = b'{"error": {"message": "wrong or missing API key", "code": 401}}'
                headers = [(b"content-type", b"application/json")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": body})
                return
        await self.app(scope, receive, send)


def _end_with_parent(parent: int) -> None:
    """Asks the kernel, if it is Linux, to send SIGTERM when the parent process is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # The parent may have ended before the kernel was asked, and no signal comes for that.
    if os.getppid() != parent:
        raise SystemExit("the process that started this server is gone")


def main() -> None:
    """Serves until the process is stopped."""
    _end_with_parent(int(os.environ.pop("PETTINGLLMS_PARENT")))
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
