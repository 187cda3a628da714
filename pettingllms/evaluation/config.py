"""`EvalConfig`: the settings of an evaluation, over those of the run that is evaluated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from pettingllms.data.splits import SPLITS
from pettingllms.errors import ConfigError
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.settings import (
    check_names,
    check_values,
    normalized,
    policies_setting,
    sampling_setting,
    setting,
    task_setting,
)

_FIELDS = {
    field.name: field for field in dataclasses.fields(ATGRPOConfig) if "shared" in field.metadata
}
SHARED: Mapping[str, str] = {name: field.metadata["shared"] for name, field in _FIELDS.items()}
"""Settings of a run that an evaluation has too: "run" where they are the run's unless given."""

_results = partial(setting, "Results")


@dataclass
class EvalConfig:
    """Settings of an evaluation; `pettingllms-eval --help` explains each field.

    Raises:
        ConfigError: a value that cannot be used; the text says what to do.
    """

    adapters: str | None = policies_setting(
        None,
        "Adapters to evaluate: a run; a folder with one adapter for each policy; a PEFT adapter, used for all "
        "roles; hub:NAME; or coder=FOLDER,tester=FOLDER. Default: the base model alone",
    )
    swap: str | None = policies_setting(
        None,
        "Exchange the policies of two roles, as in coder=tester; all: play every role with every other role's "
        "policy",
    )
    base: bool = policies_setting(True, "Skip the base model, which is otherwise evaluated too")
    members: str | None = policies_setting(
        None,
        "Ensemble of named teams for one environment: a=RUN,b=RUN, in the forms of --adapters. Each plays "
        "alone, and all together with --route or --vote",
    )
    route: str | None = policies_setting(
        None,
        "With --members: a file from --route-out, which says which member answers in each situation",
    )
    vote: bool = policies_setting(
        False, "With --members: all answer, and the most frequent reply is played"
    )
    teacher: str | None = policies_setting(
        None,
        "Let a teacher give an agent's next reply after a wrong one, for pettingllms-data step: api:MODEL "
        "(wrong: unparsable, or lowers a score), or solver, on boards (wrong: earns less than the solver's "
        "reply). Only the corrected team plays",
    )
    gate: str | None = policies_setting(
        None,
        "Refuse replies of low advantage and ask again (ReAd). The critic learns from this folder: an "
        "evaluation of the team on --split train",
    )
    gate_replies: int = policies_setting(
        4, "With --gate: most replies to a prompt; if none passes, the best is played", at_least=1
    )
    gate_threshold: float = policies_setting(
        0.0, "With --gate: smallest advantage over an empty reply at which a reply is played"
    )
    gate_feedback: bool = policies_setting(
        True, "With --gate: leave refused replies and their advantages out of the next prompt"
    )
    split: str = task_setting("test", "train, val or test", choices=SPLITS)
    limit: int | None = task_setting(
        None,
        "Number of tasks, from the start of the split. Default: the whole data set, or 100 generated tasks",
        aliases=("--tasks",),
        at_least=1,
        at_most=10**6,
    )
    samples: int = task_setting(
        1,
        "Episodes of each task; with more than one, pass@k is reported. A higher number extends a finished "
        "--out",
        at_least=1,
    )
    greedy: bool = sampling_setting(False, "Always choose the likeliest token instead of sampling")
    top_p: float = sampling_setting(
        1.0, "Sample from the likeliest tokens that together have this probability"
    )
    out: str | None = _results(
        None,
        "Folder for results and all episodes; repeat the command to resume an interrupted evaluation",
    )
    route_out: str | None = _results(
        None,
        "With --members: write the value of each member in each situation of --split train to this file, for "
        "--route",
    )
    fail_under: float | None = _results(
        None,
        "Exit with code 1 if the success of the adapters (without adapters, of the base) is below this",
        at_least=0,
        at_most=1,
    )
    over: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of `ATGRPOConfig` that go over those of the run, by name; see `SHARED`."""

    def __post_init__(self) -> None:
        check_names(self.over, [*SHARED])
        self.over = {name: normalized(_FIELDS[name], value) for name, value in self.over.items()}
        for field in dataclasses.fields(self):
            if field.metadata:
                setattr(self, field.name, normalized(field, getattr(self, field.name)))
        check_values(self)
        ways = [n for n in ("swap", "members", "teacher", "gate") if getattr(self, n) is not None]
        if len(ways) > 1:
            one, other = ways[:2]
            raise ConfigError(f"{one} excludes {other}; leave out --{one} or --{other}")
        temperature = self.over.get("temperature", 1.0)
        if not temperature > 0:
            raise ConfigError(f"temperature must be above 0, got {temperature}; use --greedy for 0")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.greedy and (self.samples, temperature, self.top_p) != (1, 1.0, 1.0):
            raise ConfigError(
                "greedy gives the same episode of a task every time; leave out samples, "
                "temperature and top_p"
            )
        # Made for the errors of single settings, which then come before a run is read.
        ATGRPOConfig(**self.over)

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """Settings by name, those of `SHARED` among them; None leaves one as it is.

        Raises:
            ConfigError: an unknown name, or a value that cannot be used.
        """
        # Without `over`, which is no option.
        names = [field.name for field in dataclasses.fields(cls) if field.metadata]
        check_names(settings, [*names, *SHARED])
        values = {name: value for name, value in settings.items() if value is not None}
        over = {name: values.pop(name) for name in [*values] if name not in names}
        return cls(**values, over=over)
