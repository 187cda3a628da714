"""Environments of this package as environments of `verifiers` (0.4): one agent for each role.

verifiers finds an environment as a module of its own, which exports a taskset, an environment and a
harness. `integrations/verifiers` has such a module for each environment, made here:

    Taskset, Env, Harness = plugin("sokoban")

A task is a seed. An episode is the game: whoever acts next is asked with its observation alone, as in
training, so that each decision is a run of its agent with a trace of its own. The trace has what the
decision earned (`reward`), what its agent was paid at later steps of others (`late_reward`), and the
rest of what the environment says as metrics. A model that could not be asked ends the episode with an
error; nothing is scored because of it.
"""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pydantic
import verifiers.v1 as vf

from pettingllms.envs.aec import AnyEnv, clone_env, load_env, observe_text
from pettingllms.envs.base import next_agent
from pettingllms.names import role_of
from pettingllms.rollout.episode import step_result

SECONDS = 600.0
"""Most for an answer of the model; verifiers has timeouts of its own within."""


class GameData(vf.TaskData):  # type: ignore[misc]
    """A task: the seed of an episode."""

    seed: int


class GameConfig(vf.TasksetConfig):  # type: ignore[misc]
    """The split of the tasks, and the arguments of the environment."""

    split: str = "train"
    env_args: dict[str, Any] = pydantic.Field(default_factory=dict)


class AskOnceConfig(vf.HarnessConfig):  # type: ignore[misc]
    """Nothing to choose."""


class AskOnce(vf.Harness[AskOnceConfig]):  # type: ignore[misc]
    """Asks the model once, in this process: an observation is a whole prompt, and has no tools."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Sends the prompt through verifiers' own endpoint, which keeps the trace."""
        del trace, runtime, mcp_urls
        system, prompt = self.resolve_text_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt or ""})
        async with httpx.AsyncClient(timeout=SECONDS) as client:
            answer = await client.post(
                f"{endpoint.rstrip('/')}/chat/completions",
                json={"model": ctx.model, "messages": messages},
                headers={"Authorization": f"Bearer {secret}"},
            )
        if answer.is_success:
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")
        message = f"HTTP {answer.status_code}: {answer.text[:500]}"
        return vf.ProgramResult(exit_code=1, stdout="", stderr=message)


class _Team:
    """The part of every environment from `plugin` that turns a task into an episode."""

    game: str
    taskset: Any

    async def start(self) -> None:
        """Makes the environment that every episode is a copy of."""
        config = self.taskset.config
        self._template: AnyEnv = await asyncio.to_thread(
            load_env, self.game, split=config.split, **config.env_args
        )

    async def stop(self) -> None:
        """Ends what the environment has started, such as a sandbox."""
        if hasattr(self, "_template"):
            self._template.close()

    async def run(self, task: Any, agents: Any) -> None:
        """Plays an episode to its end.

        Raises:
            RuntimeError: a model could not be asked.
        """
        env = clone_env(self._template)
        env.reset(seed=task.data.seed)
        latest: dict[str, Any] = {}
        while (agent := next_agent(env)) is not None:
            prompt = observe_text(env, agent)
            data = vf.TaskData(idx=task.data.idx, name=f"{task.data.name} {agent}", prompt=prompt)
            trace = await getattr(agents, role_of(agent)).run(vf.Task(data))
            if not trace.ok:
                why = trace.last_error.message if trace.last_error else "no reason given"
                raise RuntimeError(f"{agent} could not be asked: {why}")
            # Off the event loop: a step may run programs.
            await asyncio.to_thread(env.step, said_in(trace))
            result = step_result(env, agent)
            trace.record_reward("reward", result.reward)
            trace.record_metrics(metrics_of(result.info))
            latest[agent] = trace
            for other, paid in result.others.items():
                if other in latest:
                    before = latest[other].rewards.get("late_reward")
                    total = paid + (before.score if before is not None else 0.0)
                    latest[other].record_reward("late_reward", total)


def said_in(trace: Any) -> str:
    """The reply of a run, as it was written."""
    messages = trace.assistant_messages
    return str(messages[-1].content or "") if messages else ""


def metrics_of(info: Mapping[str, Any]) -> dict[str, float]:
    """The numbers and truths of an info, and whether the reply could not be read."""
    numbers = {name: float(v) for name, v in info.items() if isinstance(v, bool | int | float)}
    return {**numbers, "parse_error": float(info.get("parse_error") is not None)}


def plugin(game: str) -> tuple[type[Any], type[Any], type[Any]]:
    """The taskset, the environment and the harness that a module for `game` exports.

    Args:
        game: name of an environment. Its roles are those that it has without arguments.

    Raises:
        UnknownNameError: no environment of that name.
    """
    title = game.title().replace("_", "")

    class Seeds(vf.Taskset[vf.Task, GameConfig]):  # type: ignore[misc]
        """Tasks by number: all rows of a data set, or without an end."""

        def __init__(self, config: GameConfig) -> None:
            super().__init__(config)
            env: Any = load_env(game, split=config.split, **config.env_args)
            self._rows: int | None = getattr(env.unwrapped, "num_tasks", None)
            self.INFINITE = self._rows is None
            env.close()

        def load(self) -> Iterator[Any]:
            """The tasks, in order."""
            for seed in itertools.count() if self._rows is None else range(self._rows):
                data = GameData(name=f"{game}#{seed}", seed=seed)
                yield vf.Task(data, self.config.task)

    seat = (vf.AgentConfig, vf.AgentConfig(runtime=vf.SubprocessConfig()))
    roles = dict.fromkeys(map(role_of, map(str, load_env(game).possible_agents)), seat)
    fields: dict[str, Any] = dict(roles)
    config = pydantic.create_model(f"{title}EnvConfig", __base__=vf.EnvConfig, **fields)
    made = types.new_class(f"{title}Env", (_Team, vf.Env[config]))
    made.game = game  # type: ignore[attr-defined]
    taskset = types.new_class(f"{title}Taskset", (Seeds,))
    return taskset, made, AskOnce
