"""One request to an OpenAI-compatible server, and everything that its answer may be instead of one.

The answer is read here and not by the client's models: bounded in size and time, and only what is
needed of it, so that a server may leave out what it likes. The key is in the header alone: what a
server says is written and shown without it.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from pettingllms.errors import ConfigError
from pettingllms.samplers.base import SamplingParams
from pettingllms.samplers.replies import ApiReply, Cost
from pettingllms.types import JsonObject

if TYPE_CHECKING:
    import openai

NO_KEY = "none"
"""Sent where no key is given: local servers take any."""
MOST_BYTES = 1 << 24
"""Of an answer."""
FIXED = ("model", "messages", "stream", "n")
"""Fields of a request that are set here alone."""
_MAY_PASS = (408, 409, 425, 429)
_SHOWN = 200
_SECRET = 4
"""Characters of a key from which on it is one, and not a word."""
_SEEDS = 1 << 31


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The address of a server, and how it is asked.

    Raises:
        ConfigError: an invalid address, a number out of range, or a field that is set here.
    """

    base: str
    """Address as OpenAI's clients take it, such as http://127.0.0.1:8000/v1."""
    key: str | None = field(default=None, repr=False)
    concurrency: int = 16
    """Requests at the same time."""
    timeout: float = 120.0
    """Seconds for an answer."""
    args: JsonObject = field(default_factory=dict)
    """More fields of the body of a request; None leaves one out."""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base)
            whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            whole = None
        if not whole:
            raise ConfigError(
                f"api_base must be an address like http://127.0.0.1:8000/v1, got {self.base!r}"
            )
        # Files would hold a secret in it.
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(
                f"api_base must be a plain address, without a user or a query, got one for "
                f"{parts.hostname}; write the key into a file and give --api-key-file FILE"
            )
        for name in self.args:
            if name in FIXED:
                raise ConfigError(f"api_args.{name} cannot be set; {', '.join(FIXED)} are set here")


class Answer(NamedTuple):
    """An answer that could be read."""

    reply: ApiReply
    cost: Cost | None
    """None where the server does not say."""
    model: str
    """The name that the server gives the model."""


class Trouble(Exception):
    """No usable answer; another attempt may bring one.

    Args:
        text: what happened.
        sent: whether the server may have computed a reply.
        cost: of that reply, as the server says.
        retry_after: seconds that the server asks to wait.
    """

    def __init__(
        self, text: str, *, sent: bool = False, cost: Cost | None = None, retry_after: float = 0.0
    ) -> None:
        super().__init__(text)
        self.sent, self.cost, self.retry_after = sent, cost, retry_after


class Refused(Exception):
    """The server will answer in the same way the next time."""


def read_key(path: str) -> str:
    """The key in a file.

    Raises:
        ConfigError: the file cannot be read, or holds something else; never quotes it.
    """
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"api_key_file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        key = ""
    # A header can hold nothing else, and spaces or quotes are those of a file with more than a key.
    if not key or not key.isascii() or not key.isprintable() or set(key) & set(" \"'\\"):
        raise ConfigError(
            f"api_key_file {path} must hold one key on one line, and nothing else; it has "
            f"{len(key.split())} words"
        )
    return key


