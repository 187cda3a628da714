"""Names of methods, and the options of earlier versions that they replace.

| part | what it does |
|---|---|
| `alternate` | one policy learns at a time (`steps`, 1) |
| `swap` | two policies change places (`steps`, 5) |
| `shared` | a completion is worth what all agents earned in its round |
| `debate` | an answer is worth its own score and those of later rounds |
| `flow` | a reply is worth the mean of the replies that used it |
| `root` | an episode is worth its success and form, once |
| `rivals` | earlier versions of the policy play the other side (`opponents`, `every`, `size`, `itself`) |

A part is joined to a method by a plus sign: `--method alternate+gae`. A method of your own is a
subclass of `pettingllms.trainers.method.Method`, given as `--method my_package.my_module:MyMethod`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pettingllms.errors import ConfigError
from pettingllms.registry import Registry
from pettingllms.trainers.settings import as_object

logger = logging.getLogger(__name__)
_FILES = {
    "look_ahead": ("look_ahead:LookAhead", "malt:Malt", "c3:C3"),
    "q_tree": ("q_tree:QTree",),
    "grpo": ("grpo:Grpo", "dr_grpo:DrGrpo", "gspo:Gspo", "cispo:Cispo", "sapo:Sapo"),
    "dr_mas": ("dr_mas:DrMas", "decision:PerDecision", "turn:PerTurn", "agent_turn:PerAgentTurn"),
    "gigpo": ("gigpo:Gigpo",),
    "gdpo": ("gdpo:Gdpo",),
    "aligned": ("aligned:Aligned",),
    "agentrl": ("agentrl:AgentRl",),
    "rae": ("rae:Rae",),
    "marshal": ("marshal:Marshal",),
    "max_rl": ("max_rl:MaxRl",),
    "counterfactual": ("ccpo:Ccpo", "sharp:Sharp"),
    "igrpo": ("igrpo:Igrpo",),
    "mlpo": ("mlpo:Mlpo",),
    "marft": ("marft:Marft", "marft_gae:MarftGae", "gae:Gae", "alternate:Alternate"),
    "cory": ("cory:Cory", "swap:Swap", "shared:SharedRewards"),
    "maporl": ("maporl:Maporl", "debate:Debate"),
    "m_grpo": ("m_grpo:MGrpo",),
    "matpo": ("matpo:Matpo", "root:RootReward"),
    "mhgpo": ("mhgpo:Mhgpo", "flow:Flow"),
    "cure": ("cure:Cure",),
    "distill": ("distill:Distill",),
    "hindsight": ("hindsight:Hindsight",),
    "league": ("league:League", "rivals:Rivals"),
    "judged": ("judged:LearnedJudge",),
    "ma_airl": ("ma_airl:MaAirl",),
}
METHODS = Registry(
    "method",
    {"at_grpo": "pettingllms.trainers.at_grpo:AtGrpo"}
    | {
        name: f"pettingllms.methods.{file}:{kind}"
        for file, entries in _FILES.items()
        for name, kind in (entry.split(":") for entry in entries)
    },
)
PARTS = ("alternate", "swap", "shared", "debate", "flow", "root", "rivals")
"""Names that stand for one hook, and are joined to a method."""

OLD = ("estimator", "shape", "reward_transform", "cast")
OLD_OPTIONS = (*OLD, "estimator_args", "reward_transform_args", "cast_args")
"""Options until 0.2, in place of which there are `method` and `method_args`."""
GONE = "stream_gradients"
"""An option until 0.2 without a successor."""
_ESTIMATORS = {"agent": "dr_mas"}
_TRANSFORMS = {"maporl": "debate", "matpo": "root"}
_ALIKE = {
    "alternate+dr_mas": "marft",
    "alternate+gae": "marft_gae",
    "swap+shared+dr_mas": "cory",
    "debate+agent_turn": "maporl",
    "flow+dr_mas": "mhgpo",
    "root+grpo": "matpo",
    "m_grpo+m_grpo": "m_grpo",
    "cure+cure": "cure",
}
"""Joined parts that have a name. Settings of the name are not taken over."""


def upgraded(values: Mapping[str, Any], *, hint: bool = False) -> dict[str, Any]:
    """Settings, or a saved configuration, with `method` and `method_args` for the old options.

    Args:
        values: name -> value. A `method` among them had its own parts, which old options replace.
        hint: log what to write instead.

    Raises:
        ConfigError: a combination of parts that is no longer there.
    """
    old = {name: values[name] for name in OLD_OPTIONS if values.get(name) is not None}
    new = {name: value for name, value in values.items() if name not in (*OLD_OPTIONS, GONE)}
    if hint and values.get(GONE):
        logger.warning("%s has no effect any more: learners wait for the rollout", GONE)
    if not old:
        return new
    arguments: dict[str, Any] = {}
    for name in ("method_args", *(name for name in OLD_OPTIONS if name.endswith("_args"))):
        arguments |= as_object(name, values.get(name))
    arguments |= {"shape": old["shape"]} if "shape" in old else {}
    if any(name in old for name in ("estimator", "reward_transform", "cast")):
        new["method"] = _joined(old, values.get("method") or "at_grpo")
    if arguments:
        new["method_args"] = arguments
    if hint:
        words = f"--method {new.get('method', 'NAME')}"
        words += "".join(f" --method-args.{name} {value}" for name, value in arguments.items())
        logger.warning("%s: replaced by `%s`", ", ".join(f"--{n}" for n in old), words)
    return new


def _joined(old: Mapping[str, Any], method: str) -> str:
    """The method whose parts the old options name; those that are not given are the method's."""
    parts = _parts_of(method)
    for hook, names in (
        ("estimator", _ESTIMATORS),
        ("reward_transform", _TRANSFORMS),
        ("cast", {}),
    ):
        if (name := old.get(hook)) is not None:
            parts[hook] = names.get(name, name)
    transform = parts["reward_transform"]
    if transform in ("m_grpo", "cure") and parts["estimator"] != transform:
        raise ConfigError(
            f"reward_transform {transform} is part of method {transform} and cannot be combined with "
            f"estimator {parts['estimator']}; use --method {transform}"
        )
    chain = [parts["cast"], transform, parts["estimator"]]
    joined = "+".join(piece for piece in chain if piece not in ("all", "as_paid"))
    # A method that has these very parts keeps its name.
    return method if parts == _parts_of(method) else _ALIKE.get(joined, joined)


def _parts_of(method: str) -> dict[str, str]:
    """Estimator, reward transform, and cast, by today's names, that a method stands for."""
    same = {name: joined for joined, name in _ALIKE.items()}
    same |= dict.fromkeys(("dr_grpo", "gspo", "cispo", "sapo"), "grpo")
    same |= dict.fromkeys(("igrpo", "mlpo"), "at_grpo") | {"malt": "look_ahead"}
    *others, estimator = same.get(method, method).split("+")
    cast = next((piece for piece in others if piece in ("alternate", "swap")), "all")
    transform = next((piece for piece in others if piece not in ("alternate", "swap")), "as_paid")
    return {"estimator": estimator, "reward_transform": transform, "cast": cast}
