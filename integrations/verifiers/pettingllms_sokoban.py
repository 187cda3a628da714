"""The environment `sokoban` of pettingllms for verifiers: `vf-eval pettingllms-sokoban`."""

from pettingllms.elsewhere.verifiers_env import plugin

SokobanTaskset, SokobanEnv, AskOnce = plugin("sokoban")

__all__ = ["AskOnce", "SokobanEnv", "SokobanTaskset"]
