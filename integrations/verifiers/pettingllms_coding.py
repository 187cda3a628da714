"""The environment `coding` of pettingllms for verifiers: `vf-eval pettingllms-coding`."""

from pettingllms_verifiers import plugin

CodingTaskset, CodingEnv, AskOnce = plugin("coding")

__all__ = ["AskOnce", "CodingEnv", "CodingTaskset"]
