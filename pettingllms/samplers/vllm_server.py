"""Samples with a vLLM server over its OpenAI-compatible HTTP interface, token ids in and out.

The server is one that we start (`VllmProcess`), or one that is already running, with
VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment and at least these options:

    --model MODEL --enable-lora --max-loras POLICIES --max-cpu-loras 2*POLICIES
    --max-lora-rank RANK --logprobs-mode processed_logprobs
    --no-enable-chunked-prefill (on a CPU)

If a single request of a batch fails, the whole batch is sent again after a pause, twice at most, after the server has
been restarted (if we started it) and the adapters have been published again. Adapters are
handed over as files, so the server must see the same file system.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

from pettingllms.errors import ConfigError, SamplerUnavailable
from pettingllms.samplers.base import (
    SampledTokens,
    SamplerSettings,
    SamplingParams,
    ServedPolicies,
    Weights,
)
from pettingllms.samplers.vllm import AdapterFolder, PublishedAdapter
from pettingllms.samplers.vllm_args import LOG, check_requests, command_line, engine_options
from pettingllms.samplers.vllm_process import ServerError, VllmEndpoint, VllmProcess
from pettingllms.types import Request

logger = logging.getLogger(__name__)

THREADS = 256
"""Requests that wait for the server at the same time; it batches what waits."""
CONTROL_SECONDS = 120.0
"""Time limit of everything but sampling."""
RETRY_PAUSES = (1.0, 5.0)
"""Seconds before the second and the third try: a server that is just being restarted needs some."""
_PROBE = (5, 6, 7)
"""A prompt in tokens that any vocabulary has."""

Result = TypeVar("Result")


def open_engine(served: ServedPolicies, settings: SamplerSettings) -> VllmServerEngine:
    """Connects to the server at the settings' URL, or starts one.

    Raises:
        ConfigError: full models, vLLM is missing, or the server cannot be trained with.
        SamplerUnavailable: the server that we start does not start.
    """
    if served.lora_rank is None:
        raise ConfigError(
            "a vLLM server takes adapters only, and these policies are full models; use "
            "--sampler vllm or --sampler transformers, or leave out --full"
        )
    server: VllmEndpoint | VllmProcess
    if settings.url is not None:
        # Clients of OpenAI's interface expect the URL to end in /v1, so users may give it so.
        url = settings.url.rstrip("/").removesuffix("/v1")
        server = VllmEndpoint(url, settings.key)
    else:
        words = command_line(engine_options(served, settings, engines=1))
        folder = settings.folder or Path(mkdtemp(prefix="pettingllms-vllm-"))
        server = VllmProcess(served.weights.base, words, folder / LOG)
    return VllmServerEngine(
        served.weights, served.end_ids, server, timeout=settings.timeout, folder=settings.folder
    )


class _ServerTrouble(Exception):
    """The server is unreachable, hangs, or failed: worth a second try."""


class _UnknownAdapter(_ServerTrouble):
    """The server is healthy, but has lost an adapter."""


class VllmServerEngine:
    """The client of a server that holds an adapter for every policy.

    Args:
        weights: the policies.
        end_ids: tokens that end a completion.
        server: address of a running server, or one to start here and stop in `close`.
        timeout: seconds after which a request counts as lost.
        folder: where adapters are written; a temporary one if None.

    Raises:
        ConfigError: the server cannot be used: no answer, wrong key, another model, or settings
            under which it returns other log-probabilities.
        SamplerUnavailable: the server that we start does not start.
    """

    # Requests reach the server one by one, and it batches them as they come.
    continuous = True

    def __init__(
        self,
        weights: Weights,
        end_ids: Sequence[int],
        server: VllmEndpoint | VllmProcess,
        *,
        timeout: float,
        folder: Path | None,
    ) -> None:
        self._end_ids, self._timeout = tuple(end_ids), timeout
        self._process = server if isinstance(server, VllmProcess) else None
        self._running = server if isinstance(server, VllmEndpoint) else None
        self._held: dict[str, PublishedAdapter] = {}
        self._adapters = AdapterFolder(weights.save, folder)
        try:
            if self._process is not None:
                self._process.start()
            self._max_model_len = self._check_server(weights.base)
        except BaseException:
            # A server that was started here must not outlive an error, nor an interrupt.
            self.close()
            raise

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each policy's weights that is sampled from."""
        return {policy: held.version for policy, held in self._held.items()}

    def publish(self, policy: str, version: int) -> None:
        """Takes over the policy's current weights.

        Raises:
            SamplerUnavailable: the server failed at every try; it keeps the previous version.
        """
        fresh, old = self._adapters.write(policy, version), self._held.get(policy)
        # The new version is loaded before the old one is unloaded, so that a failure leaves the old
        # one in use.
        self._with_retry(lambda: self._load(fresh))
        self._held[policy] = fresh
        if old is not None:
            try:
                self._control("/v1/unload_lora_adapter", {"lora_name": old.name})
            except _ServerTrouble as error:
                # The publish has succeeded; an adapter that stays only takes a place on the server.
                logger.warning("%s stays on the server: %s", old.name, error)
            self._adapters.drop(old)

    def sample(
        self, requests: Sequence[Request], n: int, params: SamplingParams
    ) -> list[list[SampledTokens]]:
        """Completes every request `n` times, or raises.

        Raises:
            ConfigError: a prompt too long for the server, a temperature that vLLM changes.
            SamplerUnavailable: the server failed at every try.
        """
        check_requests(requests, params, self._max_model_len)
        return self._with_retry(lambda: self._complete(requests, n, params))

    def close(self) -> None:
        """Stops the server, or only removes our adapters if we did not start it; removes the files."""
        if self._process is not None:
            self._process.stop()
        else:
            for held in self._held.values():
                try:
                    self._control("/v1/unload_lora_adapter", {"lora_name": held.name})
                except (_ServerTrouble, ConfigError) as error:
                    logger.warning("%s stays on the server: %s", held.name, error)
        self._held.clear()
        self._adapters.close()

    # ---------------------------------------------------------------------------- requests

    @property
    def _endpoint(self) -> VllmEndpoint:
        if self._running is not None:
            return self._running
        assert self._process is not None
        return self._process.endpoint

    def _complete(
        self, requests: Sequence[Request], n: int, params: SamplingParams
    ) -> list[list[SampledTokens]]:
        def one(request: Request) -> list[SampledTokens]:
            held = self._held[request.policy]
            content = completion_body(
                held.name, request.prompt_ids, n, params, request.seed, self._end_ids
            )
            answer = self._call("/v1/completions", content, self._timeout)
            # A server that falls back to its base model would answer with other weights.
            if answer.get("model") != held.name:
                raise _ServerTrouble(f"asked {held.name}, but {answer.get('model')} answered")
            choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
            sampled = [self._sampled(choice) for choice in choices]
            return sampled * n if params.greedy else sampled

        if not requests:
            return []
        # A thread for each request, which waits for it: the server forms the batches.
        with ThreadPoolExecutor(min(THREADS, len(requests))) as pool:
            return list(pool.map(one, requests))

    def _sampled(self, choice: Mapping[str, Any]) -> SampledTokens:
        ids, logprobs = tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"])
        if len(ids) != len(logprobs) or not ids:
            raise _ServerTrouble(f"{len(ids)} tokens came with {len(logprobs)} log-probabilities")
        return SampledTokens(ids, logprobs, truncated=ids[-1] not in self._end_ids)

    def _load(self, published: PublishedAdapter) -> None:
        content = {"lora_name": published.name, "lora_path": str(published.path)}
        try:
            self._control("/v1/load_lora_adapter", content)
        except ConfigError as error:
            # No other client uses this name: an earlier try arrived, and only its answer was lost.
            if "already been loaded" not in str(error):
                raise

    def _control(self, path: str, content: Mapping[str, Any]) -> Any:
        return self._call(path, content, CONTROL_SECONDS)

    def _call(self, path: str, content: Mapping[str, Any] | None, timeout: float) -> Any:
        """The answer; raises `_ServerTrouble` if a second try may help, `ConfigError` if not."""
        endpoint = self._endpoint
        try:
            answer = (
                endpoint.get(path, timeout)
                if content is None
                else endpoint.post(path, content, timeout)
            )
            # Adapters are loaded with an answer of plain text.
            if not isinstance(answer, dict) and not path.endswith("_lora_adapter"):
                raise ConfigError(
                    f"{endpoint.url}{path} answered something else than JSON, "
                    f"{str(answer)[:60]!r}: there is no vLLM server at this address"
                )
            return answer
        except TimeoutError as error:
            raise _ServerTrouble(
                f"no answer within {timeout:.0f} s from {endpoint.url}{path}"
            ) from error
        except (OSError, HTTPException) as error:
            raise _ServerTrouble(f"no answer from {endpoint.url}{path} ({error!r})") from error
        except ServerError as error:
            if error.status in (401, 403):
                raise ConfigError(
                    f"the vLLM server at {endpoint.url} refuses the key; give a file with the "
                    "right one: --server-key FILE"
                ) from error
            if error.status == 404 and path.endswith("_lora_adapter"):
                raise ConfigError(
                    f"the vLLM server at {endpoint.url} takes no adapters ({error}); start it "
                    "with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
                ) from error
            # vLLM answers so to a name that it does not know, as after a restart.
            if error.status == 404:
                raise _UnknownAdapter(f"{endpoint.url}{path} answered {error}") from error
            if error.status >= 500:
                raise _ServerTrouble(f"{endpoint.url}{path} answered {error}") from error
            raise ConfigError(f"{endpoint.url}{path} answered {error}") from error

    # ---------------------------------------------------------------------------- recovery

    def _with_retry(self, action: Callable[[], Result]) -> Result:
        """Runs the action, and again after a pause and a recovery each time that the server fails."""
        troubles: list[_ServerTrouble] = []
        # None stands for the last try, after which there is nothing to wait for.
        for pause in (*RETRY_PAUSES, None):
            try:
                if troubles:
                    self._recover(restart=not isinstance(troubles[-1], _UnknownAdapter))
                return action()
            except _ServerTrouble as trouble:
                troubles.append(trouble)
                if pause is not None and isinstance(trouble, _UnknownAdapter):
                    logger.warning("the vLLM server failed (%s); trying again", trouble)
                elif pause is not None:
                    logger.warning(
                        "the vLLM server failed (%s); trying again in %.0f s", trouble, pause
                    )
                    time.sleep(pause)
        tail = "" if self._process is None else self._process.tail()
        raise SamplerUnavailable(
            f"the vLLM server failed {len(troubles)} times: {'; then '.join(map(str, troubles))}; "
            f"nothing of this batch was used{tail}"
        ) from troubles[-1]

    def _recover(self, *, restart: bool) -> None:
        """Restarts a server that we started, if asked to, and loads the adapters that it lacks."""
        if self._process is not None and restart:
            self._process.stop()
            self._process.start()
        # Asked for, because a server may have lost all adapters, some or none.
        there = {model["id"] for model in self._call("/v1/models", None, CONTROL_SECONDS)["data"]}
        for held in self._held.values():
            if held.name not in there:
                self._load(held)

    # ------------------------------------------------------------------------------ checks

    def _check_server(self, base: str) -> int:
        """The server's context length, after checking that it can be trained with."""
        try:
            models = self._call("/v1/models", None, CONTROL_SECONDS).get("data") or []
            # Adapters name the base model as their parent.
            plain = [model for model in models if not model.get("parent")]
            if not plain or "max_model_len" not in plain[0]:
                raise ConfigError(
                    f"the server at {self._endpoint.url} serves no model as vLLM does (one with a "
                    "max_model_len in /v1/models)"
                )
            # A server that we started runs what we asked for.
            if self._running is not None:
                self._check_running(plain[0], base)
        except _ServerTrouble as error:
            raise ConfigError(
                f"the vLLM server cannot be used: {error}; see --server and --serve"
            ) from error
        return int(plain[0]["max_model_len"])

    def _check_running(self, model: Mapping[str, Any], base: str) -> None:
        theirs = str(model.get("root") or model["id"])
        # Only the last part is compared, because the server may have the model under another path.
        if Path(theirs).name.lower() != Path(base).name.lower():
            raise ConfigError(
                f"the server at {self._endpoint.url} runs the model {theirs!r}, but {base!r} is "
                "trained; start it with that one"
            )
        margins = []
        for temperature in (0.5, 1.0):
            params = SamplingParams(1, temperature)
            content = completion_body(model["id"], _PROBE, 1, params, 0, self._end_ids)
            # As ids, because several tokens may have the same text.
            content |= {"logprobs": 2, "return_tokens_as_token_ids": True}
            answer = self._call("/v1/completions", content, self._timeout)
            logprobs = sorted(answer["choices"][0]["logprobs"]["top_logprobs"][0].values())
            margins.append(logprobs[-1] - logprobs[-2])
        if ignores_temperature(*margins):
            raise ConfigError(
                f"the server at {self._endpoint.url} returns log-probabilities at temperature 1 "
                "always; start it with --logprobs-mode processed_logprobs"
            )


def ignores_temperature(at_half: float, at_one: float) -> bool:
    """Returns whether a server's log-probabilities do not follow the temperature.

    vLLM's HTTP interface does not say which `--logprobs-mode` it runs with, so it is measured: the
    margin between the two likeliest tokens should double from temperature 1 to 0.5.

    Args:
        at_half: margin at temperature 0.5, in nats.
        at_one: margin at temperature 1; nothing can be concluded if it is 0.
    """
    # 1.5 lies between the two that there can be, 1 and 2; near 0 rounding decides.
    return at_half < 1.5 * at_one and at_one > 1e-3


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
