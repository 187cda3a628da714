"""`pettingllms-serve`: a trained team behind an OpenAI-compatible endpoint, a model name a role."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pettingllms.cli.guard import listening_on, parsed_and_run
from pettingllms.errors import ConfigError, RunFolderError
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.settings import as_object, check_values, setting

if TYPE_CHECKING:
    from pettingllms.rollout.episode import AnyEnv
    from pettingllms.samplers.vllm_process import VllmProcess
    from pettingllms.serving.app import TeamServer
    from pettingllms.trainers.config import ResolvedConfig

    Answer = Callable[[TeamServer], None]

LOG = "serve.log"


@dataclass
class ServeOptions:
    """Settings of serving; `device`, `dtype` and `vllm` are fields of `ATGRPOConfig`."""

    host: str = setting(
        "Where", "127.0.0.1", "Address to listen on; the default is local to this machine"
    )
    port: int = setting("Where", 8000, "Port to listen on", at_least=1, at_most=65535)
    key_file: str | None = setting(
        "Where", None, "File with the API key. Default: a random key, printed"
    )
    max_waiting: int = setting(
        "How",
        256,
        "Completions that may wait; further requests get status 429",
        at_least=1,
    )
    sampler: str = setting(
        "How",
        "auto",
        "Engine: vllm, transformers, or auto (vllm if it is installed and there is a GPU or a vLLM setting)",
        choices=("auto", "vllm", "transformers"),
    )
    over: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `ATGRPOConfig` that go over those of the run: those of `SHARED`."""

    def __post_init__(self) -> None:
        check_values(self)


