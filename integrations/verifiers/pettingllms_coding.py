"""The environment `coding` of pettingllms for verifiers: `vf-eval pettingllms-coding`."""

from pettingllms.contrib.bridges.verifiers_env import plugin

CodingTaskset, CodingEnv, AskOnce = plugin("coding")

__all__ = ["AskOnce", "CodingEnv", "CodingTaskset"]
