"""Settings that earlier versions saved, as this version has them, so that old runs can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pettingllms.trainers.settings import as_object

_PARTS = {"cast": "all", "reward_transform": "as_paid", "estimator": "at_grpo"}
"""Parts of a method until 0.2, in the order in which they are joined -> the default."""
_ARGUMENTS = tuple(f"{part}_args" for part in _PARTS)
_GONE = (
    *(*_PARTS, *_ARGUMENTS, "shape", "stream_gradients"),
    *("serve", "server", "server_key", "server_timeout"),
)
_RENAMED = {"agent": "dr_mas", "maporl": "debate", "matpo": "root"}
"""Old name of a part -> today's; methods have some of the old names."""
_METHODS = {
    "alternate+dr_mas": "marft",
    "alternate+gae": "marft_gae",
    "swap+shared+dr_mas": "cory",
    "debate+agent_turn": "maporl",
    "flow+dr_mas": "mhgpo",
    "root+grpo": "matpo",
    "m_grpo+m_grpo": "m_grpo",
    "cure+cure": "cure",
}
"""Joined parts -> the method that they are."""
_VARIANTS = {
    **dict.fromkeys(("dr_grpo", "gspo", "cispo", "sapo"), "grpo"),
    **dict.fromkeys(("igrpo", "mlpo"), "at_grpo"),
    "malt": "look_ahead",
}
"""Method -> another one with the same parts; they differ in settings, which are saved as well."""


def upgraded(values: Mapping[str, Any]) -> dict[str, Any]:
    """A saved configuration of any version, by today's names.

    Until 0.2 a method was up to three parts, each with arguments, and a shape.
    """
    settings = {name: value for name, value in values.items() if name not in _GONE}
    if settings.get("sampler") == "vllm-server":
        settings["sampler"] = "vllm"
    old = {part: values.get(part) for part in _PARTS}
    if any(old.values()):
        names = [_RENAMED.get(name, name) for part in _PARTS if (name := old[part] or _PARTS[part])]
        joined = "+".join(name for name in names if name not in ("all", "as_paid"))
        method = _METHODS.get(joined, joined)
        if _VARIANTS.get(settings.get("method", "")) != method:
            settings["method"] = method
    arguments: dict[str, Any] = {}
    for name in ("method_args", *_ARGUMENTS):
        arguments |= as_object(name, values.get(name))
    if values.get("shape") is not None:
        arguments["shape"] = values["shape"]
    return settings | ({"method_args": arguments} if arguments else {})
