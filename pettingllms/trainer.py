"""`ATGRPOTrainer`: a trainer with the interface of TRL's, which takes objects as well as names."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peft import LoraConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

from pettingllms.assembly import EnvSource, TrainPlan, build_policies, make_env, plan_run, spec_of
from pettingllms.data.splits import SPLITS
from pettingllms.envs.arguments import one_of
from pettingllms.envs.reward_funcs import RewardFunction, name_of, reward_functions
from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.evaluation import Evaluation, held_out
from pettingllms.evaluation import evaluate as play_held_out
from pettingllms.names import BASE
from pettingllms.policies.policy_set import PolicySet
from pettingllms.runs.folder import check_unused
from pettingllms.samplers.vllm_args import AUTO
from pettingllms.session import Summary, cluster_of, folder_of, run_plan
from pettingllms.trainers.callbacks import Callback, Display
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig
from pettingllms.trainers.method import Method, load_method, path_of
from pettingllms.trainers.settings import base_model, own_settings
from pettingllms.trainers.transformers_callbacks import as_callbacks
from pettingllms.trainers.trl_names import advice


class ATGRPOTrainer:
    """Trains a team, with the arguments of TRL's trainers; takes objects as well as names.

        trainer = ATGRPOTrainer(model=model, env=MyEnv, args=ATGRPOConfig(max_steps=50))
        trainer.train()
        trainer.evaluate().scores["success"]
        trainer.save_model("adapters")

    All settings are checked at once; models are loaded at first use.

    Args:
        model: a name, a folder, or a causal model of transformers, which gets the adapters.
            Default: `args.model`, else the embedded model.
        env: a name or path, an environment, or a function or class that makes one. Default:
            `args.env`.
        args: settings.
        policies: `shared`, `per-role`, `per-agent`, a mapping from roles or agents to policies, or, in
            place of a model, policies from `load_policies`.
        method: a name or path, a class, or an instance.
        peft_config: rank, scale and targets of the adapters (default: all linear modules).
        processing_class: the tokenizer; default: the model's own.
        callbacks: callbacks of this package or of transformers (`TrainerCallback`).
        reward_funcs: functions or their paths that add to the local reward of a completion
            (`pettingllms.envs.reward_funcs`).
        display: receives progress; without one, nothing is printed.
        unknown: always an error, which names the equivalent of TRL's arguments.

    Raises:
        ConfigError, UnknownNameError: an argument that cannot be used; nothing was written.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel | None = None,
        env: EnvSource | None = None,
        args: ATGRPOConfig | None = None,
        *,
        policies: str | Mapping[str, str] | PolicySet | None = None,
        method: str | type[Method] | Method | None = None,
        peft_config: LoraConfig | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: Sequence[Callback | TrainerCallback | type] | Callback | TrainerCallback = (),
        reward_funcs: str | RewardFunction | Sequence[RewardFunction | str] | None = None,
        display: Display | None = None,
        **unknown: Any,
    ) -> None:
        _refuse(unknown)
        config = ATGRPOConfig() if args is None else args
        if not isinstance(config, ATGRPOConfig):
            raise ConfigError(f"args must be an ATGRPOConfig, got a {type(args).__name__}")
        overrides: dict[str, Any] = {}
        self._policies = policies if isinstance(policies, PolicySet) else None
        if isinstance(policies, PolicySet):
            if model is not None or peft_config is not None or processing_class is not None:
                raise ConfigError("policies that are loaded have a model; leave out what makes one")
            overrides = {"model": policies.base, "policies": policies.roles_to_policies}
        elif policies is not None:
            overrides["policies"] = policies
        if model is not None:
            overrides |= _settings_of(model, config.sampler)
        if method is not None:
            overrides |= _settings_by(method, config)
        if isinstance(env, str):
            overrides["env"] = env
        functions = reward_functions(reward_funcs or config.reward_funcs)
        if functions:
            overrides["reward_funcs"] = [name_of(function) for function in functions]
        config = _over(config, overrides | _adapters_of(peft_config))
        self._spec = dataclasses.replace(
            spec_of(config),
            model=None if isinstance(model, str | Path) else model,
            tokenizer=processing_class,
        )
        loaded = self._spec.model is not None or self._policies is not None
        if config.workers and (loaded or processing_class is not None):
            raise ConfigError(
                f"workers {config.workers} load the model by its name; give that, or leave workers out"
            )
        self._plan_for: Callable[[ATGRPOConfig, Path | None], TrainPlan] = lambda settings, resume: (
            plan_run(
                settings,
                resume=resume,
                env=None if isinstance(env, str) else env,
                named=not loaded,
                reward_funcs=functions,
                method=None if isinstance(method, str) else method,
            )
        )
        self._plan = self._plan_for(config, None)
        _check_loaded(self._plan.config, self._policies)
        self._display, self._callbacks = display, as_callbacks(callbacks, self._plan.path)

    @property
    def args(self) -> ResolvedConfig:
        """The settings, with all defaults filled in."""
        return self._plan.config

    @property
    def policies(self) -> PolicySet:
        """The policies, loaded at first use."""
        if self._policies is None:
            plan = self._plan
            # Only `train` makes the folder: to look at the policies must not begin a run.
            run = plan.path if plan.path.is_dir() else None
            self._policies = build_policies(plan.config, plan.roles_to_policies, run, self._spec)
        return self._policies

    def train(self, resume: str | Path | None = None, **unknown: Any) -> Summary:
        """Trains to the end and writes a run folder, as `pettingllms-train` does.

        Args:
            resume: folder of a run with these settings, to continue.
            unknown: always an error, which names the equivalent of TRL's arguments.

        Raises:
            RunFolderError: the run's folder cannot be used.
            NonFiniteError, SandboxUnavailable, SamplerUnavailable: training stopped; the state after the
                last complete step was saved.
        """
        for name in unknown:
            hint = advice(name, ["resume"]) or did_you_mean(name, ["resume"])
            raise ConfigError(f"train has no argument {name!r}; {hint}")
        plan = self._plan
        if resume is None:
            check_unused(plan.path)
        else:
            plan = self._plan = self._plan_for(plan.config, Path(resume))
        with cluster_of(plan) as ray, folder_of(plan) as folder:
            return run_plan(
                plan, folder, self.policies, ray, callbacks=self._callbacks, display=self._display
            )

    def evaluate(
        self, split: str = "test", *, limit: int | None = None, greedy: bool = False
    ) -> Evaluation:
        """Evaluates the current policies on held-out tasks; `scores["success"]` is one score.

        Args:
            split: train, val or test.
            limit: number of tasks. Default: `args.eval_tasks`, else 100.
            greedy: choose the likeliest token instead of sampling.

        Raises:
            ConfigError: the environment has no such tasks.
        """
        config = self.args
        one_of("split", split, SPLITS)
        env = make_env(config, split, self._plan.source, divide=True)
        return play_held_out(
            env,
            self.policies,
            tasks=held_out(env, split, config.eval_tasks or 100 if limit is None else limit),
            max_new_tokens=config.max_completion_length,
            greedy=greedy,
            temperature=config.temperature,
            seed=config.seed,
            scoring_threads=config.scoring_threads,
        )

    def save_model(self, output_dir: str | Path | None = None) -> Path:
        """Writes a folder for each policy, as PEFT or transformers does; returns their parent.

        Args:
            output_dir: the parent. Default: `adapters` in the run folder.
        """
        parent = self._plan.path / "adapters" if output_dir is None else Path(output_dir)
        for policy in self.policies.names:
            # Nothing trains the base model, so that there is nothing of it to save.
            if policy != BASE:
                self.policies.save(policy, parent / policy)
        return parent

    def close(self) -> None:
        """Stops the sampling engine; the policies can still be saved."""
        if self._policies is not None:
            self._policies.close()


