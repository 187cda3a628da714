"""An OpenAI-compatible server that answers as a test wants it to, and notes what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-a-key-that-nobody-may-see-4711"
Misbehave = Callable[["Handler", int], bool]


class Stub(ThreadingHTTPServer):
    """A server; `misbehave` may answer request number N, counted from 1, and says whether it did."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.misbehave: Misbehave = lambda handler, number: False
        self.text: Callable[[dict[str, Any]], str] = said
        self.usage: dict[str, int] | None = {
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "total_tokens": 10,
        }
        self.busy = self.most_busy = 0
        self.let_go = threading.Event()
        """What `hang` waits for."""
        self.lock = threading.Lock()

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def completion(self, body: dict[str, Any], **changes: Any) -> bytes:
        message = {"role": "assistant", "content": self.text(body)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
        return json.dumps({**answer, "choices": [choice], "usage": self.usage, **changes}).encode()


def said(body: dict[str, Any]) -> str:
    """A text that differs between prompts and seeds."""
    return f"{body.get('seed', 'greedy')}:{len(body['messages'][0]['content'])}"


class Handler(BaseHTTPRequestHandler):
    server: Stub
    protocol_version = "HTTP/1.1"
    body: dict[str, Any]

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stub = self.server
        with stub.lock:
            stub.bodies.append(self.body)
            stub.keys.add(self.headers["Authorization"])
            number = len(stub.bodies)
            stub.busy += 1
            stub.most_busy = max(stub.most_busy, stub.busy)
        try:
            if not self.path.endswith("/v1/chat/completions"):
                self.reply(b'{"error": {"message": "no such path"}}', 404)
            elif not stub.misbehave(self, number):
                self.reply(stub.completion(self.body))
        except OSError:
            pass  # the client has gone, as it should
        finally:
            with stub.lock:
                stub.busy -= 1

    def reply(
        self, data: bytes, status: int = 200, length: int | None = None, **headers: str
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status: int, message: str = "the server is unwell", **headers: Any) -> bool:
        self.reply(json.dumps({"error": {"message": message}}).encode(), status, **headers)
        return True

    def hang(self) -> bool:
        """Answers nothing until the test ends."""
        self.server.let_go.wait(30)
        self.close_connection = True
        return True

    def cut(self) -> bool:
        """Announces more than it sends."""
        data = self.server.completion(self.body)
        self.reply(data[: len(data) // 2], length=len(data))
        self.close_connection = True
        return True

    def answer(self, data: bytes) -> bool:
        self.reply(data)
        return True

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@contextmanager
def stubbed() -> Iterator[Stub]:
    """A running stub."""
    with Stub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.let_go.set()
            server.shutdown()
            thread.join()


def everything_in(folder: Any) -> bytes:
    """All bytes of all files below a folder, and their names."""
    content = b""
    for path in sorted(folder.rglob("*")):
        content += str(path).encode()
        if path.is_file():
            with contextlib.suppress(OSError):
                content += path.read_bytes()
    return content
