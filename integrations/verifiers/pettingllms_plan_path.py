"""The environment `plan_path` of pettingllms for verifiers: `vf-eval pettingllms-plan-path`."""

from pettingllms_verifiers import plugin

PlanPathTaskset, PlanPathEnv, AskOnce = plugin("plan_path")

__all__ = ["AskOnce", "PlanPathEnv", "PlanPathTaskset"]
