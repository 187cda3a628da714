"""The environment `sokoban` of pettingllms for verifiers: `vf-eval pettingllms-sokoban`."""

from pettingllms_verifiers import plugin

SokobanTaskset, SokobanEnv, AskOnce = plugin("sokoban")

__all__ = ["AskOnce", "SokobanEnv", "SokobanTaskset"]
