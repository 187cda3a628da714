"""Every setting of a training run, in one flat dataclass, under TRL's names where TRL has one.

The text of a field's `help` is its `--help`. `None` means "by model": small numbers for the embedded model,
`LARGE` for any other, `LARGE_FULL` on top of it with `full`. `resolve` fills them in.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from pettingllms.envs.foreign import short_name
from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.policies.vllm_options import check_sampler

EMBEDDED: dict[str, Any] = {
    "learning_rate": 5e-3,
    "num_generations": 8,
    "tasks_per_step": 16,
    "max_steps": 100,
    "warmup_steps": 0,
    "max_completion_length": 96,
    "tokens_per_batch": 4096,
    "eval_steps": 20,
    "eval_tasks": 100,
    "save_steps": 10,
    "scoring_threads": 4,
}
# What differs from EMBEDDED where the skill is a long working that a large step would destroy.
_LONG = {"learning_rate": 5e-4, "num_generations": 16, "tasks_per_step": 8, "max_steps": 100}
EMBEDDED_FOR: dict[str, dict[str, Any]] = {
    "math": _LONG,
    "plan_path": _LONG,
    "sokoban": _LONG,
    "sudoku": {**_LONG, "max_steps": 160},
}
"""Settings for the embedded model by environment."""
LARGE: dict[str, Any] = {
    "learning_rate": 1e-4,
    "num_generations": 8,
    "tasks_per_step": 32,
    "max_steps": 200,
    "warmup_steps": 10,
    "max_completion_length": 2048,
    "tokens_per_batch": 16_384,
    "eval_steps": 10,
    "eval_tasks": 100,
    "save_steps": 10,
    "scoring_threads": 16,
}
LARGE_FULL = {"learning_rate": 5e-6}
TOKEN_STEPS = 1000
"""`max_steps` beside `max_tokens`: only bounds the run, and how finely the schedule is cut."""

CHOICES = {
    "branch": ("best", "sample", "first"),
    "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo"),
    "scale_rewards": ("group", "batch", "none"),
    # Those of transformers that need no argument of their own.
    "lr_scheduler_type": (
        "linear",
        "cosine",
        "cosine_with_restarts",
        "polynomial",
        "constant",
        "constant_with_warmup",
        "inverse_sqrt",
    ),
    "sandbox": ("embedded", "docker"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "device": ("auto", "cpu", "cuda", "mps"),
}


def _f(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class ATGRPOConfig:
    """Settings of AT-GRPO; see the help of each field.

    Raises:
        ConfigError: a value that cannot be used; names the field, the value and the cure.
        UnknownNameError: no estimator of that name.
    """

    env: str = _f(
        "coding",
        "Environment: a name (coding) or a path my_package.my_env:env of any PettingZoo AEC environment with text",
    )
    env_args: str | None = _f(
        None, "Arguments of the environment as JSON, e.g. '{\"max_turns\": 2}'"
    )
    dataset: str | None = _f(
        None, "A file of your own tasks for the environment, e.g. my.jsonl; default: its generator"
    )
    alpha: float = _f(1.0, "Weight of the team reward: alpha * team + local (paper, eq. 3)")
    # Policies
    model: str | None = _f(
        None,
        "Any Hugging Face causal model, by id or path, e.g. Qwen/Qwen3-1.7B; default: the embedded tiny model",
    )
    policies: str = _f(
        "per-role",
        "shared, per-role, a map like coder=a,tester=b, or a file with one; base stays as it is",
    )
    train_roles: str | None = _f(
        None, "Roles to train, comma-separated; the others stay as they are. Default: all"
    )
    adapters: str | None = _f(None, "Folder of adapters to start from: adapters/ of an earlier run")
    full: bool = _f(False, "Train a full copy of the model for each policy instead of an adapter")
    lora_r: int = _f(16, "Rank of the adapters")
    lora_alpha: int = _f(32, "Scale of the adapters: their update counts lora_alpha / lora_r")
    lora_target_modules: str = _f(
        "all-linear", "Modules with an adapter: all-linear, or names, comma-separated"
    )
    chat_template_kwargs: str | None = _f(
        None, "Arguments of the chat template as JSON, e.g. '{\"enable_thinking\": false}'"
    )
    dtype: str = _f(
        "auto",
        "Weights: auto (bfloat16 on cuda and mps, float32 on cpu), float32, bfloat16, float16",
    )
    device: str = _f("auto", "auto, cpu, cuda or mps")
    # Sampling
    sampler: str = _f(
        "transformers", "What answers: transformers, vllm (in this process), vllm-server (HTTP)"
    )
    server: str | None = _f(
        None, "URL of a running vLLM server, for vllm-server, e.g. http://127.0.0.1:8000"
    )
    server_key: str | None = _f(None, "File with the key of that server")
    serve: bool = _f(False, "Start a vLLM server for the run, on this machine, for vllm-server")
    server_timeout: float = _f(
        600.0, "Seconds for a batch of replies after which a vLLM server counts as hung"
    )
    vllm: str | None = _f(
        None,
        "Settings of vLLM as JSON, or one by one: --vllm.tensor_parallel_size 2. Also gpu_memory_utilization, max_model_len, dtype, ...",
    )
    # Algorithm
    estimator: str = _f("at_grpo", "Which replies are compared: at_grpo, grpo, agent, turn")
    num_generations: int = _f(
        None, "K: replies to one prompt (tree), or episodes of one task. Default: 8"
    )
    tasks_per_step: int = _f(None, "Tasks played in one step. Default by model: 16 or 32")
    max_steps: int = _f(None, "Steps of training. Default by model: 100 or 200")
    max_tokens: int | None = _f(
        None,
        "Generated tokens after which training ends; the learning rate then follows them",
    )
    branch: str = _f(
        "best", "The reply that is executed so that the episode goes on: best, sample, first"
    )
    temperature: float = _f(
        1.0, "Sampling temperature; log-probabilities are of the same distribution"
    )
    max_completion_length: int = _f(None, "Tokens of a reply at most. Default: 96 or 2048")
    mask_truncated_completions: bool = _f(
        False, "Leave replies that were cut at the limit out of the loss"
    )
    loss_type: str = _f("dapo", "grpo, bnpo, dr_grpo or dapo, as in TRL")
    scale_rewards: str = _f(
        "group", "Divide advantages by the deviation of the group, the batch, or none"
    )
    epsilon: float = _f(0.2, "Clip range of the token ratio, below 1")
    epsilon_high: float = _f(None, "Clip range above 1; default: epsilon")
    delta: float | None = _f(
        None, "Upper bound of the ratio where the advantage is negative (dual clip)"
    )
    beta: float = _f(0.0, "Weight of the KL divergence to the base model")
    entropy_coef: float = _f(0.0, "Weight of an entropy bonus")
    num_iterations: int = _f(1, "Optimizer steps on each rollout")
    # Optimization
    learning_rate: float = _f(None, "Default by model: 5e-3 embedded, 1e-4 LoRA, 5e-6 full")
    lr_scheduler_type: str = _f(
        "cosine", "Schedule of transformers: cosine, linear, constant, constant_with_warmup, ..."
    )
    warmup_steps: int = _f(None, "Steps in which the rate rises from 0. Default by model: 0 or 10")
    weight_decay: float = _f(0.0, "AdamW")
    adam_beta1: float = _f(0.9, "AdamW")
    adam_beta2: float = _f(0.95, "AdamW")
    max_grad_norm: float = _f(1.0, "Gradient norm of a policy above which its gradient is rescaled")
    tokens_per_batch: int = _f(
        None, "Padded tokens of one forward pass of the update: lower it if memory runs out"
    )
    # Run
    output_dir: str | None = _f(None, "Run folder; default: runs/<env>-<policies>-<time>")
    seed: int = _f(0, "Everything random follows from it")
    eval_steps: int = _f(None, "Steps between validations; 0: none. Default by model: 20 or 10")
    eval_tasks: int = _f(None, "Held-out tasks of a validation. Default: 100")
    save_steps: int = _f(None, "Steps between checkpoints. Default: 10")
    report_to: str = _f("none", "tensorboard, wandb, trackio, comma-separated, or none")
    sandbox: str = _f("embedded", "Where programs run: embedded (Linux, no daemon) or docker")
    scoring_threads: int = _f(
        None, "Replies that are scored at the same time. Default by model: 4 or 16"
    )

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if value not in known:
                hint = did_you_mean(str(value), known)
                raise ConfigError(
                    f"{name} must be one of {', '.join(known)}, got {value!r}; {hint}"
                )
        # Imported here because it needs torch, and `--help` must not wait for that.
        from pettingllms.trainers.advantages import estimator_named

        estimator_named(self.estimator)
        if self.epsilon_high is None:
            self.epsilon_high = self.epsilon
        for name, low in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= low:
                raise ConfigError(f"{name} must be at least {low}, got {value}{_WHY.get(name, '')}")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be positive, got {value}")
        for name in ("env_args", "chat_template_kwargs", "vllm"):
            self.mapping(name)
        check_sampler(self, self.mapping("vllm"))

    def mapping(self, name: str) -> dict[str, Any]:
        """The JSON object of the field `name`; empty where it is not set.

        Raises:
            ConfigError: it is not a JSON object.
        """
        text = getattr(self, name)
        if text is None:
            return {}
        try:
            value = json.loads(text)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{name} must be a JSON object, got {text!r}: {error}") from error
        if not isinstance(value, dict):
            raise ConfigError(f"{name} must be a JSON object, got {text!r}")
        return value


_AT_LEAST = {
    "num_generations": 2,
    "tasks_per_step": 1,
    "max_steps": 1,
    "max_tokens": 1,
    "max_completion_length": 1,
    "num_iterations": 1,
    "tokens_per_batch": 1,
    "lora_r": 1,
    **dict.fromkeys(("eval_tasks", "save_steps", "scoring_threads"), 1),
    **dict.fromkeys(("seed", "warmup_steps", "eval_steps"), 0),
    "beta": 0.0,
    **dict.fromkeys(("epsilon", "epsilon_high", "weight_decay", "learning_rate"), 0.0),
}
_POSITIVE = ("temperature", "max_grad_norm", "delta", "lora_alpha", "server_timeout")
_WHY = {"num_generations": " (a group of one has no advantage)"}


def resolve(config: ATGRPOConfig, *, embedded: bool) -> ATGRPOConfig:
    """`config` with every "by model" field filled in; explicit values stay."""
    if embedded:
        defaults = EMBEDDED | EMBEDDED_FOR.get(short_name(config.env), {})
        if config.full:
            defaults = defaults | {"learning_rate": defaults["learning_rate"] / 10}
    else:
        defaults = LARGE | (LARGE_FULL if config.full else {})
    if config.max_tokens is not None:
        defaults = defaults | {"max_steps": TOKEN_STEPS}
    missing = {name: value for name, value in defaults.items() if getattr(config, name) is None}
    return dataclasses.replace(config, **missing)
