"""What a `pettingllms-eval` command comes to: settings, environment, tasks, who plays.

Everything here is cheap: no model is loaded.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pettingllms.assembly import adapters_in, is_embedded, located, make_env
from pettingllms.cli.evaluate import EvalOptions
from pettingllms.errors import ConfigError
from pettingllms.evaluate.folder import digest
from pettingllms.evaluate.play import Sampling, held_out, roles_of
from pettingllms.evaluate.teams import Team, teams_of
from pettingllms.models import EMBEDDED
from pettingllms.policies.mapping import BASE, parse_policies
from pettingllms.runs import CONFIG, read_config
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.episodes import AnyEnv
from pettingllms.types import Task

FROM_RUN = (
    "env",
    "env_args",
    "dataset",
    "alpha",
    "model",
    "policies",
    "full",
    "chat_template_kwargs",
    "max_completion_length",
    "sandbox",
    "scoring_threads",
)
"""Options that a run decides where they are not given."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An evaluation before anything is loaded."""

    config: ATGRPOConfig
    """Settings of the environment and the policies."""
    split: str
    env: AnyEnv
    players: Mapping[str, str]
    teams: Sequence[Team]
    tasks: Sequence[Task]
    sampling: Sampling

    @property
    def games(self) -> int:
        """Games of each team."""
        return len(self.tasks) * self.sampling.samples

    def settings(self) -> dict[str, Any]:
        """All that the numbers follow from, for the results and for going on."""
        config = self.config
        adapters = None if config.adapters is None else Path(config.adapters)
        data = None if config.dataset is None else Path(config.dataset)
        return {
            "env": config.env,
            "env_args": config.mapping("env_args"),
            "dataset": config.dataset,
            "data": digest(data) if data and data.exists() else config.dataset,
            "split": self.split,
            "tasks": len(self.tasks),
            "alpha": config.alpha,
            "sandbox": config.sandbox,
            "embedded_args": dict(getattr(self.env.unwrapped, "embedded", {}))
            if is_embedded(config)
            else {},
            "model": "embedded" if is_embedded(config) else config.model,
            "model_digest": digest(EMBEDDED) if is_embedded(config) else None,
            "full": config.full,
            "dtype": config.dtype,
            "device": config.device,
            "chat_template_kwargs": config.mapping("chat_template_kwargs"),
            "policies": dict(self.players),
            "adapters": config.adapters,
            "adapter_digests": {
                policy: digest(adapters / policy)
                for policy in sorted(set(self.players.values()) - {BASE})
            }
            if adapters
            else {},
            "teams": {team.title: dict(team.swap or {}) for team in self.teams},
            **dataclasses.asdict(self.sampling),
        }


def plan_of(options: EvalOptions) -> Plan:
    """Resolves the options, makes the environment, and counts its tasks.

    Raises:
        ConfigError, UnknownNameError, DatasetError: options that cannot be used.
    """
    config = settings_of(options)
    env = _env(options, config)
    players = parse_policies(config.policies, roles_of(env))
    if set(players.values()) == {BASE}:
        config = dataclasses.replace(config, adapters=None)
    _check_adapters(config, players)
    teams = teams_of(
        players, adapters=config.adapters is not None, base=options.base, swap=options.swap
    )
    sampling = Sampling(
        max_new_tokens=config.max_completion_length,
        samples=options.samples,
        greedy=options.greedy,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
    )
    tasks = held_out(env, options.split, options.limit)
    return Plan(config, options.split, env, players, teams, tasks, sampling)


def settings_of(options: EvalOptions) -> ATGRPOConfig:
    """The run's settings, if there is a run, with the options over them.

    Raises:
        ConfigError: no adapters where they should be, a value that cannot be used.
    """
    changes: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("dtype", "device", "seed", "temperature", *FROM_RUN)
        if getattr(options, name) is not None
    }
    config = ATGRPOConfig()
    if options.adapters is not None:
        adapters = adapters_in(Path(options.adapters))
        changes["adapters"] = str(adapters)
        runs = [
            run for run in (Path(options.adapters), adapters.parent) if (run / CONFIG).is_file()
        ]
        config = read_config(runs[0]) if runs else config
    config = located(dataclasses.replace(config, **({"adapters": None} | changes)))
    if options.agents is not None:
        arguments = config.mapping("env_args") | {"agents": options.agents}
        config = dataclasses.replace(config, env_args=json.dumps(arguments))
    return resolve(config, embedded=is_embedded(config))


def _env(options: EvalOptions, config: ATGRPOConfig) -> AnyEnv:
    try:
        return make_env(config, options.split, embedded=is_embedded(config))
    except ConfigError as error:
        if options.agents is None or "argument 'agents'" not in str(error):
            raise
        raise ConfigError(
            f"environment {config.env!r} has no form for other agents than its team (it takes no "
            "argument `agents`); leave out --agents"
        ) from error


def _check_adapters(config: ATGRPOConfig, players: Mapping[str, str]) -> None:
    if config.adapters is None:
        return
    found = sorted(path.name for path in Path(config.adapters).iterdir() if path.is_dir())
    for role, policy in players.items():
        if policy not in (*found, BASE):
            raise ConfigError(
                f"{config.adapters} has no adapter for the policy {policy!r}; it has "
                f"{', '.join(found) or 'none'}; say who plays {role!r} with --policies, for "
                f"example {','.join(f'{each}={(found or [policy])[0]}' for each in players)}"
            )
