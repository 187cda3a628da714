"""The environment `sokoban` of pettingllms for verifiers: `vf-eval pettingllms-sokoban`."""

from pettingllms.contrib.bridges.verifiers_env import plugin

SokobanTaskset, SokobanEnv, AskOnce = plugin("sokoban")

__all__ = ["AskOnce", "SokobanEnv", "SokobanTaskset"]
