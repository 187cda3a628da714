"""The paper's tables and claims as experiments: arms to compare, claims to judge, a table, a picture.

`EXPERIMENTS` is the list; `python -m benchmarks.paper NAME` runs one. All arms of an experiment
generate the same number of tokens in training and then play the same test tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.evidence import (
    COLORS,
    Record,
    Table,
    at_ceiling,
    at_tokens,
    chosen,
    draw_bars,
    draw_curve,
    envs_of,
    estimate,
    gain,
    judged,
    mean_success,
    shown,
    solved,
    spread,
    table_of,
)

ROLES = {
    "coding": ("coder", "tester"),
    "math": ("tool", "reasoner"),
    **dict.fromkeys(("sudoku", "sokoban", "plan_path"), ("tool", "planner")),
}
"""The team of two of each environment, in turn order."""
PER_ROLE: Mapping[str, Any] = {"policies": "per-role"}


class Arm(NamedTuple):
    """One of the teams that an experiment compares."""

    name: str
    settings: Mapping[str, Any] | None = None
    """Settings of its training; None where the base model plays."""
    options: tuple[str, ...] = ()
    """More options of `pettingllms-eval`."""
    team: str | None = None
    """The line-up of the evaluation that counts, where it has several."""
    combine: tuple[Mapping[str, Any], ...] = ()
    """Instead of `settings`: trainings of single roles, which share the tokens of one training;
    their adapters play together."""


class Claim(NamedTuple):
    """`arm` solves more of the test tasks than `over`, by more than `least`."""

    text: str
    arm: str
    over: str
    least: float = 0.0


def bars(title: str, arms: Sequence[str] = ()) -> Callable[[Sequence[Record], Path], None]:
    """The picture of most experiments: success of each arm, or of these arms, by environment."""
    return partial(draw_bars, title=title, arms=arms)


class Experiment(NamedTuple):
    """One question to the method.

    `remark` adds what the claims' intervals do not say. `rows` makes the table from a published
    result; by default it is the success of each arm by environment.
    """

    question: str
    envs: tuple[str, ...]
    arms: Callable[[str], list[Arm]]
    """Environment -> what is compared in it."""
    claims: tuple[Claim, ...]
    draw: Callable[[Sequence[Record], Path], None]
    remark: Callable[[Sequence[Record]], str] = lambda _: ""
    rows: Callable[[Mapping[str, Any]], Table] | None = None

    def verdict(self, records: Sequence[Record]) -> str:
        """Which of the claims hold, by environment."""
        envs = envs_of(records)
        parts = [
            judged(
                claim.text,
                {env: gain(records, env, claim.arm, claim.over) for env in envs},
                claim.least,
            )
            for claim in self.claims
        ]
        return " ".join(filter(None, [*parts, self.remark(records)]))

    def table(self, result: Mapping[str, Any]) -> Table:
        """Header and rows of a published result."""
        if self.rows is not None:
            return self.rows(result)
        env = envs_of(result["runs"])[0]
        return table_of(result, [arm.name for arm in self.arms(env)])


# -------------------------------------------------------------------------------- the main table

SINGLE, GRPO, PROMPTED = "single agent", "single agent + GRPO", "team, prompts only"
SHARED, SPECIALIZED = "AT-GRPO, shared", "AT-GRPO, per role"


def _main_arms(_: str) -> list[Arm]:
    # The single agent has as many turns as the team, unlike the paper's: it is the fairer control.
    # Its GRPO compares whole episodes of a task.
    return [
        Arm(SINGLE, options=("--agents", "single")),
        Arm(GRPO, {"estimator": "grpo", "env_args": {"agents": "single"}}),
        Arm(PROMPTED),
        Arm(SHARED, {"policies": "shared"}),
        Arm(SPECIALIZED, PER_ROLE),
    ]


def _ceiling(records: Sequence[Record]) -> str:
    full = at_ceiling(records, (GRPO, SPECIALIZED))
    return f"Both are at the ceiling in {', '.join(full)}: no conclusion there." if full else ""


# ------------------------------------------------------------------------------------ role swap

OWN, SWAPPED = "own policies", "exchanged"
FIRST, SECOND = "first role by the second's", "second role by the first's"


def _swap_arms(env: str) -> list[Arm]:
    one, two = ROLES[env]
    every = ("--swap", "all")
    return [
        Arm("base"),
        Arm(OWN, PER_ROLE),
        Arm(SWAPPED, PER_ROLE, ("--swap", f"{one}={two}"), team="swapped"),
        Arm(FIRST, PER_ROLE, every, team=f"{one} by {two}"),
        Arm(SECOND, PER_ROLE, every, team=f"{two} by {one}"),
    ]


def _collapse(records: Sequence[Record]) -> str:
    """Where half of the team's success or more is lost, by the whole interval."""
    envs = envs_of(records)
    collapsed = [
        env
        for env in envs
        if gain(records, env, SWAPPED, OWN).high < -0.5 * mean_success(chosen(records, env, OWN))
    ]
    rest = ", ".join(env for env in envs if env not in collapsed)
    found = f"Half of the success or more is lost in {', '.join(collapsed) or 'none'}"
    return f"{found}, not in {rest}." if rest else f"{found}."