_ELSEWHERE = {
    "config": "args",
    "tokenizer": "processing_class",
    "train_dataset": "env, and dataset of ATGRPOConfig",
    "eval_dataset": "env, and dataset of ATGRPOConfig",
    "environment_factory": "env",
    "rollout_func": "env",
    "ref_model": "beta of ATGRPOConfig; the reference is the base model",
    "optimizers": "learning_rate and the like of ATGRPOConfig",
    "adapters": "adapters of ATGRPOConfig",
}
"""Arguments of other trainers -> what has their purpose here."""


def _refuse(unknown: Mapping[str, Any]) -> None:
    for name in unknown:
        parameters = inspect.signature(ATGRPOTrainer).parameters.keys() - {"unknown"}
        if name in _ELSEWHERE:
            hint = f"use {_ELSEWHERE[name]}"
        elif name in {field.name for field in dataclasses.fields(ATGRPOConfig)}:
            hint = f"it is a setting: args=ATGRPOConfig({name}=...)"
        else:
            hint = advice(name, parameters) or did_you_mean(name, parameters)
        raise ConfigError(f"ATGRPOTrainer has no argument {name!r}; {hint}")


def _check_loaded(config: ResolvedConfig, policies: PolicySet | None) -> None:
    """Compares the models of loaded policies with the settings, by which a run is evaluated.

    Raises:
        ConfigError: names a policy whose settings name another model.
    """
    if policies is None or len(policies.bases) == 1:
        return
    for name in policies.names:
        theirs, named = policies.base_of(name).name, base_model(own_settings(config, name))
        # Settings hold absolute paths, and loaded policies the path that they were given.
        if theirs != named and Path(theirs).resolve() != Path(named).resolve():
            raise ConfigError(
                f"the loaded policy {name!r} is on the model {theirs!r}, its settings name {named!r}; "
                f"give args the setting policy_settings with {{{name!r}: {{'model': {theirs!r}}}}}"
            )


