"""The environment `math` of pettingllms for verifiers: `vf-eval pettingllms-math`."""

from pettingllms_verifiers import plugin

MathTaskset, MathEnv, AskOnce = plugin("math")

__all__ = ["AskOnce", "MathEnv", "MathTaskset"]