SHARED = ("env", "env_args", "model", "policies", "device", "dtype", "vllm")
KEY_OPTIONS = ("--api-key", "--api_key", "--key")
EXAMPLES = (
    "pettingllms-serve runs/latest",
    "pettingllms-serve hub:me/my-team",
    "pettingllms-serve my/peft-folder --env coding --model Qwen/Qwen3-1.7B --policies shared",
    "pettingllms-serve runs/latest --port 9000 --vllm.gpu_memory_utilization 0.9",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until it is stopped; returns its exit code: 0 when stopped, 2 on an error."""
    return parsed_and_run(parse, lambda command: _run(*command), argv)


def parse(argv: Sequence[str]) -> tuple[str, ServeOptions]:
    """Reads a command line: the run or team first, then options.

    Raises:
        ConfigError: no run, or an option or value that cannot be used.
    """
    from pettingllms.cli.options import OptionParser, fields_of

    fields = fields_of(ServeOptions)
    shared = [option for option in fields_of(ATGRPOConfig) if option.name in SHARED]
    parser = OptionParser(
        [*fields, *shared],
        prog="pettingllms-serve RUN",
        description="Serves a trained team: an OpenAI-compatible endpoint with a model name for "
        "each role, answered by that role's adapter.",
        examples=EXAMPLES,
    )
    for word in argv:
        if word.partition("=")[0] in KEY_OPTIONS:
            raise ConfigError(
                f"unknown option {word.partition('=')[0]!r}; everyone on this machine can read a "
                "command line: write the key into a file and give --key-file FILE, or leave it out "
                "for a random one"
            )
    run, rest = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else (None, argv)
    parsed = parser.read(rest)
    over = parser.values(parsed, SHARED)
    options = ServeOptions(**parser.values(parsed, [option.name for option in fields]), over=over)
    if run is None:
        raise ConfigError("name the run first: pettingllms-serve runs/latest")
    return run, options


def _run(run: str, options: ServeOptions) -> int:
    # Here and not above, so that --help does not wait for torch.
    from pettingllms.assembly import check_adapters, make_env
    from pettingllms.evaluation import seats_of
    from pettingllms.evaluation.config import EvalConfig
    from pettingllms.evaluation.run import run_of, settings_of
    from pettingllms.names import is_partner, own_names, parse_policies
    from pettingllms.policies.sources import TEAM
    from pettingllms.runs import CONFIG
    from pettingllms.samplers.vllm_args import installed
    from pettingllms.trainers.settings import common_settings

    settings = dict(options.over)
    vllm = settings.pop("vllm", None)
    config = settings_of(EvalConfig.of(adapters=run, **settings))
    folder = Path(str(config.adapters))
    if "env" not in settings and run_of(str(folder)) is None and not (folder / TEAM).is_file():
        raise RunFolderError(
            f"{run} is no run folder and no shared team, so that it does not say what its adapters "
            "play; give --env, --model, and --policies"
        )
    env = make_env(config, "test")
    roles_to_policies = parse_policies(config.policies, *seats_of(env))
    # Partners are models behind other endpoints: there is no adapter of theirs to serve.
    roles_to_policies = {r: p for r, p in roles_to_policies.items() if not is_partner(p)}
    check_adapters(config, roles_to_policies)
    common = common_settings(config, own_names(roles_to_policies))
    with_vllm = options.sampler == "vllm"
    if options.sampler == "auto" and installed() and common is not None:
        with_vllm = vllm is not None or _has_gpu()
    log = Path(run if (Path(run) / CONFIG).is_file() else "") / LOG
    if not with_vllm and vllm is not None:
        raise ConfigError("vllm: these settings are for a team that vLLM serves")
    # uvicorn handles signals only while it serves, and a model takes long to load.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        # Before the model is loaded, which takes longer than to find out that a port is taken.
        with listening_on(options.host, options.port) as listening:
            answer = _front(options, listening)
            if with_vllm:
                process = vllm_process(config, roles_to_policies, options, log)
                _serve_vllm(process, common or config, roles_to_policies, env, answer)
            else:
                _serve_here(config, roles_to_policies, env, answer, options.max_waiting)
    except KeyboardInterrupt:
        print("stopped", flush=True)
        # The interpreter would look for garbage in all of torch once more, for seconds.
        gc.freeze()
    return 0


def _has_gpu() -> bool:
    import torch

    available = torch.cuda.is_available()
    if not available:
        print("serving with transformers: on a CPU, vLLM is slower (--sampler vllm takes it)")
    return available


def _key(options: ServeOptions) -> str:
    if options.key_file is None:
        # 24 bytes, 192 bits: too many to guess.
        return secrets.token_urlsafe(24)
    try:
        key = Path(options.key_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"key_file {options.key_file} cannot be read: {error}") from error
    if not key:
        raise ConfigError(f"key_file {options.key_file} is empty; write a key into it")
    return key


def _front(options: ServeOptions, listening: socket.socket) -> Answer:
    """Makes the function that serves a team, with any engine, until it is stopped.

    It prints the address, and the key or where that is.

    Raises:
        ConfigError: the key cannot be read.
        ModuleNotFoundError: a package for serving is missing.
    """
    from pettingllms.serving.app import application, serve

    key = _key(options)

    def answer(server: TeamServer) -> None:
        host = f"[{options.host}]" if ":" in options.host else options.host
        models = ", ".join(server.reader.models)
        print(f"serving {models} at http://{host}:{options.port}/v1", flush=True)
        print(f"key: {key if options.key_file is None else 'in ' + options.key_file}", flush=True)
        serve(application(server, key), listening, server.close)

    return answer


# ------------------------------------------------------------------------------------------ vLLM


def vllm_process(
    config: ResolvedConfig, roles_to_policies: Mapping[str, str], options: ServeOptions, log: Path
) -> VllmProcess:
    """VLLM's own server for the team, not started yet; it will listen on this machine alone.

    Raises:
        ConfigError: vLLM is missing, the policies are full models, or an option is unknown.
    """
    import torch

    from pettingllms.names import own_names
    from pettingllms.policies.weights import read_config as read_adapter
    from pettingllms.samplers.vllm_args import (
        check_options,
        command_line,
        engine_defaults,
        lora_options,
        require_vllm,
    )
    from pettingllms.samplers.vllm_process import VllmProcess
    from pettingllms.trainers.settings import base_model, common_settings

    common = common_settings(config, own_names(roles_to_policies))
    if common is None:
        raise ConfigError(
            "a vLLM server holds one model and its adapters, and this run has full models, or "
            "policies with models or templates of their own; use --sampler transformers"
        )
    config = common
    require_vllm()
    on_cpu = not torch.cuda.is_available()
    requested = check_options(as_object("vllm", options.over.get("vllm")))
    folder = Path(str(config.adapters))
    # vLLM makes room for adapters of one rank, which has to be that of the largest.
    rank = max(int(read_adapter(folder / policy).r) for policy in roles_to_policies.values())
    settings = engine_defaults(on_cpu, engines=1)
    if not on_cpu:
        del settings["gpu_memory_utilization"]  # vLLM's own default: no trainer beside it
    if config.dtype != "auto" or on_cpu:
        settings["dtype"] = "float32" if config.dtype == "auto" else config.dtype
    # A name for each role, also where roles share a policy.
    words = command_line(settings | requested | lora_options(list(roles_to_policies), rank))
    modules = [
        json.dumps({"name": role, "path": str(folder / policy)})
        for role, policy in roles_to_policies.items()
    ]
    words += ["--lora-modules", *modules]
    if config.chat_template_kwargs:
        words += ["--default-chat-template-kwargs", json.dumps(config.chat_template_kwargs)]
    return VllmProcess(base_model(config), words, log)


def _serve_vllm(
    process: VllmProcess,
    config: ResolvedConfig,
    roles_to_policies: Mapping[str, str],
    env: AnyEnv,
    answer: Answer,
) -> None:
    from pettingllms.serving.proxy import VllmServer, players_of
    from pettingllms.trainers.settings import base_model

    print(f"starting vLLM; it logs to {process.log}", flush=True)
    stopping = threading.Event()

    def watch() -> None:
        process.wait()
        if not stopping.is_set():
            # Nothing but a signal takes the main thread out of uvicorn.
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        process.start()
        threading.Thread(target=watch, daemon=True).start()
        template = config.chat_template_kwargs
        served = players_of(base_model(config), roles_to_policies, process.endpoint, template)
        answer(VllmServer(served, process.endpoint, config.max_completion_length, env))
    except KeyboardInterrupt:
        # `watch` interrupts this as well, but only once vLLM has ended.
        if process.running:
            raise
        raise ConfigError(f"vLLM's server ended with {process.wait()}{process.tail()}") from None
    finally:
        stopping.set()
        process.stop()


# ---------------------------------------------------------------------------------- transformers


def _serve_here(
    config: ResolvedConfig,
    roles_to_policies: Mapping[str, str],
    env: AnyEnv,
    answer: Answer,
    most_waiting: int,
) -> None:
    from pettingllms.assembly import build_policies
    from pettingllms.cli.display import without_bars
    from pettingllms.serving.role_server import RoleServer

    without_bars()
    # Whatever engine sampled in training: `PolicySet` is asked for its models alone.
    here = dataclasses.replace(config, sampler="transformers", vllm={})
    policies = build_policies(here, roles_to_policies)
    answer(RoleServer(policies, config.max_completion_length, env, most_waiting=most_waiting))


if __name__ == "__main__":
    sys.exit(main())
