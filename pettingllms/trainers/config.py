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
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, cast

from pettingllms.errors import ConfigError
from pettingllms.names import only_partners, shipped
from pettingllms.registry import names_in
from pettingllms.samplers import vllm_args
from pettingllms.samplers.api_call import ApiSettings
from pettingllms.samplers.base import SAMPLERS
from pettingllms.sandbox.isolation import LEVELS
from pettingllms.sandbox.types import HELP as SANDBOX_HELP
from pettingllms.sandbox.types import SandboxSettings
from pettingllms.trainers.method_names import METHODS, PARTS
from pettingllms.trainers.settings import (
    check_names,
    check_values,
    normalized,
    open_values,
    policies_setting,
    sampling_setting,
    setting,
    task_setting,
)

CISPO_BOUND = 5.0
"""`epsilon_high` of the loss `cispo` where none is given (arXiv 2510.13786)."""

_algorithm = partial(setting, "Algorithm")
_optimization = partial(setting, "Optimization")
_run = partial(setting, "Run")
_scale = partial(setting, "Scale")


@dataclass
class ATGRPOConfig:
    """Settings of training; `pettingllms-train --help-all` explains each field.

    Raises:
        ConfigError: a value that cannot be used; the text says what to do.
        UnknownNameError: an unknown method.
    """

    env: str = task_setting(
        "coding",
        "Environment: a name (coding), a game (textarena:TicTacToe-v0, "
        "pettingzoo:classic/connect_four_v3), or a path my_package.my_env:env of any PettingZoo AEC "
        "environment with text; or several with names and weights: a=coding,b=search*2",
        shared="run",
    )
    env_args: Mapping[str, Any] = task_setting(
        {},
        "Arguments of the environment (pettingllms-envs show NAME lists them) as JSON, or one by one: "
        "--env-args.max_turns 2",
        shared="run",
    )
    dataset: str | None = task_setting(
        None,
        "Data set: a name, or a file of your own tasks, e.g. my.jsonl. Default: the environment's own tasks",
        shared="run",
    )
    alpha: float = task_setting(
        1.0, "Weight of the team reward: alpha * team + local (paper, eq. 3)", shared="run"
    )

    model: str | None = policies_setting(
        None,
        "Any Hugging Face causal model, by id or path, e.g. Qwen/Qwen3-1.7B; smollm2 (135M parameters, "
        "for a CPU), or a GGUF file. Default: one that comes "
        "with the package, by environment: embedded:parts, embedded:search, or embedded",
        shared="run",
    )
    revision: str | None = policies_setting(
        None, "Branch, tag or commit of a model on the hub", shared="run"
    )
    load_in_4bit: bool = policies_setting(
        False,
        "Quantize the base model to 4 bits (NF4) at loading, as in QLoRA; needs bitsandbytes",
        shared="run",
    )
    attn_implementation: str = policies_setting(
        "auto",
        "auto: compute a prompt once for all its completions if the model allows it; or one of transformers': "
        "sdpa, eager, flash_attention_2, ...",
        shared="default",
    )
    long_context: bool = policies_setting(
        False,
        "For models with longrope positions (Phi-3-128k): use the whole context, with the long factors at "
        "every length, as vLLM does. Default: the short factors and the short context",
        shared="run",
    )
    policies: str = policies_setting(
        "per-role",
        "shared, per-role, per-agent, or a map like coder=a,tester=b (roles or agents); `base` is "
        "the untrained model, `api:MODEL` one behind --api-base",
        shared="run",
    )
    api_base: str | None = policies_setting(
        None,
        "OpenAI-compatible address of the models named api:MODEL, e.g. http://127.0.0.1:8000/v1",
        shared="run",
    )
    api_key_file: str | None = policies_setting(
        None, "File with the API key for --api-base", shared="run"
    )
    # A budget belongs to one run, so that an evaluation does not take it over from there.
    api_max_tokens: int | None = policies_setting(
        None,
        "Token budget for --api-base, prompts included, over all starts of the run",
        at_least=1,
        shared="default",
    )
    api_concurrency: int = policies_setting(
        16, "Concurrent requests to --api-base", at_least=1, at_most=1024, shared="run"
    )
    api_timeout: float = policies_setting(
        120.0, "Seconds until a request to --api-base times out", positive=True, shared="run"
    )
    api_args: Mapping[str, Any] = policies_setting(
        {},
        "More fields of these requests as JSON, or one by one: --api-args.reasoning_effort low; null omits one",
        shared="run",
    )
    train_roles: str | None = policies_setting(
        None, "Roles to train, comma-separated; the others keep their weights. Default: all"
    )
    adapters: str | None = policies_setting(
        None,
        "Adapters to start from: an earlier run; a folder with one adapter for each policy; a PEFT adapter, "
        "used for all; a hub id; or coder=FOLDER,tester=FOLDER",
    )
    policy_settings: Mapping[str, Any] = policies_setting(
        {},
        'Settings of single policies as JSON, such as a model, full weights, or a learning rate: \'{"judge": '
        '{"model": "Qwen/Qwen3-8B", "full": true}}\'',
        shared="run",
    )
    full: bool = policies_setting(
        False, "Use full copies of the model instead of adapters", shared="run"
    )
    lora_r: int = policies_setting(16, "Rank of the adapters", at_least=1)
    lora_alpha: int = policies_setting(
        32, "Scale of the adapters: updates are multiplied by lora_alpha / lora_r", positive=True
    )
    lora_target_modules: str = policies_setting(
        "all-linear", "Modules with an adapter: all-linear, or names, comma-separated"
    )
    adapter_dtype: str = policies_setting(
        "float32",
        "Type of the adapters: float32, because 16 bits round small updates away; or base, as the base model",
        choices=("float32", "base"),
    )
    chat_template_kwargs: Mapping[str, Any] = policies_setting(
        {},
        "Arguments of the chat template as JSON, e.g. '{\"enable_thinking\": false}'",
        shared="run",
    )
    dtype: str = policies_setting(
        "auto",
        "Type of the weights: auto (bfloat16 on cuda and mps, float32 on cpu), float32, bfloat16, float16",
        choices=("auto", "float32", "bfloat16", "float16"),
        shared="default",
    )
    device: str = policies_setting(
        "auto", "auto, cpu, cuda or mps", choices=("auto", "cpu", "cuda", "mps"), shared="default"
    )

    temperature: float | None = sampling_setting(
        None,
        "Sampling temperature; log-probabilities are computed at the same temperature",
        positive=True,
        shared="run",
    )
    max_completion_length: int | None = sampling_setting(
        None, "Maximum number of tokens in a completion", at_least=1, shared="run"
    )
    sampler: str = sampling_setting(
        vllm_args.AUTO,
        "Sampling engine: transformers, vllm, or auto: vllm if it is installed and there is an NVIDIA GPU, "
        "except for the embedded model",
        shared="default",
    )
    vllm: Mapping[str, Any] = sampling_setting(
        {},
        "Settings of vLLM as JSON, or one by one: --vllm.tensor_parallel_size 2. Also "
        "gpu_memory_utilization, max_model_len, dtype, ...",
        shared="default",
    )

    method: str = _algorithm(
        "at_grpo",
        f"Method: {', '.join(name for name in METHODS.own if name not in PARTS)}; or your own, "
        f"my_package.my_module:MyMethod or ./my_file.py:MyMethod. Parts ({', '.join(PARTS)}) are joined by +: alternate+dr_mas",
    )
    method_args: Mapping[str, Any] = _algorithm(
        {},
        "Arguments of the method as JSON, or one by one: --method-args.gamma 0.9. `shape` sets the rollout "
        "shape: --method-args.shape full",
    )
    reward_funcs: str | None = _algorithm(
        None,
        "Reward functions that add to local rewards, as in TRL: my_package.my_module:a, comma-separated",
    )
    num_generations: int | None = _algorithm(
        None, "K: completions of one prompt (tree), or episodes of one task", at_least=1
    )
    tasks_per_step: int | None = _algorithm(None, "Tasks in each step", at_least=1)
    max_steps: int | None = _algorithm(None, "Training steps", at_least=1)
    max_tokens: int | None = _algorithm(
        None, "Budget of generated tokens; the learning rate then decays over it", at_least=1
    )
    train_turns: str | None = _algorithm(
        None,
        "Turns to train on, counted from 0 for each agent, comma-separated, e.g. 1. Default: all",
    )
    branch: str = _algorithm(
        "best",
        "Completion with which the episode continues: best, sample (a random one), or first",
        choices=("best", "sample", "first"),
    )
    mask_truncated_completions: bool = _algorithm(
        False, "Leave completions that were cut off at the length limit out of the loss"
    )
    silent_groups: str | None = _algorithm(
        None,
        "Groups with equal rewards: count keeps them in the means of the loss, as TRL does; drop omits them",
        choices=("count", "drop"),
    )
    max_num_gen_batches: int = _algorithm(
        1,
        "Batches of tasks that a step may sample until each policy has as many groups with a signal as a "
        "batch has tasks (DAPO's dynamic sampling; silent groups are then dropped)",
        at_least=1,
    )
    difficulty_pools: Mapping[str, Any] = _algorithm(
        {},
        "Draw tasks less often if less than 0.25 or more than 0.75 of the attempts succeed: "
        "--difficulty-pools.rows true for rows of a data set, or sizes of generated tasks, as in "
        "--difficulty-pools.sentences '[2, 3, 4]'",
    )
    loss_type: str = _algorithm(
        "dapo",
        "grpo, bnpo, dr_grpo, dapo, cispo or sapo, as in TRL",
        choices=("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo"),
    )
    loss_norm: str = _algorithm(
        "replies",
        "Divisor of means over completions: replies, or roots (the step's episodes, as in MATPO)",
        choices=("replies", "roots"),
    )
    importance_sampling_level: str = _algorithm(
        "token",
        "Ratio of new to old probabilities: by token, or by sequence (GSPO; with loss_type grpo or sapo)",
        choices=("token", "sequence"),
    )
    scale_rewards: str = _algorithm(
        "group",
        "Divide advantages by the standard deviation of the group, the batch, or none",
        choices=("group", "batch", "none"),
    )
    epsilon: float = _algorithm(
        0.2, "Clip range of the token ratio, below 1", at_least=0.0, at_most=1.0
    )
    epsilon_high: float | None = _algorithm(
        None,
        "Clip range above 1; epsilon unless given here or by the preset of the model and environment. With "
        "cispo: the largest ratio, 5 unless given",
        at_least=0.0,
    )
    delta: float | None = _algorithm(
        None, "Upper bound of the ratio where the advantage is negative (dual clip)", positive=True
    )
    vllm_importance_sampling_correction: bool = _algorithm(
        False,
        "Weight tokens by the ratio of the trainer's probability to the sampler's, within bounds",
    )
    vllm_importance_sampling_mode: str = _algorithm(
        "sequence_mask",
        "Ratio by token or by completion; outside its bounds, truncate clips it and mask sets it to 0",
        choices=("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    )
    vllm_importance_sampling_clip_max: float | None = _algorithm(
        3.0, "Upper bound of that ratio", positive=True
    )
    vllm_importance_sampling_clip_min: float | None = _algorithm(
        None, "Lower bound of that ratio", positive=True
    )
    beta: float = _algorithm(0.0, "Weight of the KL divergence to the base model", at_least=0.0)
    entropy_coef: float = _algorithm(0.0, "Weight of an entropy bonus")
    num_iterations: int | None = _algorithm(
        None, "Optimizer steps on each rollout; 0 records episodes and trains nothing", at_least=0
    )

    learning_rate: float | None = _optimization(None, "Initial learning rate", at_least=0.0)
    lr_scheduler_type: str = _optimization(
        "cosine",
        "Schedule of transformers: cosine, linear, constant, constant_with_warmup, ...",
        # Those that need no argument of their own.
        choices=names_in(
            "linear cosine cosine_with_restarts polynomial constant constant_with_warmup inverse_sqrt"
        ),
    )
    warmup_steps: int | None = _optimization(
        None, "Steps in which the learning rate rises from 0", at_least=0
    )
    weight_decay: float = _optimization(0.0, "Weight decay of AdamW", at_least=0.0)
    adam_beta1: float = _optimization(0.9, "First beta of AdamW", at_least=0.0, below=1.0)
    adam_beta2: float = _optimization(0.95, "Second beta of AdamW", at_least=0.0, below=1.0)
    max_grad_norm: float = _optimization(
        1.0, "Largest gradient norm of a policy; larger gradients are scaled down", positive=True
    )
    tokens_per_batch: int | None = _optimization(
        None,
        "Padded tokens in one forward pass of the update; lower it if memory runs out",
        at_least=1,
    )
    gradient_checkpointing: bool | None = _optimization(
        None,
        "Recompute activations in the backward pass: much less memory, about a third more time in the update",
    )

    output_dir: str | None = _run(None, "Run folder. Default: runs/<env>-<policies>-<time>")
    seed: int = _run(
        0, "Random seed; the same seed gives the same run", at_least=0, shared="default"
    )
    eval_steps: int | None = _run(None, "Steps between validations; 0: none", at_least=0)
    eval_tasks: int | None = _run(
        None,
        "Held-out tasks in each validation and in the evaluations before and after training; 0, the default "
        "with --eval-steps 0, turns evaluation off",
        at_least=0,
    )
    compare_roles: bool = _run(
        True,
        "Skip the final table of teams with and without each trained policy",
    )
    advise: bool = _run(
        False,
        "After a tenth of the run (at least 8 steps), report whether the roles of a shared policy would learn "
        "more with a policy for each; training does not change",
    )
    verify: bool | None = _run(
        None,
        "Check in the first steps that each adapter learns from its own role and that the sampler uses it. "
        "Default: on, except for embedded models, full models, and workers",
    )
    save_steps: int | None = _run(None, "Steps between checkpoints", at_least=1)
    report_to: str = _run("none", "Trackers: tensorboard, wandb, trackio, comma-separated, or none")
    push_to_hub: str | None = _run(
        None, "Hub repository to which the adapters and a model card are uploaded at the end"
    )
    sandbox: str = _run("embedded", SANDBOX_HELP, shared="run")
    require_isolation: str = _run(
        "any",
        "full: refuse to run programs without namespaces, Landlock, and seccomp",
        choices=tuple(LEVELS),
        shared="run",
    )
    scoring_threads: int = _run(
        16, "Prompts whose completions are scored concurrently", at_least=1, shared="run"
    )

    tasks_per_shard: int | None = _scale(
        None,
        "Tasks that share sampling batches; changes results by rounding. Default: all tasks of a step",
        at_least=1,
    )
    workers: int = _scale(
        0, "Ray processes for rollouts; 0: all in this process", at_least=0, shared="default"
    )
    max_staleness: int = _scale(
        0,
        "Updates by which the weights of rollouts may be out of date: with 1, workers play the next step "
        "during an update, which changes results",
        at_least=0,
        # The driver keeps the weights of one update before, and engines two versions of an adapter.
        at_most=1,
    )
    ray_address: str | None = _scale(
        None, "Ray cluster: auto, or HOST:PORT. Default: one on this machine", shared="default"
    )
    pools: Mapping[str, Any] = _scale(
        {},
        "CPUs and GPUs of workers, of a policy's learner, and of vLLM's engines, as JSON: "
        '{"workers": {"gpus": 0.5}, "coder": {"gpus": 1}, "engines": {"gpus": 1, "replicas": 4}}',
        shared="default",
    )
    worker_timeout: float = _scale(
        600.0, "Seconds after which a worker counts as hung", positive=True, shared="default"
    )

    def __new__(cls, *args: Any, **settings: Any) -> Self:  # noqa: ARG004 - `__init__` reads them
        """Checks the names of settings before `__init__` sees them."""
        # The `__init__` of a dataclass would answer an unknown name with a TypeError that has no
        # suggestion.
        check_names(settings, [field.name for field in dataclasses.fields(ATGRPOConfig)])
        made = super().__new__(cls)
        # `__post_init__` cannot tell an explicit value from an equal default. `dataclasses.replace`
        # names every field, so that a method fills in nothing the second time.
        made.__dict__["_given"] = frozenset(settings)
        return made

    def __post_init__(self) -> None:
        self._take_method(self.__dict__.pop("_given"))
        # One form of a value before anything is compared.
        for field in dataclasses.fields(self):
            setattr(self, field.name, normalized(field, getattr(self, field.name)))
        check_values(self)
        model, loss = self._conflicts_of_model(), self._conflicts_of_loss()
        for conflict in chain(self._conflicts_of_scale(), loss, model):
            raise ConfigError(conflict)
        # Read or made only for the errors that they raise.
        _ = self.turns
        if self.api_base is not None:
            ApiSettings(self.api_base, args=dict(self.api_args))
        if self.sampler != vllm_args.AUTO:
            SAMPLERS.path_of(self.sampler)
        if self.vllm:
            vllm_args.check_options(self.vllm)
        self.sandbox = SandboxSettings.of(self.sandbox).text

    def _take_method(self, given: Collection[str]) -> None:
        """Fills in what the method sets and `given` does not name."""
        for method in str(self.method).split("+"):
            METHODS.path_of(method)  # raises where nothing has this name
        # The import needs PyTorch, which a copy and a saved configuration do without.
        if self.method == "at_grpo" or len(given) == len(dataclasses.fields(self)):
            return
        from pettingllms.trainers.method import load_method

        # A function that makes a method has none.
        for name, value in getattr(load_method(self.method), "settings", {}).items():
            if name not in given:
                setattr(self, name, value)

    # What does not go together, and what to do.

    def _conflicts_of_scale(self) -> Iterator[str]:
        if self.max_staleness and self.max_num_gen_batches > 1:
            yield (
                f"max_num_gen_batches {self.max_num_gen_batches} with max_staleness: whether a step samples more is "
                "known only when all of it has been played; leave max_staleness out"
            )
        if self.max_staleness and self.difficulty_pools:
            yield (
                "difficulty_pools with max_staleness: what a step plays follows from the success of the one before, "
                "which is played at the same time; leave max_staleness out"
            )
        for name in ("ray_address", "pools", "max_staleness"):
            if (value := getattr(self, name)) not in (None, {}, 0) and not self.workers:
                yield f"{name} {value} without workers: all runs in this process; give --workers as well"
        for name in ("api_key_file", "api_max_tokens", "api_args"):
            if getattr(self, name) and self.api_base is None:
                yield f"{name} is for models behind an API, and there is no address; give --api-base as well"
        if self.verify and (self.full or self.workers):
            yield "verify checks adapters in this process; leave it out with full and with workers"
        if self.workers and self.api_base is not None:
            yield (
                f"workers {self.workers} with api_base {self.api_base}: the replies of a model behind an API are "
                "counted and kept by one process; leave --workers out"
            )

    def _conflicts_of_loss(self) -> Iterator[str]:
        loss, high = self.loss_type, self.epsilon_high
        if self.importance_sampling_level == "sequence" and loss not in ("grpo", "sapo"):
            # One ratio for a completion, counted once a token: long completions would weigh more.
            yield (
                f"importance_sampling_level=sequence goes with loss_type grpo or sapo, got {loss}, which averages "
                "over tokens"
            )
        if self.loss_norm == "roots" and loss not in ("grpo", "sapo", "dr_grpo"):
            yield (
                "loss_norm=roots goes with loss_type grpo, sapo or dr_grpo, which average over completions, got "
                f"{loss}, which averages over tokens"
            )
        if loss == "cispo" and high is not None and high < 1:
            yield f"epsilon_high is the largest ratio itself with loss_type cispo, at least 1, got {high}"
        if (
            self.lr_scheduler_type == "polynomial"
            and self.learning_rate is not None
            and self.learning_rate <= 1e-7
        ):
            yield f"lr_scheduler_type polynomial ends at 1e-7; give a learning_rate above, got {self.learning_rate}"
        low, top = self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
        if low is not None and top is not None and low >= top:
            yield (
                "vllm_importance_sampling_clip_min must be below vllm_importance_sampling_clip_max, got "
                f"{low} and {top}"
            )
        if self.vllm_importance_sampling_correction and (self.num_iterations or 1) > 1:
            # A later step has other weights, whose ratio to the sampler's is no error of the sampler.
            yield f"vllm_importance_sampling_correction goes with num_iterations 1, got {self.num_iterations}"

    def _conflicts_of_model(self) -> Iterator[str]:
        if self.load_in_4bit and self.sampler.startswith("vllm"):
            yield "vLLM would sample from the unquantized model; with load_in_4bit use sampler transformers"
        # Where `auto` is not decided yet, vLLM can sample only if it is installed.
        if self.vllm and (
            self.sampler == "transformers"
            or (self.sampler == vllm_args.AUTO and not vllm_args.installed())
        ):
            yield f"settings of vLLM ({', '.join(self.vllm)}) are for sampler vllm"
        for policy, values in self.policy_settings.items():
            if not isinstance(values, Mapping):
                yield f"policy_settings of {policy} must be an object, got {values!r}"
        if self.load_in_4bit and self.full:
            yield "load_in_4bit is for adapters; full trains the weights themselves"

    @property
    def clip_above(self) -> float:
        """`epsilon_high`, or its default."""
        if self.epsilon_high is not None:
            return self.epsilon_high
        return CISPO_BOUND if self.loss_type == "cispo" else self.epsilon

    @property
    def turns(self) -> frozenset[int] | None:
        """The turns to train on; None for all.

        Raises:
            ConfigError: a turn is not a whole number from 0.
        """
        if self.train_turns is None:
            return None
        words = [word.strip() for word in self.train_turns.split(",")]
        # `isdigit` alone is true of superscripts, which `int` refuses.
        if not all(word.isascii() and word.isdigit() for word in words):
            raise ConfigError(
                f"train_turns must be whole numbers from 0, as in 0,1, got {self.train_turns!r}"
            )
        return frozenset(map(int, words))

    @property
    def embedded(self) -> bool:
        """True if the model is one that comes with this package.

        False if models behind an API play all roles: then no model is loaded here.
        """
        if self.model is None and only_partners(self.policies):
            return False
        return shipped(self.model) is not None


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
        num_iterations: int
        silent_groups: str
        temperature: float

else:
    # A class only for type checkers: settings that were resolved, saved and read again are equal.
    ResolvedConfig = ATGRPOConfig


def resolve(config: ATGRPOConfig, env: Any = None) -> ResolvedConfig:
    """`config` with every open value filled in by model and environment; explicit values stay.

    Args:
        config: the settings.
        env: the environment, or what makes it, where it is not the one that `config.env` names.

    Raises:
        UnknownNameError: no environment of that name.
        ConfigError: `embedded_training` of the environment names something else than an open value.
    """
    return cast("ResolvedConfig", dataclasses.replace(config, **open_values(config, env)))
