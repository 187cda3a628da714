"""Samples with vLLM in this process: one engine with an adapter for every policy.

Policies that are adapters share one engine, and requests to all of them are one batch. The bare
base model never samples beside them: on a CPU, vLLM 0.32 computes such requests with one of the
adapters. Policies that are full models have an engine each, whose weights are replaced.

Log-probabilities are those of the distribution sampled from (vLLM's "processed" ones); greedy
completions have those at temperature 1. On a CPU the engine runs in this very process. On a GPU
vLLM starts a process of its own for it, unless VLLM_ENABLE_V1_MULTIPROCESSING=0 says otherwise.

vLLM itself is imported when an engine is opened, so this package works without it.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pettingllms.errors import ConfigError, SamplerUnavailable
from pettingllms.samplers.base import (
    OnTokens,
    SampledTokens,
    SamplerSettings,
    SamplingParams,
    ServedPolicies,
    Weights,
)
from pettingllms.samplers.vllm_args import LOG, check_requests, engine_options
from pettingllms.types import Request

FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AssertionError, OSError)
"""What vLLM raises, on its own account or from torch, when it fails."""
# Nothing is reported to vLLM's makers, and its log goes where `log_to` sends it. On a CPU its threads
# are not bound to cores, where they would wait for the trainer's and for whatever else runs there.
_VARIABLES = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def open_engine(served: ServedPolicies, settings: SamplerSettings) -> VllmEngine:
    """Starts vLLM for the policies.

    Raises:
        ConfigError: vLLM is missing or cannot run these policies under these settings.
    """
    engines = 1 if served.lora_rank is not None else len(served.names)
    options = engine_options(served, settings, engines=engines * settings.bases)
    return VllmEngine(
        served.weights, served.names, served.end_ids, options=options, folder=settings.folder
    )


class PublishedAdapter(NamedTuple):
    """One version of one policy, under the names that vLLM knows it by."""

    name: str
    """`coder@v3-...`; the rest is new in every process, for servers that outlive one."""
    number: int
    version: int
    path: Path


class AdapterFolder:
    """Writes versions of policies for vLLM to read.

    Each version has a name, a number and a folder of its own. vLLM finds cached prefixes by an
    adapter's name and path and never reads a path twice, so weights published under an earlier
    name, number or path would silently be mixed with older ones.

    Args:
        save: writes a policy's current weights into a folder.
        parent: where the folder is made; the system's place for temporary files if None.
    """

    def __init__(self, save: Callable[[str, Path], None], parent: Path | None) -> None:
        self._save = save
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        self._path = Path(tempfile.mkdtemp(prefix=".sampled.", dir=parent)).resolve()
        # `mkdtemp` makes folders that no other user can read, such as that of a server.
        self._path.chmod(0o755)
        # Random, not from the seed: a server that outlives this process must not take the names of
        # the next one for these.
        self._token = secrets.token_hex(3)
        self._numbers = itertools.count(1)

    def write(self, policy: str, version: int) -> PublishedAdapter:
        """Writes the policy's current weights."""
        number = next(self._numbers)
        name = f"{policy}@v{version}-{self._token}-{number}"
        self._save(policy, self._path / name)
        return PublishedAdapter(name, number, version, self._path / name)

    def drop(self, published: PublishedAdapter) -> None:
        """Removes the files of a version that vLLM no longer reads."""
        shutil.rmtree(published.path, ignore_errors=True)

    def close(self) -> None:
        """Removes everything."""
        shutil.rmtree(self._path, ignore_errors=True)


