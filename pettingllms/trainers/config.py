"""Every setting of a training run, each written once, under TRL's names where TRL has one.

A field's metadata holds its help, its group in the help, and the values it takes. Training,
evaluation and serving build their options from these fields: one with `shared` is an option of
`pettingllms-eval` as well.

None in a field of `LARGE` means "by model and environment": `resolve` fills in the numbers of
`EMBEDDED` for the embedded model, with what the environment declares as `embedded_training` on top,
and those of `LARGE` for any other model.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pettingllms.envs.aec import creator_of
from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.models import EMBEDDED as EMBEDDED_MODEL
from pettingllms.samplers.vllm_args import check_sampler
from pettingllms.sandbox.isolation import LEVELS
from pettingllms.sandbox.settings import HELP as SANDBOX_HELP
from pettingllms.sandbox.settings import SandboxSettings
from pettingllms.trainers.estimators import ESTIMATORS

EMBEDDED: dict[str, Any] = {
    "learning_rate": 5e-3,
    "num_generations": 8,
    "tasks_per_step": 16,
    "max_steps": 100,
    "warmup_steps": 0,
    "max_completion_length": 96,
    "tokens_per_batch": 4096,
    "gradient_checkpointing": False,
    "eval_steps": 20,
    "eval_tasks": 100,
    "save_steps": 10,
    "scoring_threads": 4,
}
LARGE: dict[str, Any] = {
    "learning_rate": 1e-4,
    "num_generations": 8,
    "tasks_per_step": 32,
    "max_steps": 200,
    "warmup_steps": 10,
    "max_completion_length": 2048,
    "tokens_per_batch": 16_384,
    "gradient_checkpointing": True,
    "eval_steps": 10,
    "eval_tasks": 100,
    "save_steps": 10,
    "scoring_threads": 16,
}
LARGE_FULL = {"learning_rate": 5e-6}
TOKEN_STEPS = 1000
"""`max_steps` beside `max_tokens`: only bounds the run, and how finely the schedule is cut."""


def setting(group: str, default: Any, text: str, **more: Any) -> Any:
    """A dataclass field that is a command-line option.

    Args:
        group: its heading in the help.
        default: its value where none is given.
        text: its help.
        more: `choices`; `at_least`, `at_most` and `positive` limit a number; `why` explains a limit;
            `aliases` are other spellings of the option; `shared` makes it an option of
            `pettingllms-eval`: "run" where an evaluation takes it from the run, "default" where not.
    """
    return field(default=default, metadata={"group": group, "help": text, **more})


def check_values(settings: Any) -> None:
    """Compares every value of a settings dataclass with what its field takes.

    Raises:
        ConfigError: names the field, the value and what it takes.
    """
    hints = typing.get_type_hints(type(settings))
    for each in dataclasses.fields(settings):
        name, value, limits = each.name, getattr(settings, each.name), each.metadata
        if not limits:
            continue
        _check_kind(name, value, hints[name])
        if value is None:
            continue
        if (known := limits.get("choices")) and value not in known:
            hint = did_you_mean(str(value), known)
            raise ConfigError(f"{name} must be one of {', '.join(known)}, got {value!r}; {hint}")
        low, high, why = limits.get("at_least"), limits.get("at_most"), limits.get("why", "")
        # `not >=` instead of `<`, so that NaN is refused too.
        if high is not None and not low <= value <= high:
            raise ConfigError(f"{name} must be from {low} to {high}, got {value}{why}")
        if low is not None and not value >= low:
            raise ConfigError(f"{name} must be at least {low}, got {value}{why}")
        if limits.get("positive") and not value > 0:
            raise ConfigError(f"{name} must be positive, got {value}{why}")


def _check_kind(name: str, value: Any, hint: Any) -> None:
    """Compares a value with the type of its field; a whole number is a number, too.

    Raises:
        ConfigError: it has another type, or is infinite or not a number.
    """
    kinds = typing.get_args(hint) or (hint,)
    if float in kinds and isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, got {value}")
    fits = isinstance(value, kinds) or (float in kinds and isinstance(value, int))
    if not fits or (isinstance(value, bool) and bool not in kinds):
        kind = next(each for each in kinds if each is not type(None))
        raise ConfigError(f"{name} must be {_KINDS[kind]}, got {value!r}")


_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
# The first three are headings of an evaluation's settings as well.
task_setting = partial(setting, "Task")
policies_setting = partial(setting, "Policies")
sampling_setting = partial(setting, "Sampling")
_algorithm = partial(setting, "Algorithm")
_optimization = partial(setting, "Optimization")
_run = partial(setting, "Run")


@dataclass
class ATGRPOConfig:
    """Settings of AT-GRPO; `pettingllms-train --help` explains each field.

    Raises:
        ConfigError: a value that cannot be used; names the field, the value and the cure.
        UnknownNameError: no estimator of that name.
    """

    env: str = task_setting(
        "coding",
        "Environment: a name (coding), or a path my_package.my_env:env of any PettingZoo AEC "
        "environment with text",
        shared="run",
    )
    env_args: str | None = task_setting(
        None,
        "Arguments of the environment as JSON, or one by one: --env-args.max_turns 2",
        shared="run",
    )
    dataset: str | None = task_setting(
        None,
        "A data set, or a file of your own tasks, e.g. my.jsonl. Default: the environment's",
        shared="run",
    )
    alpha: float = task_setting(
        1.0, "Weight of the team reward: alpha * team + local (paper, eq. 3)", shared="run"
    )

    model: str | None = policies_setting(
        None,
        "Any Hugging Face causal model, by id or path, e.g. Qwen/Qwen3-1.7B. Default: the embedded "
        "tiny model",
        shared="run",
    )
    policies: str = policies_setting(
        "per-role",
        "shared, per-role, a map like coder=a,tester=b, or a file with one; `base` is the "
        "untrained model",
        shared="run",
    )
    train_roles: str | None = policies_setting(
        None, "Roles to train, comma-separated; the others keep their weights. Default: all"
    )
    adapters: str | None = policies_setting(
        None,
        "Adapters to start from: an earlier run, a folder with one for each policy, or with one, as "
        "PEFT saves it, for all; a hub id; or coder=FOLDER,tester=FOLDER",
    )
    full: bool = policies_setting(
        False, "Each policy is a full copy of the model instead of an adapter", shared="run"
    )
    lora_r: int = policies_setting(16, "Rank of the adapters", at_least=1)
    lora_alpha: int = policies_setting(
        32, "Scale of the adapters: their update counts lora_alpha / lora_r", positive=True
    )
    lora_target_modules: str = policies_setting(
        "all-linear", "Modules with an adapter: all-linear, or names, comma-separated"
    )
    chat_template_kwargs: str | None = policies_setting(
        None,
        "Arguments of the chat template as JSON, e.g. '{\"enable_thinking\": false}'",
        shared="run",
    )
    dtype: str = policies_setting(
        "auto",
        "Weights: auto (bfloat16 on cuda and mps, float32 on cpu), float32, bfloat16, float16",
        choices=("auto", "float32", "bfloat16", "float16"),
        shared="default",
    )
    device: str = policies_setting(
        "auto", "auto, cpu, cuda or mps", choices=("auto", "cpu", "cuda", "mps"), shared="default"
    )

    temperature: float = sampling_setting(
        1.0,
        "Sampling temperature; log-probabilities are of the same distribution",
        positive=True,
        shared="default",
    )
    max_completion_length: int | None = sampling_setting(
        None, "Maximum number of tokens of a completion", at_least=1, shared="run"
    )
    sampler: str = sampling_setting(
        "transformers",
        "Sampling engine: transformers, vllm (in this process), vllm-server (HTTP)",
        shared="default",
    )
    server: str | None = sampling_setting(
        None,
        "URL of a running vLLM server, for vllm-server, e.g. http://127.0.0.1:8000",
        shared="default",
    )
    server_key: str | None = sampling_setting(
        None, "File with the key of that server", shared="default"
    )
    serve: bool = sampling_setting(
        False, "Start a vLLM server for the run, on this machine, for vllm-server", shared="default"
    )
    server_timeout: float = sampling_setting(
        600.0,
        "Seconds for a batch of completions after which a vLLM server counts as hung",
        positive=True,
        shared="default",
    )
    vllm: str | None = sampling_setting(
        None,
        "Settings of vLLM as JSON, or one by one: --vllm.tensor_parallel_size 2. Also "
        "gpu_memory_utilization, max_model_len, dtype, ...",
        shared="default",
    )

    estimator: str = _algorithm(
        "at_grpo",
        "Which completions are compared: at_grpo, grpo, agent, turn, or your own, "
        "my_package.my_module:MyEstimator",
    )
    num_generations: int | None = _algorithm(
        None,
        "K: completions of one prompt (tree), or episodes of one task",
        at_least=2,
        why=" (a group of one has no advantage)",
    )
    tasks_per_step: int | None = _algorithm(None, "Tasks of one step", at_least=1)
    max_steps: int | None = _algorithm(None, "Steps of training", at_least=1)
    max_tokens: int | None = _algorithm(
        None,
        "Generated tokens after which training ends; the learning rate then follows them",
        at_least=1,
    )
    branch: str = _algorithm(
        "best",
        "The completion from which the episode continues: best, sample, first",
        choices=("best", "sample", "first"),
    )
    mask_truncated_completions: bool = _algorithm(
        False, "Leave completions that were cut at the limit out of the loss"
    )
    silent_groups: str = _algorithm(
        "drop",
        "Groups in which all earned the same: drop leaves them out of the loss and its means, count "
        "keeps them, as TRL does",
        choices=("drop", "count"),
    )
    loss_type: str = _algorithm(
        "dapo",
        "grpo, bnpo, dr_grpo or dapo, as in TRL",
        choices=("grpo", "bnpo", "dr_grpo", "dapo"),
    )
    scale_rewards: str = _algorithm(
        "group",
        "Divide advantages by the standard deviation of the group, the batch, or none",
        choices=("group", "batch", "none"),
    )
    epsilon: float = _algorithm(0.2, "Clip range of the token ratio, below 1", at_least=0.0)
    epsilon_high: float | None = _algorithm(
        None, "Clip range above 1; equal to epsilon unless given", at_least=0.0
    )
    delta: float | None = _algorithm(
        None, "Upper bound of the ratio where the advantage is negative (dual clip)", positive=True
    )
    beta: float = _algorithm(0.0, "Weight of the KL divergence to the base model", at_least=0.0)
    entropy_coef: float = _algorithm(0.0, "Weight of an entropy bonus")
    num_iterations: int = _algorithm(1, "Optimizer steps on each rollout", at_least=1)

    learning_rate: float | None = _optimization(None, "Initial learning rate", at_least=0.0)
    lr_scheduler_type: str = _optimization(
        "cosine",
        "Schedule of transformers: cosine, linear, constant, constant_with_warmup, ...",
        # Those that need no argument of their own.
        choices=(
            "linear",
            "cosine",
            "cosine_with_restarts",
            "polynomial",
            "constant",
            "constant_with_warmup",
            "inverse_sqrt",
        ),
    )
    warmup_steps: int | None = _optimization(
        None, "Steps in which the rate rises from 0", at_least=0
    )
    weight_decay: float = _optimization(0.0, "AdamW", at_least=0.0)
    adam_beta1: float = _optimization(0.9, "AdamW")
    adam_beta2: float = _optimization(0.95, "AdamW")
    max_grad_norm: float = _optimization(
        1.0, "Gradient norm of a policy above which its gradient is rescaled", positive=True
    )
    tokens_per_batch: int | None = _optimization(
        None,
        "Padded tokens of one forward pass of the update: lower it if memory runs out",
        at_least=1,
    )
    gradient_checkpointing: bool | None = _optimization(
        None,
        "Compute activations again in the backward pass: a fraction of the memory of an update, for "
        "about a third more time",
    )

    output_dir: str | None = _run(None, "Run folder. Default: runs/<env>-<policies>-<time>")
    seed: int = _run(
        0, "Seed of everything random: a run is reproducible", at_least=0, shared="default"
    )
    eval_steps: int | None = _run(None, "Steps between validations; 0: none", at_least=0)
    eval_tasks: int | None = _run(None, "Held-out tasks of a validation", at_least=1)
    save_steps: int | None = _run(None, "Steps between checkpoints", at_least=1)
    report_to: str = _run("none", "tensorboard, wandb, trackio, comma-separated, or none")
    sandbox: str = _run("embedded", SANDBOX_HELP, shared="run")
    require_isolation: str = _run(
        "any",
        "full: refuse to run programs with less than namespaces, Landlock and seccomp",
        choices=tuple(LEVELS),
        shared="run",
    )
    scoring_threads: int | None = _run(
        None, "Completions that are scored at the same time", at_least=1, shared="run"
    )

    def __post_init__(self) -> None:
        ESTIMATORS.path_of(self.estimator)
        if self.epsilon_high is None:
            self.epsilon_high = self.epsilon
        check_values(self)
        for name in ("env_args", "chat_template_kwargs", "vllm"):
            self.mapping(name)
        check_sampler(self, self.mapping("vllm"))
        self.sandbox = SandboxSettings.of(self.sandbox).text

    @property
    def embedded(self) -> bool:
        """Whether the model is the one that comes with this package."""
        return self.model is None or Path(self.model).resolve() == EMBEDDED_MODEL.resolve()

    def mapping(self, name: str) -> dict[str, Any]:
        """The JSON object of the field `name`; empty where it is not set.

        Raises:
            ConfigError: it is not a JSON object.
        """
        return json_object(name, getattr(self, name))


if TYPE_CHECKING:

    class ResolvedConfig(ATGRPOConfig):
        """Settings without an open value, as `resolve` returns them."""

        learning_rate: float
        num_generations: int
        tasks_per_step: int
        max_steps: int
        warmup_steps: int
        max_completion_length: int
        tokens_per_batch: int
        gradient_checkpointing: bool
        eval_steps: int
        eval_tasks: int
        save_steps: int
        scoring_threads: int
        epsilon_high: float

else:
    # A class only for type checkers: settings that were resolved, saved and read again are equal.
    ResolvedConfig = ATGRPOConfig


def json_object(name: str, text: str | None) -> dict[str, Any]:
    """The JSON object that the setting `name` holds; empty for None.

    Raises:
        ConfigError: it is not a JSON object.
    """
    if text is None:
        return {}
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{name} must be a JSON object, got {text!r}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a JSON object, got {text!r}")
    return value


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is beyond the numbers of this machine")
    return value


def resolve(config: ATGRPOConfig, env: Any = None) -> ResolvedConfig:
    """`config` with every open value filled in by model and environment; explicit values stay.

    Args:
        config: the settings.
        env: the environment, or what makes it, where it is not the one that `config.env` names.

    Raises:
        UnknownNameError: no environment of that name.
        ConfigError: `embedded_training` of the environment names something else than an open value.
    """
    missing = [name for name in LARGE if getattr(config, name) is None]
    defaults = preset(config, env) if missing else {}
    filled = dataclasses.replace(config, **{name: defaults[name] for name in missing})
    return cast("ResolvedConfig", filled)


def preset(config: ATGRPOConfig, env: Any = None) -> dict[str, Any]:
    """The values of all settings that follow from the model and the environment; see `resolve`."""
    if config.embedded:
        maker = creator_of(config.env) if env is None else env
        kind = maker if callable(maker) else maker.unwrapped
        own: Mapping[str, Any] = getattr(kind, "embedded_training", {})
        for name in own:
            if name not in EMBEDDED:
                hint = did_you_mean(name, EMBEDDED)
                raise ConfigError(f"embedded_training of {kind}: unknown setting {name!r}; {hint}")
        defaults = EMBEDDED | dict(own)
        if config.full:
            defaults["learning_rate"] /= 10
    else:
        defaults = LARGE | (LARGE_FULL if config.full else {})
    return defaults if config.max_tokens is None else defaults | {"max_steps": TOKEN_STEPS}