# --------------------------------------------------------------------------------- shared or not


def _shared_arms(env: str) -> list[Arm]:
    return [
        Arm(SHARED, {"policies": "shared"}),
        Arm(SPECIALIZED, PER_ROLE),
        *(arm for arm in _swap_arms(env) if arm.name == SWAPPED),
    ]


def _correlation(records: Sequence[Record]) -> str:
    """Whether the gain by specialization goes with how different the roles are."""
    envs = envs_of(records)
    gains = {env: gain(records, env, SPECIALIZED, SHARED) for env in envs}
    losses = [gain(records, env, SPECIALIZED, SWAPPED).mean for env in envs]
    order = np.corrcoef(_ranks(losses), _ranks([gains[env].mean for env in envs]))[0, 1]
    clear = sum(found.low > 0 or found.high < 0 for found in gains.values())
    return (
        f"Claim 4 (it depends on how different the roles are): over {len(envs)} environments the "
        f"rank correlation of that gain with the loss by an exchange is {order:+.2f}; {clear} of "
        "the gains are clear of 0."
    )


def _ranks(values: Sequence[float]) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


# ------------------------------------------------------------------------------ joint training

ALONE, JOINT = "trained alone, combined", "trained together"


def _joint_arms(env: str) -> list[Arm]:
    # The paper trains its roles alone as single agents, which not every role can be: a tester
    # alone has no program to test. Here the other role stays as the base model is.
    alone = tuple({**PER_ROLE, "train_roles": role} for role in ROLES[env])
    return [Arm("base"), Arm(ALONE, combine=alone), Arm(JOINT, PER_ROLE)]


# ------------------------------------------------------------------------------------- grouping

ESTIMATORS = ("at_grpo", "grpo", "agent", "turn")


def _grouping_arms(_: str) -> list[Arm]:
    # Whole episodes make longer and fewer steps, so these are validated more often.
    whole = [Arm(name, {**PER_ROLE, "estimator": name, "eval_steps": 2}) for name in ESTIMATORS[1:]]
    return [Arm("at_grpo", PER_ROLE), *whole]


def _grouping_rows(result: Mapping[str, Any]) -> Table:
    records = result["runs"]
    rows = []
    for env, name in dict.fromkeys((record["env"], record["arm"]) for record in records):
        runs = chosen(records, env, name)
        budget = result["settings"]["tokens"][env]
        half = [at_tokens(run["curve"], budget / 2, "success") for run in runs]
        local = [
            spread([run["scores"][f"{role}/first_local_reward"] for run in runs])
            for role in ROLES[env]
        ]
        spikes = [
            max(max(norms) / np.median(norms) for norms in run["grad_norm"].values())
            for run in runs
        ]
        row = [env, f"`{name}`", spread(half), shown(estimate(solved(runs))), " / ".join(local)]
        decisions = spread([run["late"]["turns"] for run in runs], 1)
        rows.append([*row, decisions, spread(_steps(runs), 0), spread(spikes, 1)])
    return [
        "",
        "",
        "success at half the tokens (validation)",
        "success at the end (test)",
        "local reward by role, first completions",
        "decisions of an episode in training",
        "steps",
        "largest gradient norm / median",
    ], rows


def _steps(runs: Sequence[Record]) -> list[float]:
    return [len(next(iter(run["grad_norm"].values()))) for run in runs]


