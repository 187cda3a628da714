"""The settings of roles that a model behind an API plays, as fields of `ATGRPOConfig`."""

from __future__ import annotations

from pettingllms.trainers.settings import policies_setting

BASE = policies_setting(
    None,
    "OpenAI-compatible address of the models that play as api:MODEL, e.g. http://127.0.0.1:8000/v1",
    shared="run",
)
KEY_FILE = policies_setting(None, "File with the key for that address", shared="run")
# A budget belongs to one run, so that an evaluation does not take it over from there.
MAX_TOKENS = policies_setting(
    None,
    "Most tokens to pay for there, prompts included; counts those of earlier starts of the run",
    at_least=1,
    shared="default",
)
CONCURRENCY = policies_setting(
    16, "Requests to that address at the same time", at_least=1, at_most=1024, shared="run"
)
TIMEOUT = policies_setting(120.0, "Seconds for an answer from there", positive=True, shared="run")
ARGS = policies_setting(
    None,
    "More fields of those requests as JSON, or one by one: --api-args.reasoning_effort low; null "
    "leaves one out",
    shared="run",
)
