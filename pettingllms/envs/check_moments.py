"""The promises of an environment that can be seen at one moment of one episode.

Parts of `check_env`. Each returns None, or why it did not apply.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

from gymnasium.spaces import Dict

from pettingllms.envs import trace
from pettingllms.envs.base import RESERVED_KEYS, TextEnv
from pettingllms.envs.foreign import AnyEnv, clone_env, next_agent, observe_text
from pettingllms.envs.trace import Subject, agree, require
from pettingllms.errors import ConformanceError, SandboxUnavailable

HOSTILE = {
    "nothing": "",
    "a million brackets": "[" * 1_000_000,
    "a hundred thousand digits": "7" * 100_000,
    "fifty thousand signs": "-" * 50_000,
    "a NUL character": "\0",
    "lone surrogates": "\ud800 \udfff",
    "characters beyond the first plane": "\U0001f600\U0010ffff",
    "digits that are not ASCII": "\u0661\u0662\u0663 \u00b2",
    "numbers that JSON lacks": "[NaN, Infinity, -1e999]",
    "unclosed markup": '```python\n<answer>{"a": [' + "<answer>" * 1000,
    "line ends of all kinds": "\r\n\x85\u2028\v\f" * 1000,
}
"""Texts that a model can write and that parsers fall over."""

HOSTILE_CPU_S = 5.0
"""CPU seconds of this process that one hostile reply may cost."""


def spaces(subject: Subject) -> str | None:
    """Every agent has its spaces, always the same objects; any text is a `TextEnv`'s action."""
    env = subject.make()
    agents = env.possible_agents
    named = bool(agents) and all(isinstance(agent, str) for agent in agents)
    require("agents have names", named, f"possible_agents is {agents!r}; list their names")
    for agent in agents:
        observations, actions = env.observation_space(agent), env.action_space(agent)
        same = observations is env.observation_space(agent) and actions is env.action_space(agent)
        require("spaces stay the same objects", same, f"{agent} gets new ones; make them once")
        if not isinstance(env, TextEnv):
            continue
        keys = set(observations.spaces) if isinstance(observations, Dict) else set()
        allowed = {"text", "turn"} == keys & RESERVED_KEYS
        reserved = (
            f"{agent} sees {sorted(keys)}; have text and turn, rename {sorted(RESERVED_KEYS)}"
        )
        require("observations have text and turn", allowed, reserved)
        for label, text in HOSTILE.items():
            require("any text is an action", text in actions, f"{label} is not; use FreeText")
    return None


def episodes(subject: Subject) -> str | None:
    """Plays whole episodes and looks at every moment of them."""
    env, script = subject.make(), subject.script()
    reset: Callable[..., object] = env.reset
    for episode in range(subject.episodes):
        returned = reset(seed=subject.seed + episode)
        require("reset returns None", returned is None, f"got {returned!r}; return nothing")
        acts = Counter(dict.fromkeys(env.agents, 0))
        _moment(env)
        while (agent := next_agent(env)) is not None and acts.total() < trace.MAX_STEPS:
            text = next(script)
            returned = _say(env, agent, repr(text), text)
            require("step returns None", returned is None, f"got {returned!r}; return nothing")
            acts[agent] += 1
            _moment(env)
            if isinstance(env, TextEnv):
                _kernel(env, agent, acts)
    return None