def _grouping_picture(records: Sequence[Record], path: Path) -> None:
    """Team and roles against generated tokens, and gradient norms; a row an environment."""
    envs = envs_of(records)
    figure, axes = plt.subplots(
        len(envs), 4, figsize=(16, 3.4 * len(envs)), squeeze=False, sharex="row"
    )
    for row, env in zip(axes, envs, strict=True):
        scores = ["success", *(f"{role}/first_local_reward" for role in ROLES[env])]
        for name, color in zip(ESTIMATORS, COLORS, strict=False):
            runs = chosen(records, env, name)
            for axis, score in zip(row, scores, strict=False):
                draw_curve(axis, [run["curve"] for run in runs], score, name, color)
            for run in runs:
                for norms in run["grad_norm"].values():
                    tokens = np.linspace(0, run["tokens"], len(norms)) / 1e3
                    row[3].plot(tokens, norms, color=color, lw=0.7, alpha=0.6)
        for axis, score in zip(row, scores, strict=False):
            axis.set(title=f"{env}: {score}", xlabel="generated tokens (thousands)")
        row[3].set(title=f"{env}: gradient norms", yscale="log")
        row[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


# ------------------------------------------------------------------------------------ branching

BRANCHES = ("best", "sample", "first")


def _branching_arms(_: str) -> list[Arm]:
    return [
        Arm(name, PER_ROLE if name == "best" else {**PER_ROLE, "branch": name}) for name in BRANCHES
    ]


def _branching_gap(records: Sequence[Record]) -> str:
    """How far training, which executes one of K, is above evaluation, which never branches."""
    parts = []
    for name in BRANCHES:
        gaps = []
        for env in envs_of(records):
            runs = chosen(records, env, name)
            late = sum(run["late"]["success"] for run in runs) / len(runs)
            gaps.append(f"{env} {late - mean_success(runs):+.2f}")
        parts.append(f"{name}: {', '.join(gaps)}")
    return f"Success in training above that in evaluation: {'; '.join(parts)}."


def _branching_rows(result: Mapping[str, Any]) -> Table:
    records = result["runs"]
    rows = []
    for env, name in dict.fromkeys((record["env"], record["arm"]) for record in records):
        runs = chosen(records, env, name)
        late = [spread([run["late"][score] for run in runs]) for score in ("success", "turns")]
        decisions = spread([run["scores"]["decisions"] for run in runs])
        rows.append([env, name, shown(estimate(solved(runs))), *late, decisions])
    return [
        "",
        "executed",
        "success (test)",
        "success in training",
        "decisions of an episode in training",
        "in the test",
    ], rows


# ------------------------------------------------------------------------------ alpha, team size

ALPHAS = (0.0, 0.25, 0.5, 1.0, 2.0)


def _alpha(value: float) -> str:
    return f"alpha = {value:g}"


def _alpha_arms(_: str) -> list[Arm]:
    return [
        Arm(_alpha(value), PER_ROLE if value == 1.0 else {**PER_ROLE, "alpha": value})
        for value in ALPHAS
    ]


TEAMS: Mapping[str, Mapping[str, Any]] = {
    "2: tool, reasoner": {},
    "3: and a judge": {"judge": True},
    "4: two tools": {"tools": 2, "judge": True},
    "5: two reasoners": {"tools": 2, "reasoners": 2, "judge": True},
    "6: three tools": {"tools": 3, "reasoners": 2, "judge": True},
    "7: three reasoners": {"tools": 3, "reasoners": 3, "judge": True},
    "5, star": {"tools": 2, "reasoners": 2, "judge": True, "topology": "star"},
    "5, chain": {"tools": 2, "reasoners": 2, "judge": True, "topology": "chain"},
}
"""Math teams; agents of one role share a policy."""
PAIR, *LARGER = TEAMS


def _team_arms(_: str) -> list[Arm]:
    arms = []
    for name, members in TEAMS.items():
        options = ("--env-args", json.dumps(members)) if members else ()
        arms.append(Arm(f"base, {name}", options=options))
        arms.append(Arm(name, {**PER_ROLE, "env_args": members} if members else PER_ROLE))
    return arms


def _team_rows(result: Mapping[str, Any]) -> Table:
    records = result["runs"]
    rows = []
    for name in TEAMS:
        base, trained = chosen(records, "math", f"base, {name}"), chosen(records, "math", name)
        if trained:
            before, after = shown(estimate(solved(base))), shown(estimate(solved(trained)))
            tokens = spread([run["scores"]["tokens"] for run in trained], 0)
            seconds = spread([run["seconds"] for run in trained], 0)
            rows.append([name, before, after, tokens, spread(_steps(trained), 0), seconds])
    header = ["", "base", "trained", "tokens of an episode", "steps of training"]
    return [*header, "seconds of training"], rows


# --------------------------------------------------------------------------------------- the list

SPARSE, DENSE = "outcome only", "with local rewards"

EXPERIMENTS: Mapping[str, Experiment] = {
    "main_table": Experiment(
        "Does a trained team beat a trained single agent, and the team that it began as?",
        ("coding", "math", "sudoku", "sokoban", "plan_path"),
        _main_arms,
        (
            Claim(
                "A team trained with AT-GRPO, per role, beats a single agent trained with GRPO at "
                "equal tokens",
                SPECIALIZED,
                GRPO,
            ),
            Claim("It beats the team that it began as", SPECIALIZED, PROMPTED),
        ),
        bars("Test tasks solved, equal generated tokens"),
        _ceiling,
    ),
    "grouping": Experiment(
        "Does it matter which completions are compared? Four estimators.",
        ("coding",),
        _grouping_arms,
        tuple(
            Claim(
                f"Agent- and turn-wise groups beat {what} at equal generated tokens (claim 3)",
                "at_grpo",
                name,
            )
            for name, what in (
                ("grpo", "trajectory groups"),
                ("agent", "groups by agent"),
                ("turn", "groups by turn"),
            )
        ),
        _grouping_picture,
        rows=_grouping_rows,
    ),
    "joint_training": Experiment(
        "Are roles that are trained together better than roles trained alone and combined?",
        ("coding", "math"),
        _joint_arms,
        (
            Claim(
                "Joint training beats combining roles trained alone, at equal tokens (claim 1)",
                JOINT,
                ALONE,
            ),
        ),
        bars("Roles trained alone and together"),
    ),
    "role_swap": Experiment(
        "What is left of a team whose roles play with each other's policies?",
        ("coding", "math"),
        _swap_arms,
        (Claim("Exchanging specialized policies costs success (claim 2)", OWN, SWAPPED),),
        bars("Roles played by other roles' policies"),
        _collapse,
    ),
    "shared_or_specialized": Experiment(
        "One policy for all roles, or one for each? Does it depend on how different the roles are?",
        ("coding", "math", "sudoku", "sokoban"),
        _shared_arms,
        (Claim("A policy for each role beats a shared one at equal tokens", SPECIALIZED, SHARED),),
        bars("One policy, or one for each role", (SHARED, SPECIALIZED)),
        _correlation,
    ),
    "alpha": Experiment(
        "How much should the team's reward count? reward = alpha * team + local",
        ("math",),
        _alpha_arms,
        tuple(
            Claim(
                f"{_alpha(value)} is worse than {_alpha(1.0)} (open in the paper, 6)",
                _alpha(1.0),
                _alpha(value),
            )
            for value in ALPHAS
            if value != 1.0
        ),
        bars("Weight of the team's reward"),
    ),
    "sparse_rewards": Experiment(
        "What is lost without local rewards?",
        ("coding", "math"),
        lambda _: [
            Arm("base"),
            Arm(SPARSE, {**PER_ROLE, "env_args": {"rewards": "sparse"}}),
            Arm(DENSE, PER_ROLE),
        ],
        # The paper loses 0 to 4 points of 100.
        (
            Claim(
                "Rewards for the outcome alone lose at most 0.05 at equal tokens (claim 5)",
                SPARSE,
                DENSE,
                least=-0.05,
            ),
        ),
        bars("Rewards for the outcome alone"),
    ),
    "branching": Experiment(
        "Which of K completions should be executed: the best, one at random, or the first?",
        ("math",),
        _branching_arms,
        tuple(
            Claim(f"Executing the best completion beats executing {what}", "best", name)
            for name, what in (("sample", "a random one"), ("first", "the first one"))
        ),
        bars("Which of K completions is executed"),
        _branching_gap,
        _branching_rows,
    ),
    "team_size": Experiment(
        "Are larger math teams better, and who should see whom?",
        ("math",),
        _team_arms,
        tuple(
            Claim(f"The team '{name}' beats the pair at equal tokens", name, PAIR)
            for name in LARGER
        ),
        bars("Math teams of two to seven", tuple(TEAMS)),
        rows=_team_rows,
    ),
}
