"""Roles that a model behind an OpenAI-compatible address plays: frozen partners and baselines.

A policy `api:MODEL` is asked in text, at `BASE/chat/completions`, through the `openai` client. It has
no weights here and is never trained. Its completions have no token ids. Prompts are handed over as
the bytes of their text, which every server turns into tokens in its own way.

Requests run beside each other, at most `concurrency` at once. A request that fails for a reason that
may pass (no answer, 408, 425, 429, 5xx, a reply that cannot be read) is repeated after a pause, which
grows, differs between requests, and is at least what the server asks for with Retry-After. Every
reply is on disk before its thread asks for another (`pettingllms.samplers.replies`), also where the
batch then fails as a whole: a batch that is asked for again pays for the rest alone. A failure of the
server is never a completion.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import astuple
from typing import Unpack

from pettingllms.errors import SamplerUnavailable
from pettingllms.names import PARTNER, is_partner, policy_of
from pettingllms.samplers.api_call import ApiCall, ApiSettings, Refused, Trouble
from pettingllms.samplers.base import SampleSettings, SamplingParams
from pettingllms.samplers.replies import ApiReply, BudgetSpent, Cost, ReplyLog
from pettingllms.types import Completion, Request

ATTEMPTS = 6
LONGEST_PAUSE = 120.0
"""Seconds; a server that asks for a longer one has failed."""
_BYTES_PER_TOKEN = 3
_TEMPLATE = 32
"""Tokens of a chat template, roughly."""

Answers = list[list[Completion]]


class _Stopped(Exception):
    """Another request of the batch has failed, or the partners were closed."""


class ApiPartners:
    """The roles of a team that models behind one address play; a `Sampler` for these roles.

    Args:
        settings: the address, the key, and the bounds.
        roles_to_policies: role -> policy; those that are none of a partner are ignored.
        log: the replies that are known, and the budget.
        pause: seconds before the second attempt; it doubles with each further one.
    """

    continuous = True

    def __init__(
        self,
        settings: ApiSettings,
        roles_to_policies: Mapping[str, str],
        log: ReplyLog | None = None,
        *,
        pause: float = 1.0,
    ) -> None:
        self.roles_to_policies = {
            role: name for role, name in roles_to_policies.items() if is_partner(name)
        }
        self.log = ReplyLog() if log is None else log
        self._settings, self._pause = settings, pause
        self._call = ApiCall(settings)
        self._stop, self._closed = threading.Event(), False
        self._threads = ThreadPoolExecutor(settings.concurrency, "api")

    def policy_for(self, role: str) -> str:
        """The policy that plays a role, or an agent."""
        return policy_of(role, self.roles_to_policies)

    def prompt_ids(self, role: str, text: str) -> tuple[int, ...]:
        """The bytes of an observation, in which no text of another role reads as a control token."""
        self.policy_for(role)
        return tuple(without_control_tokens(text).encode("utf-8", "replace"))

    def sample(
        self, requests: Sequence[Request], n: int, **settings: Unpack[SampleSettings]
    ) -> Answers:
        """`n` completions of every request, from the server or as it answered before.

        Raises:
            SamplerUnavailable: the server failed, refused, or the budget is spent. A resumed run
                continues from the replies that came.
            RunFolderError: a reply cannot be written.
        """
        return self.ask(requests, n, SamplingParams(**settings))()

    def ask(
        self, requests: Sequence[Request], n: int, params: SamplingParams
    ) -> Callable[[], Answers]:
        """Starts asking; what it returns waits for all completions, and raises as `sample` does."""
        if self._closed:
            raise SamplerUnavailable("these policies have been closed; load them again to sample")
        # An earlier batch that failed has set it.
        self._stop.clear()
        # Equal decisions of a batch, as those without randomness, have one reply.
        started: dict[str, Future[ApiReply]] = {}
        asked: list[list[Future[ApiReply]]] = []
        for request in requests:
            decisions = [(self._key(request, request.seed + k, params), k) for k in range(n)]
            for key, k in decisions:
                if key not in started:
                    started[key] = self._submit(key, request, request.seed + k, params)
            asked.append([started[key] for key, _ in decisions])

        def answers() -> Answers:
            self._wait(list(started.values()))
            return [
                [_completion(request, future.result()) for future in futures]
                for request, futures in zip(requests, asked, strict=True)
            ]

        return answers

    def close(self) -> None:
        """Ends asking. Waits for requests in flight, whose replies are paid for."""
        self._closed = True
        self._stop.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._call.close()

    def _submit(
        self, key: str, request: Request, seed: int, params: SamplingParams
    ) -> Future[ApiReply]:
        reply = self.log.find(key)
        if reply is None:
            return self._threads.submit(self._reply, key, request, seed, params)
        done: Future[ApiReply] = Future()
        done.set_result(reply)
        return done

    def _wait(self, futures: Sequence[Future[ApiReply]]) -> None:
        """Waits for all; where one fails, ends the others and raises its error."""
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            # The threads that pause between attempts have to hear of it as well.
            if not all(future.done() for future in futures):
                self._stop.set()
            for future in futures:
                future.cancel()
        wait(futures)
        failed = [future.exception() for future in futures if not future.cancelled()]
        errors = [error for error in failed if error is not None]
        # What went wrong goes before the threads that only stopped because of it.
        for error in sorted(errors, key=lambda error: isinstance(error, _Stopped)):
            raise error

    def _key(self, request: Request, seed: int, params: SamplingParams) -> str:
        """Digest of a decision: equal where the reply that is known answers it."""
        decision = [
            request.policy,
            hashlib.blake2b(bytes(request.prompt_ids), digest_size=16).hexdigest(),
            # Greedy decisions draw nothing, so that episodes with other seeds share their reply.
            None if params.greedy else seed,
            astuple(params),
            self._settings.args,
        ]
        text = json.dumps(decision, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    # ----------------------------------------------------------------------------- one request

    def _reply(self, key: str, request: Request, seed: int, params: SamplingParams) -> ApiReply:
        """The reply, asked for until one comes."""
        trouble = Trouble("no attempt")
        for attempt in range(ATTEMPTS):
            if attempt:
                self._rest(seed, attempt, trouble)
            if self._stop.is_set():
                raise _Stopped
            try:
                return self._attempt(key, request, seed, params)
            except Trouble as error:
                trouble = error
        raise SamplerUnavailable(self._failed(f"failed {ATTEMPTS} times", trouble)) from trouble

    def _attempt(self, key: str, request: Request, seed: int, params: SamplingParams) -> ApiReply:
        prompt = bytes(request.prompt_ids).decode()
        size = len(request.prompt_ids) // _BYTES_PER_TOKEN + _TEMPLATE
        model = request.policy.removeprefix(PARTNER)
        try:
            # The most that it can cost is set aside before it is sent: no reply may exceed the
            # budget, however many are in flight.
            with self.log.reserved(size + params.max_new_tokens):
                # It may have been set while this request waited for its share of the budget.
                if self._stop.is_set():
                    raise _Stopped
                try:
                    answer = self._call(model, prompt, seed, params)
                except Trouble as error:
                    if error.sent:  # it may have been computed, and is then paid for
                        worst = Cost(size, params.max_new_tokens, estimated=True)
                        self.log.add(key, request.policy, None, error.cost or worst)
                    raise
                reply_bytes = len(answer.reply.text.encode("utf-8", "replace"))
                counted = Cost(size, reply_bytes // _BYTES_PER_TOKEN + 1, estimated=True)
                cost = answer.cost or counted
                self.log.add(key, request.policy, answer.reply, cost, answer.model)
                return answer.reply
        except Refused as error:
            raise SamplerUnavailable(self._failed("refuses the request", error)) from error
        except BudgetSpent:
            raise SamplerUnavailable(
                f"the budget of {self.log.most} tokens for {self._settings.base} is spent: "
                f"{self.log.spent} are, and the next reply may need {size + params.max_new_tokens}; "
                f"raise api_max_tokens (prompts count){self._kept()}"
            ) from None

    def _rest(self, seed: int, attempt: int, trouble: Trouble) -> None:
        """Pauses before another attempt; the length differs from request to request."""
        if trouble.retry_after > LONGEST_PAUSE:
            wish = f"asks to wait {trouble.retry_after:.0f} s"
            raise SamplerUnavailable(self._failed(wish, trouble)) from trouble
        # From the seed, as everything random; requests that failed together must not come back
        # together.
        jitter = random.Random(f"{seed} {attempt}").uniform(0.5, 1.0)
        self._stop.wait(max(self._pause * 2 ** (attempt - 1) * jitter, trouble.retry_after))

    def _failed(self, how: str, error: Exception) -> str:
        return f"the endpoint {self._settings.base} {how}: {error}{self._kept()}"

    def _kept(self) -> str:
        if self.log.path is None:
            return ""
        return (
            f"; {len(self.log)} replies are in {self.log.path}, and resuming asks for none of them"
        )


def _completion(request: Request, reply: ApiReply) -> Completion:
    return Completion(
        prompt_ids=request.prompt_ids,
        token_ids=(),
        logprobs=(),
        # The reply becomes part of other roles' prompts.
        text=without_control_tokens(without_ending(reply.text)),
        truncated=reply.truncated,
        version=0,
        refused=reply.refused,
    )


# ------------------------------------------------------------------------------- control tokens
# Control tokens spelled out in texts that pass between models whose tokenizers are not known here.
#
# A model's reply becomes part of the prompts of other roles. Servers read `<|im_start|>` in a message
# as the token that opens a turn. `Chat` breaks up what is special to a tokenizer that is loaded here;
# this does it for those of the usual families of models.


_SPELLINGS = (
    r"<[|｜][^<>|｜\n]{1,60}[|｜]>",  # <|im_start|>, <|eot_id|>
    r"</?s>|<(?:bos|eos|pad|unk)>",
    r"<(?:start|end)_of_turn>",
    r"\[/?INST\]|<</?SYS>>|\[/?(?:AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|SYSTEM_PROMPT)\]",
)
_CONTROL = re.compile("|".join(_SPELLINGS))
_ENDINGS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "</s>", "<end_of_turn>")


def without_control_tokens(text: str) -> str:
    """The text with a space after the first character of each control token.

    Lone surrogates, which no tokenizer takes, become `?`.
    """
    plain = text.encode("utf-8", "replace").decode("utf-8")
    return _CONTROL.sub(lambda match: f"{match[0][0]} {match[0][1:]}", plain)


def without_ending(text: str) -> str:
    """The text without the tokens of the end of a turn that some servers leave at its end."""
    end = len(text)
    while True:
        last = end
        while last and text[last - 1].isspace():
            last -= 1
        ending = next((token for token in _ENDINGS if text.endswith(token, 0, last)), None)
        if ending is None:
            break
        end = last - len(ending)
    return text if end == len(text) else text[:end].rstrip()
