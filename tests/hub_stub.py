"""The part of the Hugging Face hub's HTTP interface that uploads and downloads use, in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_a_token_that_may_write"
COMMIT = "c" * 40


class Hub(ThreadingHTTPServer):
    """Repositories by name, each with its files."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.large: dict[str, bytes] = {}
        """Uploads by digest, as Git LFS has them."""
        self.asked: list[str] = []
        self.broken = 0
        """A status that every request gets, if not 0."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer("GET")

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def _answer(self, method: str) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub.asked.append(f"{method} {path}")
        if hub.broken:
            self._say({"error": "not today"}, hub.broken)
        elif path.startswith("/large/"):
            hub.large[path.rpartition("/")[2]] = data
            self._say({})
        elif method in ("GET", "HEAD"):
            self._read(path)
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._say({"error": "Invalid username or password."}, 401)
        else:
            self._write(path, data)

    def _write(self, path: str, data: bytes) -> None:
        hub = self.server
        if path == "/api/repos/create":
            asked = json.loads(data)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            hub.private.setdefault(name, bool(asked.get("private")))
            exists = name in hub.repos
            hub.repos.setdefault(name, {})
            self._say({"url": f"{hub.url}/{name}"}, 409 if exists else 200)
        elif path == "/api/validate-yaml":
            self._say({"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for file in json.loads(data)["files"]
            ]
            self._say({"files": files})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**blob, "actions": {"upload": {"href": f"{hub.url}/large/{blob['oid']}"}}}
                for blob in json.loads(data)["objects"]
            ]
            self._say({"transfer": "basic", "objects": objects})
        elif match := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            for line in data.splitlines():
                self._commit(hub.repos[match[1]], json.loads(line))
            self._say({"commitUrl": f"{hub.url}/{match[1]}/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self._say({"error": f"no such path {path}"}, 404)

    def _commit(self, files: dict[str, bytes], entry: dict[str, Any]) -> None:
        value = entry["value"]
        if entry["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif entry["key"] == "lfsFile":
            files[value["path"]] = self.server.large[value["oid"]]

    def _read(self, path: str) -> None:
        hub = self.server
        if path == "/api/whoami-v2":
            self._say({"name": "me", "type": "user"})
        elif match := re.fullmatch(r"/api/models/(.+)/tree/[^/]+", path):
            files = hub.repos[match[1]]
            listed = [
                {
                    "type": "file",
                    "path": name,
                    "size": len(content),
                    "oid": hashlib.sha1(content, usedforsecurity=False).hexdigest(),
                }
                for name, content in sorted(files.items())
            ]
            self._say(listed)
        elif match := re.fullmatch(r"/api/models/(.+?)(/revision/[^/]+)?", path):
            repo = hub.repos.get(match[1])
            if repo is None:
                self._say({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
                return
            names = [{"rfilename": name} for name in sorted(repo)]
            self._say(
                {"id": match[1], "sha": COMMIT, "private": False, "siblings": names, "tags": []}
            )
        elif match := re.fullmatch(r"/(.+?)/resolve/[^/]+/(.+)", path):
            content = hub.repos.get(match[1], {}).get(match[2])
            if content is None:
                self._say({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound")
                return
            tag = f'"{hashlib.sha256(content).hexdigest()}"'
            self._send(content, 200, ETag=tag, X_Repo_Commit=COMMIT)
        else:
            self._say({"error": f"no such path {path}"}, 404)

    def _say(self, value: Any, status: int = 200, **headers: str) -> None:
        self._send(json.dumps(value).encode(), status, **headers)

    def _send(self, data: bytes, status: int, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@contextmanager
def hub_stub() -> Iterator[Hub]:
    """A running hub."""
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