def _over(config: ATGRPOConfig, given: Mapping[str, Any]) -> ATGRPOConfig:
    """`config` with the trainer's own arguments.

    Raises:
        ConfigError: one is given twice, and differs.
    """
    default, changed = ATGRPOConfig(), dataclasses.replace(config, **given)
    for name in given:
        before, now = getattr(config, name), getattr(changed, name)
        # A value that equals the default cannot be distinguished from one that was not given.
        if before not in (getattr(default, name), now):
            raise ConfigError(
                f"{name} is given twice: {now!r} to the trainer, {before!r} in its settings; leave "
                "one out"
            )
    return changed


def _adapters_of(config: LoraConfig | None) -> dict[str, Any]:
    """The settings of the adapters that PEFT's configuration describes.

    Raises:
        ConfigError: it is none of LoRA, or has more than settings hold.
    """
    if config is None:
        return {}
    if not isinstance(config, LoraConfig):
        raise ConfigError(f"peft_config must be a peft.LoraConfig, got a {type(config).__name__}")
    # Compared with a plain one, so that options which PEFT adds later are refused, too.
    plain = LoraConfig(
        r=config.r,
        lora_alpha=config.lora_alpha,
        target_modules=config.target_modules,
        # Taken over, because these say what the adapter is for and not how it is computed.
        task_type=config.task_type,
        base_model_name_or_path=config.base_model_name_or_path,
        inference_mode=config.inference_mode,
    ).to_dict()
    for name, value in config.to_dict().items():
        if value != plain[name]:
            raise ConfigError(
                f"peft_config: {name}={value!r} is not supported; adapters are plain LoRA, so that "
                "sampling and update compute them alike: r, lora_alpha and target_modules"
            )
    targets = config.target_modules or "all-linear"
    return {
        "lora_r": config.r,
        "lora_alpha": config.lora_alpha,
        # PEFT makes a set of a list, and its order differs from process to process.
        "lora_target_modules": targets if isinstance(targets, str) else sorted(targets),
    }


def _settings_by(method: str | type[Method] | Method, config: ATGRPOConfig) -> dict[str, Any]:
    """The name of a method, and what it sets where the settings have their defaults.

    Raises:
        ConfigError, UnknownNameError: not a method.
    """
    name, usual = path_of(method), ATGRPOConfig()
    if config.method != usual.method:
        return {"method": name}  # named in the settings, which it has filled in
    method_class = load_method(method) if isinstance(method, str) else method
    # A function that makes a method has none.
    preset = getattr(method_class, "settings", {})
    unset = {n: v for n, v in preset.items() if getattr(config, n) == getattr(usual, n)}
    return {"method": name, **unset}


def _settings_of(model: Any, sampler: str) -> dict[str, str]:
    """Returns the name of a model for settings and adapters, and the sampler of a model object.

    Raises:
        ConfigError: a sampler that loads the model by itself.
    """
    if isinstance(model, str | Path):
        return {"model": str(model)}
    if sampler.startswith("vllm"):
        raise ConfigError(
            "vLLM loads a model by its name; give the name, or use sampler transformers"
        )
    # A model that was made from a configuration has an empty `name_or_path`.
    name = str(getattr(model, "name_or_path", "")) or type(model).__name__
    return {"model": name, "sampler": "transformers" if sampler == AUTO else sampler}
