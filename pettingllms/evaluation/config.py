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
        ConfigError: a value that cannot be used; names the field, the value and the cure.
    """

    adapters: str | None = policies_setting(
        None,
        "A run; a folder with an adapter for each policy, or with one, as PEFT saves it, for all "
        "roles; hub:NAME; or coder=FOLDER,tester=FOLDER. Default: the base model",
    )
    swap: str | None = policies_setting(
        None,
        "coder=tester lets these roles exchange their policies; all: every role with every other "
        "role's policy",
    )
    base: bool = policies_setting(
        True, "Leave out the base model, which is evaluated beside the adapters"
    )
    members: str | None = policies_setting(
        None,
        "An ensemble of teams for one environment, each with a name: a=RUN,b=RUN, in the forms of "
        "--adapters; each plays alone, and together by --route or --vote",
    )
    route: str | None = policies_setting(
        None,
        "Members: a file of --route-out; the member answers that it says is best in a situation",
    )
    vote: bool = policies_setting(
        False, "Members: all answer, and the most frequent reply is played"
    )
    teacher: str | None = policies_setting(
        None,
        "Gives an agent's next reply after a wrong one. api:MODEL: after one that could not be read or made a score "
        "worse; solver, on boards: after one that earned less than the solver's would. Only the team that it "
        "corrects plays, for pettingllms-data step",
    )
    gate: str | None = policies_setting(
        None,
        "Refuse replies of low advantage and ask again (ReAd): the team's evaluation on --split train, for a critic",
    )
    gate_replies: int = policies_setting(
        4, "Gate: replies asked for at most; of none good enough, the best is played", at_least=1
    )
    gate_threshold: float = policies_setting(
        0.0, "Gate: least advantage over an empty reply at which a reply is played"
    )
    gate_feedback: bool = policies_setting(
        True, "Gate: ask again without the refused replies and their advantages in the prompt"
    )
    split: str = task_setting("test", "train, val or test", choices=SPLITS)
    limit: int | None = task_setting(
        None,
        "Number of tasks, the first of the split. Default: all of a data set, 100 where tasks "
        "never end",
        aliases=("--tasks",),
        at_least=1,
        at_most=10**6,
    )
    samples: int = task_setting(
        1,
        "Episodes of each task; more than one also give pass@k. More than a finished --out has are "
        "added to it",
        at_least=1,
    )
    greedy: bool = sampling_setting(False, "Always take the likeliest token instead of sampling")
    top_p: float = sampling_setting(
        1.0, "Sample from the likeliest tokens that together reach this probability"
    )
    out: str | None = _results(
        None, "Folder for results and all episodes; the same command resumes an interrupted one"
    )
    route_out: str | None = _results(
        None,
        "Members: file for what each is worth in each situation of --split train, for --route",
    )
    fail_under: float | None = _results(
        None,
        "Exit with code 1 if the success of the adapters (without any, of the base) is below",
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
        over = {name: value for name, value in values.items() if name not in names}
        return cls(**{name: value for name, value in values.items() if name in names}, over=over)