class VllmEngine:
    """The vLLM engine or engines of a policy set.

    Raises:
        ConfigError: vLLM cannot run this model with these settings.
    """

    continuous = False
    early = True

    def __init__(
        self,
        weights: Weights,
        names: Sequence[str],
        end_ids: Sequence[int],
        *,
        options: Mapping[str, Any],
        folder: Path | None,
    ) -> None:
        self._end_ids, self._full = tuple(end_ids), "enable_lora" not in options
        self._held: dict[str, PublishedAdapter] = {}
        log_to(folder)
        self._adapters = AdapterFolder(weights.save, folder)
        self._engines: list[Any] = []
        try:
            for _ in names if self._full else names[:1]:
                self._engines.append(started(weights.base, options, self._end_ids))
        except FAILURES as error:
            self.close()
            raise ConfigError(
                f"vLLM cannot run the model {weights.base!r}: {last_line(error)}; change "
                "--vllm.* options, or use --sampler transformers"
            ) from error
        engines = self._engines if self._full else self._engines * len(names)
        self._by_policy = dict(zip(names, engines, strict=True))
        self._max_model_len = int(self._engines[0].llm_engine.model_config.max_model_len)

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each policy's weights that is sampled from."""
        return {policy: held.version for policy, held in self._held.items()}

    def publish(self, policy: str, version: int) -> None:
        """Takes over the policy's current weights.

        Raises:
            SamplerUnavailable: vLLM failed; adapters keep the previous version.
        """
        fresh, old = self._adapters.write(policy, version), self._held.get(policy)
        engine = self._by_policy[policy]
        try:
            if self._full:
                replace_weights(engine, fresh.path)
            else:
                engine.llm_engine.add_lora(lora_request(fresh))
        except FAILURES as error:
            raise SamplerUnavailable(
                f"vLLM does not take version {version} of policy {policy!r}: {last_line(error)}"
            ) from error
        # The new version is in use before the old one goes, so that a failure in between loses
        # neither.
        self._held[policy] = fresh
        if old is not None:
            if not self._full:
                engine.llm_engine.remove_lora(old.number)
            self._adapters.drop(old)

    def sample(
        self,
        requests: Sequence[Request],
        n: int,
        params: SamplingParams,
        on_tokens: OnTokens | None = None,
    ) -> list[list[SampledTokens]]:
        """Completes every request `n` times, as `InferenceEngine` says.

        Raises:
            ConfigError: a prompt too long for the engine, a temperature that vLLM changes.
            SamplerUnavailable: vLLM failed.
        """
        check_requests(requests, params, self._max_model_len)
        by_number: list[dict[int, SampledTokens]] = [{} for _ in requests]
        for engine in self._engines:
            for i, k, sampled in self._sampled(engine, requests, n, params):
                by_number[i][k] = sampled
                if on_tokens is not None:
                    on_tokens(i, k, sampled)
        return [
            [candidates[0]] * n if params.greedy else [candidates[k] for k in range(n)]
            for candidates in by_number
        ]

    def _sampled(
        self, engine: Any, requests: Sequence[Request], n: int, params: SamplingParams
    ) -> Iterator[tuple[int, int, SampledTokens]]:
        """Index of a request of the engine's, number and tokens of a completion, as they come."""
        running: dict[str, tuple[int, int]] = {}
        try:
            for i, request in enumerate(requests):
                if self._by_policy[request.policy] is engine:
                    adapter = None if self._full else self._held[request.policy]
                    names = enqueued(engine, request, n, params, self._end_ids, adapter)
                    running |= {name: (i, k) for k, name in enumerate(names)}
            while running:
                for output in engine.llm_engine.step():
                    if output.finished:
                        i, k = running.pop(output.request_id)
                        yield i, k, sampled_tokens(output.outputs[0], self._end_ids)
        except FAILURES as error:
            raise SamplerUnavailable(f"vLLM failed: {last_line(error)}") from error
        finally:
            if running:  # an interrupt, or an error here or of whoever takes the completions
                with contextlib.suppress(*FAILURES):
                    engine.llm_engine.abort_request(list(running))

    def close(self) -> None:
        """Stops the engines and removes the files."""
        for engine in self._engines:
            engine.llm_engine.engine_core.shutdown()
        self._engines.clear()
        self._adapters.close()


# ------------------------------------------------------------------------------- vLLM itself