def _moment(env: AnyEnv) -> None:
    """What must hold of any PettingZoo environment at any time."""
    agents = list(env.agents)
    for name in ("rewards", "terminations", "truncations", "infos", "_cumulative_rewards"):
        keys = list(getattr(env, name))
        same = sorted(keys) == sorted(agents)
        require(f"{name} has the keys of agents", same, f"{keys} is not {agents}")
    for agent in agents:
        for name in ("terminations", "truncations"):
            flag = getattr(env, name)[agent]
            require(f"{name} are bool", type(flag) is bool, f"{agent} has {flag!r}; use bool(...)")
        reward, info = env.rewards[agent], env.infos[agent]
        finite = math.isfinite(float(reward))
        require("rewards are finite", finite, f"{agent} has {reward!r}; divide with care")
        require("infos are dicts", isinstance(info, dict), f"{agent} has {info!r}; make it a dict")
    before = trace.view(env)
    for agent in agents:
        observation = env.observe(agent)
        observe_text(env, agent)
        inside = observation in env.observation_space(agent)
        require("observations lie in their space", inside, f"{agent} sees {observation!r:.300}")
    cure = "observe() must be a pure function of the state, for every agent at any time"
    agree("observing changes nothing", [before], [trace.view(env)], cure)


def _kernel(env: TextEnv, agent: str, acts: Counter[str]) -> None:
    """What a `TextEnv` promises after a step of `agent`."""
    info, reward = env.infos[agent], env.rewards[agent]
    parts = ("team_reward", "local_reward", "success", "parse_error", "turn")
    missing = [key for key in parts if key not in info]
    require("infos name what was earned", not missing, f"{agent} lacks {missing}")
    expected = env.alpha * info["team_reward"] + info["local_reward"]
    adds_up = math.isclose(reward, expected, abs_tol=1e-12)
    require("reward = alpha * team + local", adds_up, f"{agent} has {reward}, not {expected}")
    others = {other: env.rewards[other] for other in env.agents if other != agent}
    require("only who acted is rewarded", not any(others.values()), f"also {others}")
    solved = [env.infos[other]["success"] for other in env.agents]
    one = all(type(flag) is bool and flag is solved[0] for flag in solved)
    require("success is one bool for all agents", one, f"they have {solved}")
    error = info["parse_error"]
    readable = error is None or isinstance(error, str)
    require("parse_error is a str or None", readable, f"{agent} has {error!r}")
    recorded = len(env.transcript) == acts.total()
    require("every step is in the transcript", recorded, f"{len(env.transcript)} of {acts}")
    ended, cut = set(env.terminations.values()), set(env.truncations.values())
    require("agents finish together", len(ended) == len(cut) == 1, f"{ended}, {cut}")
    due = min(acts.values()) == env.max_turns and ended == {False}
    otherwise = f"truncated {cut}, terminated {ended} after {dict(acts)} of {env.max_turns} turns"
    require("truncation comes exactly at max_turns", cut == {due}, otherwise)


def hostile_replies(subject: Subject) -> str | None:
    """No text raises or takes long, whoever says it, in the first two turns."""
    env, script = subject.make(), subject.script()
    env.reset(seed=subject.seed)
    texts = dict(HOSTILE)
    if isinstance(env, TextEnv):
        limit = env.action_space(env.agent_selection).max_length
        texts["a text over the limit"] = "x" * (limit + 1)
    for _ in range(2 * len(env.possible_agents)):
        agent = next_agent(env)
        if agent is None:
            break
        for label, text in texts.items():
            twin = clone_env(env)
            start = time.process_time()
            _say(twin, agent, label, text)
            trace.view(twin)
            spent = time.process_time() - start
            otherwise = f"{label}, said by {agent}, took {spent:.1f} s of CPU; bound what is parsed"
            require("replies take bounded time", spent <= HOSTILE_CPU_S, otherwise)
            if label not in HOSTILE:
                counted = isinstance(twin.infos[agent]["parse_error"], str)
                require("over-long replies are parse errors", counted, f"not of {agent}")
        env.step(next(script))
    return None


def _say(env: AnyEnv, agent: str, label: str, text: str) -> object:
    """Returns what `step` returned; raises ConformanceError where it raised."""
    step: Callable[..., object] = env.step
    try:
        return step(text)
    except SandboxUnavailable:
        raise
    except Exception as error:
        raise ConformanceError(
            f"no reply raises: {label}, said by {agent}, raised {error!r:.300}; count it as a reply "
            "that cannot be read"
        ) from error
