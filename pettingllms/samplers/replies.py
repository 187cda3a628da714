"""The replies of models behind an API, on disk, and their cost: nothing is paid for twice.

    samples.jsonl   a line for each reply, written before its thread asks for another
        key                 digest of the decision: policy, prompt, seed and settings of sampling
        policy              api:MODEL
        text, truncated, refused    the reply; null where none came
        prompt_tokens, completion_tokens
        estimated           whether the server did not count them, so that we did
        model               the name of the model as the server gave it

A line with the text null counts in the budget alone: the reply was paid for and is of no use. The
file only grows. A run that continues from an earlier checkpoint asks for the same decisions again,
and finds their replies here; so does every later evaluation of the same decisions.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pettingllms.errors import RunFolderError


class ApiReply(NamedTuple):
    """The reply of a model."""

    text: str
    truncated: bool
    """Whether it was cut at the token limit."""
    refused: bool = False
    """Whether the model refused, or answered without a text."""


class Cost(NamedTuple):
    """The tokens of one request."""

    prompt: int
    completion: int
    estimated: bool = False
    """Whether the server did not count them."""

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and the completion."""
        return self.prompt + self.completion


class BudgetSpent(Exception):
    """The next reply could exceed the budget."""


class ReplyLog:
    """The replies of a run, and its budget; several threads may use it.

    Args:
        path: samples.jsonl, which need not exist yet; None keeps the replies in memory.
        most: tokens that may be spent, those of earlier starts included; None: no bound.

    Raises:
        RunFolderError: the file cannot be read, or is damaged.
    """

    def __init__(self, path: Path | None = None, most: int | None = None) -> None:
        self.path, self.most = path, most
        self.spent = 0
        self._reserved = 0
        self._known: dict[str, ApiReply] = {}
        self._changed = threading.Condition()
        if path is not None and path.exists():
            self._read(path)

    def __len__(self) -> int:
        """The number of known replies."""
        return len(self._known)

    def find(self, key: str) -> ApiReply | None:
        """The reply to a decision, if it is known."""
        return self._known.get(key)

    @contextmanager
    def reserved(self, most: int) -> Iterator[None]:
        """Sets tokens aside for a request, for the length of a `with` block.

        Waits while requests in flight may turn out to leave enough.

        Raises:
            BudgetSpent: they would exceed the budget.
        """
        with self._changed:
            while self.most is not None and self.spent + self._reserved + most > self.most:
                # Nothing in flight could give tokens back.
                if not self._reserved:
                    raise BudgetSpent
                # A request in flight mostly costs less than was set aside for it.
                self._changed.wait()
            self._reserved += most
        try:
            yield
        finally:
            with self._changed:
                self._reserved -= most
                self._changed.notify_all()

    def add(
        self, key: str, policy: str, reply: ApiReply | None, cost: Cost, model: str = ""
    ) -> None:
        """Writes a reply, or what a lost one may have cost, and waits until it is on disk.

        Raises:
            RunFolderError: it cannot be written; the reply is kept in memory.
        """
        row = {
            "key": key,
            "policy": policy,
            "text": None if reply is None else reply.text,
            "truncated": None if reply is None else reply.truncated,
            "refused": None if reply is None else reply.refused,
            "prompt_tokens": cost.prompt,
            "completion_tokens": cost.completion,
            "estimated": cost.estimated,
            "model": model,
        }
        with self._changed:
            # Counted before it is written: it has been paid, whether or not the disk takes it.
            self.spent += cost.tokens
            if reply is not None:
                self._known[key] = reply
            if self.path is not None:
                _append(self.path, row)

    def _read(self, path: Path) -> None:
        """Reads the file, and cuts off a half-written last line."""
        try:
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            for number, line in enumerate(data[:whole].splitlines(), 1):
                self._take(path, number, line)
            if whole < len(data):
                os.truncate(path, whole)
        except RunFolderError:  # an OSError that already says what is wrong
            raise
        except OSError as error:
            raise RunFolderError(f"{path} cannot be read: {error.strerror}") from error

    def _take(self, path: Path, number: int, line: bytes) -> None:
        try:
            row = json.loads(line)
            cost = int(row["prompt_tokens"]) + int(row["completion_tokens"])
            key, text, truncated = row["key"], row["text"], row["truncated"]
        except (ValueError, TypeError, KeyError) as error:
            raise RunFolderError(
                f"{path} is damaged in line {number}: {error}; restore it, or remove the line, "
                "whose reply is then asked for again"
            ) from error
        self.spent += cost
        if text is not None:
            self._known[str(key)] = ApiReply(str(text), bool(truncated), bool(row.get("refused")))


def _append(path: Path, row: dict[str, Any]) -> None:
    try:
        with path.open("ab") as file:
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            # The reply has been paid for, and a lost line would be paid for again.
            os.fsync(file.fileno())
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {error.strerror}; free space or fix permissions, then resume"
        ) from error