def log_to(folder: Path | None) -> None:
    """Imports vLLM and sends its log into the folder, or discards it."""
    with _environment(**_VARIABLES):
        importlib.import_module("vllm")
    logger = logging.getLogger("vllm")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    # Only `cli` prints, and a handler of the root logger would.
    logger.propagate = False
    if folder is None:
        logger.addHandler(logging.NullHandler())
        return
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / LOG)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def started(base: str, options: Mapping[str, Any], end_ids: Sequence[int]) -> Any:
    """Starts an engine and samples once, so that its limits show before training begins."""
    from vllm import LLM

    alone = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if _on_cpu() else {}
    set_num_threads = torch.set_num_threads
    # An engine in this process seeds torch's generator and replaces this function.
    with _environment(**_VARIABLES, **alone), torch.random.fork_rng(devices=[]):
        try:
            engine = LLM(
                model=base, seed=0, disable_log_stats=True, use_tqdm_on_load=False, **options
            )
            trial = vllm_params(SamplingParams(1), 0, end_ids)
            engine.generate([{"prompt_token_ids": [0]}], trial, use_tqdm=False)
        finally:
            torch.set_num_threads = set_num_threads
    return engine


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def replace_weights(engine: Any, folder: Path) -> None:
    """Loads the weights of another full model into the engine."""
    engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
    if _on_cpu():
        # There, vLLM 0.32 keeps a packed copy of an output layer that is tied to the embedding,
        # and does not update it.
        engine.apply_model(_pack_head)
    # Cached prefixes are of the weights before, and vLLM would go on from them.
    engine.reset_prefix_cache()


def _pack_head(model: Any) -> None:
    model.lm_head.quant_method.process_weights_after_loading(model.lm_head)


def enqueued(
    engine: Any,
    request: Request,
    n: int,
    params: SamplingParams,
    end_ids: Sequence[int],
    adapter: PublishedAdapter | None,
) -> list[str]:
    """Gives a request to vLLM, as one for each completion; a greedy one is completed once.

    vLLM divides a request for `n` completions in the same way, with the same seeds, but answers it once all
    are there.

    Returns:
        The ids that their outputs will have.
    """
    # Seeds of requests are digests below 2**62, so that neighbors do not meet and the last stays
    # within 64 bits.
    seeds = range(request.seed, request.seed + (1 if params.greedy else n))
    ids = engine.enqueue(
        [{"prompt_token_ids": list(request.prompt_ids)} for _ in seeds],
        [vllm_params(params, seed, end_ids) for seed in seeds],
        lora_request=None if adapter is None else [lora_request(adapter) for _ in seeds],
        use_tqdm=False,
    )
    # Outputs have the number alone; vLLM has appended something random to it.
    return [number.partition("-")[0] for number in ids]


def vllm_params(params: SamplingParams, seed: int, end_ids: Sequence[int]) -> Any:
    """The parameters of one completion as vLLM takes them."""
    import vllm

    return vllm.SamplingParams(
        temperature=0.0 if params.greedy else params.temperature,
        top_p=1.0 if params.greedy else params.top_p,
        seed=None if params.greedy else seed,
        max_tokens=params.max_new_tokens,
        # No others than that of the chosen token, which is all that the update needs.
        logprobs=0,
        stop_token_ids=list(end_ids),
        # All tokens that end a turn are named above.
        ignore_eos=True,
        # Completions are decoded by `Chat` from their tokens.
        detokenize=False,
    )


def sampled_tokens(output: Any, end_ids: Sequence[int]) -> SampledTokens:
    """One completion, of vLLM's `CompletionOutput`."""
    ids = tuple(output.token_ids)
    logprobs = [
        at_token[token].logprob for token, at_token in zip(ids, output.logprobs, strict=True)
    ]
    return SampledTokens(ids, tuple(map(float, logprobs)), truncated=ids[-1] not in end_ids)


def lora_request(published: PublishedAdapter) -> Any:
    """The adapter as vLLM takes it."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(published.name, published.number, str(published.path))


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Sets environment variables for the block, and hides warnings.

    vLLM reads these settings from the environment alone; no argument exists for them. Variables
    that the user set are left as they are. The warnings are about vLLM's use of other libraries.
    """
    fresh = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(fresh)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name in fresh:
            os.environ.pop(name, None)


def last_line(error: BaseException) -> str:
    """The error's type, and the last line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