class ApiCall:
    """Asks a server for single completions; several threads may use it.

    Raises:
        ConfigError: the `openai` client is not installed.
    """

    def __init__(self, settings: ApiSettings) -> None:
        try:
            import openai
        except ModuleNotFoundError as error:
            raise ConfigError(
                "policies api:MODEL need the openai client: pip install 'pettingllms[api]'"
            ) from error
        # Only where the client is: it is built on the same library.
        from pettingllms.samplers.bounded_http import bounded_client

        self._settings = settings
        self._client = openai.OpenAI(
            base_url=settings.base,
            api_key=settings.key or NO_KEY,
            timeout=settings.timeout,
            max_retries=0,  # `ApiPartners` repeats requests, and knows what they cost
            http_client=bounded_client(settings.timeout, MOST_BYTES),
        )

    def __call__(self, model: str, prompt: str, seed: int, params: SamplingParams) -> Answer:
        """The completion of one prompt.

        Raises:
            Trouble: there is none; another attempt may bring one.
            Refused: there will be none.
        """
        import httpx2
        import openai

        try:
            return self._read(self._post(_body(model, prompt, seed, params, self._settings.args)))
        except openai.APIStatusError as error:
            # Without the cause, here and below: what a server says may quote the key, which `_told`
            # takes out.
            raise self._status(error) from None
        except openai.APITimeoutError:
            raise self._late() from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            # Where no connection was made, nothing can have been computed, and nothing is to be
            # paid.
            sent = not isinstance(cause, httpx2.ConnectError)
            raise Trouble(self._told("no answer", cause), sent=sent) from None
        except httpx2.TimeoutException:
            raise self._late() from None
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise Trouble(self._told("the answer was cut off", error), sent=True) from None

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _post(self, body: JsonObject) -> bytes:
        """The body of the answer, bounded in size."""
        data = bytearray()
        create = self._client.chat.completions.with_streaming_response.create
        # The client insists on these two by name; all others go as they are, also those that it
        # does not know.
        asked = {name: body.pop(name) for name in ("model", "messages")}
        with create(**asked, extra_body=body) as answer:
            # Counted again after decompression, which `bounded_client` does not see.
            for chunk in answer.iter_bytes():
                data += chunk
                if len(data) > MOST_BYTES:
                    raise Trouble(f"the answer has more than {MOST_BYTES} bytes", sent=True)
        return bytes(data)

    def _read(self, data: bytes) -> Answer:
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            # Deeply nested JSON ends in a RecursionError.
            raise self._nonsense(data.decode("utf-8", "replace"), None) from None
        if not isinstance(answer, dict):
            raise self._nonsense(answer, None)
        cost = _cost(answer.get("usage"))
        choices = answer.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        message = first.get("message") if isinstance(first, dict) else None
        if not isinstance(first, dict) or not isinstance(message, dict):
            raise self._nonsense(answer, cost)
        content, truncated = message.get("content"), first.get("finish_reason") == "length"
        refusal, text = message.get("refusal"), content or ""
        if isinstance(content, list):
            text, refusal = _part(content, "text"), refusal or _part(content, "refusal")
        if not isinstance(text, str):
            raise self._nonsense(answer, cost)
        # A refusal is what the model answered, and no failure of the server; so is a message without
        # a text, which asking again would not change. Where it was cut, thoughts took all tokens.
        empty = not text or text.isspace()
        refused = (empty and not truncated) or bool(refusal)
        if empty:
            text = refusal if isinstance(refusal, str) else ""
        filtered = first.get("finish_reason") == "content_filter"
        return Answer(
            ApiReply(self._clean(text), truncated, refused or filtered),
            cost,
            self._clean(str(answer.get("model")))[:_SHOWN],
        )

    # ---------------------------------------------------------------------------------- errors

    def _status(self, error: openai.APIStatusError) -> Exception:
        status, text = error.status_code, self._told(f"HTTP {error.status_code}", _message(error))
        if status in _MAY_PASS or status >= 500:
            return Trouble(text, retry_after=_retry_after(error.response.headers))
        hint = {
            401: "; give a file with the right key: --api-key-file FILE",
            403: "; give a file with the right key: --api-key-file FILE",
            404: "; is the address right (it often ends in /v1), and the model's name?",
        }
        return Refused(text + hint.get(status, ""))

    def _late(self) -> Trouble:
        return Trouble(f"no answer within {self._settings.timeout:g} s", sent=True)

    def _nonsense(self, answer: Any, cost: Cost | None) -> Trouble:
        what = answer if isinstance(answer, str) else json.dumps(answer)
        return Trouble(self._told("HTTP 200, but no completion", what), sent=True, cost=cost)

    def _told(self, what: str, more: object) -> str:
        """One line, without the key."""
        words = " ".join(self._clean(str(more)).split())[:_SHOWN]
        return f"{what} ({words})" if words else what

    def _clean(self, text: str) -> str:
        key = self._settings.key
        return text.replace(key, "[key]") if key and len(key) >= _SECRET else text


def _body(
    model: str, prompt: str, seed: int, params: SamplingParams, args: JsonObject
) -> JsonObject:
    """The body of a request; a field that changes nothing is left out, since not all servers know it."""
    body: JsonObject = {
        "max_tokens": params.max_new_tokens,
        "temperature": 0.0 if params.greedy else params.temperature,
        "top_p": None if params.greedy or params.top_p == 1.0 else params.top_p,
        # Some servers take 32 bits only.
        "seed": None if params.greedy else seed % _SEEDS,
    }
    # The user's fields go before ours, and None among them leaves ours out.
    fields = {name: value for name, value in (body | args).items() if value is not None}
    return fields | {"model": model, "messages": [{"role": "user", "content": prompt}]}


def _part(content: list[Any], name: str) -> str:
    """The text or the refusal of a message in parts; others, such as thoughts, are left out."""
    parts = [text.get(name) for text in content if isinstance(text, dict)]
    return "".join(text for text in parts if isinstance(text, str))


def _cost(usage: Any) -> Cost | None:
    if not isinstance(usage, dict):
        return None
    counts: list[Any] = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    # `type`, because True is an int as well; the bound keeps nonsense out of the budget.
    if not all(type(count) is int and 0 <= count < 1 << 40 for count in counts):
        return None
    return Cost(*counts)


def _message(error: openai.APIStatusError) -> str:
    """The message of the server, whose body is often `{"error": {"message": ...}}`."""
    body = error.body
    message = body.get("message") if isinstance(body, dict) else None
    return str(message if message is not None else body or "")


def _retry_after(headers: Any) -> float:
    """Seconds that the server asks to wait; 0 where it does not say."""
    value = str(headers.get("retry-after", "")).strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            # The header may hold a date in place of seconds.
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
