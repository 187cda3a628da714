"""The experiments: environments to train in, arms to compare, claims to judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.priming.protocol import OUT as SIGNAL_BASE
from benchmarks.protocol import ARGUMENTS as SIGNAL_ARGUMENTS
from benchmarks.protocol import COMMON as SIGNAL_SETTINGS
from pettingllms.envs.aec import creator_of
from pettingllms.models import DEFAULT, SHIPPED
from pettingllms.names import declared_in
from pettingllms.trainers.settings import EMBEDDED as PRESET

SEEDS = (0, 1, 2, 3, 4)
"""Of what is reported; no learning rate was chosen by them."""
MORE = (5, 6, 7, 8, 9)
"""Further ones, added with `--medium` on some grounds after the first five had been judged there."""
TUNING = (100, 101)
"""Of the sweep of learning rates."""
TEST_TASKS, VALIDATION_TASKS = 300, 100
"""Tasks of a seed; no two seeds play the same."""
RATES = (0.5, 1.0, 2.0)
"""The grid of every arm, in units of the learning rate of the environment."""


class Ground(NamedTuple):
    """An environment with a base model: where arms are compared."""

    env: str
    model: Path
    arguments: Mapping[str, Any]
    settings: Mapping[str, Any]
    tokens: int
    """Generated tokens of a training, where arms are compared at equal tokens."""
    updates: int
    """Optimizer steps of a training, where arms are compared at equal updates."""
    seconds: float
    """CPU-seconds of a cell with both, about; for the estimate of `--dry-run`."""
    arms: tuple[str, ...] = ()
    """Those of an experiment's arms that are compared here; all where none is named."""
    habits: bool = False
    """Whether the base was primed with bad habits, so that part of any gain is a habit overcome."""
    more: bool = False
    """Whether there are twice as many seeds with `--medium`: p-values are then doubled, for two looks at the data."""


def _own(env: str) -> tuple[Path, Mapping[str, Any], Mapping[str, Any]]:
    """The embedded model of an environment, and what it declares for it."""
    env_class = creator_of(env)
    name = getattr(env_class, "embedded_model", DEFAULT)
    declared = declared_in(name)
    settings = PRESET | dict(getattr(env_class, f"{declared}_training", {}))
    return SHIPPED[name], getattr(env_class, declared), settings


def _short(env: str, tokens: int, updates: int, seconds: float, arms: tuple[str, ...]) -> Ground:
    # Twice the default's learning rate in the middle of the grid: trainings are a sixteenth as long.
    model, arguments, settings = _own(env)
    settings = {**settings, "learning_rate": 2 * settings["learning_rate"]}
    return Ground(env, model, arguments, settings, tokens, updates, seconds, arms, habits=True)


_SIGNAL = (SIGNAL_ARGUMENTS, {**SIGNAL_SETTINGS, "learning_rate": 3e-3})
# Of all families of problems and in four turns, which is harder than the default.
_HARDER = {"prompt": "compact", "steps": (3, 3)}
_LONGER = PRESET | {"max_steps": 60, "eval_steps": 10}


AT_GRPO, EXCHANGED, SHARED = "AT-GRPO", "exchanged", "shared policy"
_PAIR = (AT_GRPO, SHARED)
_FEW = (*_PAIR, "tree, by task", "GRPO, by episode", "random branch")
_GROUPINGS = (AT_GRPO, "tree, by task", "GRPO, by episode")
_ALL_GROUPINGS = (
    *_GROUPINGS,
    *("tree, by role", "tree, by turn", "GRPO, by agent", "GRPO, by turn", "random branch"),
)
_QUESTIONS = (*_ALL_GROUPINGS, SHARED, "trained apart", "outcome only")
_NUMBERS = (*_ALL_GROUPINGS, "alpha 0", "alpha 2", "single agent")
_MATH = (
    *_QUESTIONS,
    *("single agent", "alpha 0", "alpha 0.25", "alpha 0.5", "alpha 2"),
    *("3: and a judge", "4: two tools", "5: two reasoners"),
)


def _paths(moves: tuple[int, int], turns: int, tokens: int, seconds: float) -> Ground:
    # One move a turn, so that the distance of the goal sets the number of decisions; turns and tokens follow it.
    model, arguments, settings = _own("plan_path")
    arguments = {**arguments, "moves": moves, "max_turns": turns}
    return Ground("plan_path", model, arguments, settings, tokens, 10, seconds, _GROUPINGS)


SHORT: Mapping[str, Ground] = {
    "plan_path": Ground("plan_path", *_own("plan_path"), 30_000, 10, 32, more=True),
    "signal": Ground("signal", SIGNAL_BASE, *_SIGNAL, 40_000, 52, 8),
    "coding": Ground("coding", *_own("coding"), 60_000, 5, 120, _FEW)._replace(
        arguments=_HARDER, settings=_LONGER
    ),
    "coding numbers": Ground("coding", *_own("coding"), 90_000, 8, 80, _NUMBERS),
    "plan_path near": _paths((1, 2), 4, 8_000, 15),
    "plan_path far": _paths((6, 10), 16, 50_000, 60),
    "math": _short("math", 30_000, 6, 30, _MATH),
    "search": Ground("search", *_own("search"), 20_000, 10, 20, _QUESTIONS, more=True),
    "sudoku": _short("sudoku", 28_000, 6, 40, _PAIR),
    "sokoban": _short("sokoban", 21_000, 6, 30, (*_GROUPINGS, SHARED))._replace(more=True),
}
"""What can be decided in minutes, with `--small` and `--medium`."""
LONG: Mapping[str, Ground] = {
    "plan_path": SHORT["plan_path"]._replace(tokens=140_000, updates=50, seconds=90),
    "signal": SHORT["signal"],
    "coding": SHORT["coding"]._replace(tokens=400_000, updates=30, seconds=280, arms=()),
    "search": Ground("search", *_own("search"), 20_000, 15, 60),
    "math": Ground("math", *_own("math"), 120_000, 20, 120, habits=True),
    "sudoku": Ground("sudoku", *_own("sudoku"), 120_000, 20, 150, habits=True),
    "sokoban": Ground("sokoban", *_own("sokoban"), 140_000, 20, 120, habits=True),
}


class Arm(NamedTuple):
    """A way to train a team, and which line-up of it plays."""

    settings: Mapping[str, Any] = {}
    """What differs from the settings of the ground."""
    arguments: Mapping[str, Any] = {}
    """What differs from the environment's arguments of the ground."""
    apart: bool = False
    """Each role is trained alone beside the base model's others, with its share of the tokens; then all play together."""
    also: tuple[str, ...] = ()
    """Line-ups that play besides the team's own: `exchanged`, in which every role answers by the next one's policy."""


HERE = "benchmarks.claims.groupings"
ARMS: Mapping[str, Arm] = {
    AT_GRPO: Arm(also=(EXCHANGED,)),
    "random branch": Arm({"branch": "sample"}),
    "tree, by task": Arm({"method": f"{HERE}:TreeByTask"}),
    "tree, by role": Arm({"method": f"{HERE}:TreeByRole"}),
    "tree, by turn": Arm({"method": f"{HERE}:TreeByTurn"}),
    "GRPO, by episode": Arm({"method": "grpo"}),
    "GRPO, by agent": Arm({"method": "dr_mas"}),
    "GRPO, by turn": Arm({"method": "turn"}),
    "trained apart": Arm(apart=True),
    SHARED: Arm({"policies": "shared"}),
    "outcome only": Arm(arguments={"rewards": "sparse"}),
    "outcome only, look-ahead": Arm({"method": "look_ahead"}, {"rewards": "sparse"}),
    "single agent": Arm(arguments={"agents": "single"}),
    **{f"alpha {value:g}": Arm(arguments={"alpha": value}) for value in (0.0, 0.25, 0.5, 2.0)},
    "3: and a judge": Arm(arguments={"judge": True}),
    "4: two tools": Arm(arguments={"tools": 2, "judge": True}),
    "5: two reasoners": Arm(arguments={"tools": 2, "reasoners": 2, "judge": True}),
    "7: three of each": Arm(arguments={"tools": 3, "reasoners": 3, "judge": True}),
}


class Claim(NamedTuple):
    """`arm` solves more of the test tasks than `over`, by more than `least`."""

    text: str
    arm: str
    over: str
    confound: str
    """What else than the claim could make the difference, or hide it."""
    least: float = 0.0
    lineup: str = "own"
    """Which line-up of `over` plays."""


class Experiment(NamedTuple):
    """One question."""

    title: str
    question: str
    small: tuple[str, ...]
    """Grounds with `--small`."""
    medium: tuple[str, ...]
    """More of them, with `--medium`."""
    full: tuple[str, ...]
    """Grounds with neither."""
    claims: tuple[Claim, ...]

    @property
    def grounds(self) -> tuple[str, ...]:
        """Where it is run with any budget."""
        return tuple(dict.fromkeys((*self.small, *self.medium, *self.full)))

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that it compares."""
        return tuple(dict.fromkeys(arm for claim in self.claims for arm in (claim.arm, claim.over)))


_EARLY = "Trainings are short: what is better early need not be better in the end."
_OTHERS = (
    "Another sampler, too: whole episodes in place of trees, so that states and lengths differ. "
    f"The arms with trees isolate the grouping. {_EARLY}"
)
_TREE = f"The completion that is executed is the best of a group in both. {_EARLY}"
EXPERIMENTS: Mapping[str, Experiment] = {
    "grouping": Experiment(
        "Claim 3: grouping",
        "Does it matter which completions are compared with which?",
        ("plan_path", "signal"),
        (
            *("coding", "math", "search", "sokoban"),
            *("coding numbers", "plan_path near", "plan_path far"),
        ),
        ("plan_path", "signal", "coding", "math", "search", "sokoban"),
        (
            *(
                Claim(f"AT-GRPO beats {over}", AT_GRPO, over, _TREE)
                for over in ("tree, by task", "tree, by role", "tree, by turn")
            ),
            *(
                Claim(f"AT-GRPO beats {over}", AT_GRPO, over, _OTHERS)
                for over in ("GRPO, by episode", "GRPO, by agent", "GRPO, by turn")
            ),
            Claim(
                "Executing the best completion beats executing a random one",
                AT_GRPO,
                "random branch",
                f"Training sees states that evaluation, which never branches, reaches less often. {_EARLY}",
            ),
        ),
    ),
    "joint": Experiment(
        "Claim 1: joint training",
        "Are roles that are trained together better than roles trained apart and combined?",
        ("plan_path", "signal"),
        ("math", "search"),
        tuple(LONG),
        (
            Claim(
                "Training together beats training apart",
                AT_GRPO,
                "trained apart",
                "At equal tokens a role that is trained apart has half of them; at equal updates "
                f"both have as many, and training apart costs nearly twice the tokens. {_EARLY}",
            ),
        ),
    ),
    "swap": Experiment(
        "Claim 2: exchanged policies",
        "What is left of a team whose roles play with each other's policies?",
        ("plan_path", "signal", "math"),
        ("coding", "coding numbers", "search", "sudoku", "sokoban"),
        tuple(LONG),
        (
            Claim(
                "A team beats itself with its policies exchanged",
                AT_GRPO,
                AT_GRPO,
                "Says that roles need their own policies, not that training made them different: "
                "the prompts of the roles differ, and so does what the base was shown of them.",
                lineup=EXCHANGED,
            ),
        ),
    ),
    "shared": Experiment(
        "Claim 4: one policy or one for each role",
        "Is a policy for each role better than a shared one?",
        ("plan_path", "signal"),
        ("coding", "math", "search", "sudoku", "sokoban"),
        tuple(LONG),
        (
            Claim(
                "A policy for each role beats a shared one",
                AT_GRPO,
                SHARED,
                "A policy for each role has as many more trained weights, a shared one as many "
                f"more completions an update. {_EARLY}",
            ),
        ),
    ),
    "outcome": Experiment(
        "Claim 5: rewards for the outcome alone",
        "What is lost without local rewards?",
        ("plan_path",),
        ("math", "search"),
        ("plan_path", "coding", "math", "search", "sudoku", "sokoban"),
        (
            Claim(
                "Without local rewards AT-GRPO loses at most 0.05",
                "outcome only",
                AT_GRPO,
                f"Slower learning and no learning look the same after short trainings. {_EARLY}",
                least=-0.05,
            ),
            Claim(
                "Without local rewards looking ahead loses at most 0.05",
                "outcome only, look-ahead",
                AT_GRPO,
                "Probes are generated tokens: at equal tokens looking ahead has fewer updates, at "
                f"equal updates more tokens. {_EARLY}",
                least=-0.05,
            ),
        ),
    ),
    "single": Experiment(
        "A team or a single agent",
        "Does a trained team beat a trained single agent?",
        ("math",),
        ("coding numbers",),
        ("coding", "math", "sudoku", "sokoban"),
        (
            Claim(
                "A team beats a single agent, both trained with AT-GRPO",
                AT_GRPO,
                "single agent",
                "The base models were primed for teams: a single agent begins with prompts that "
                f"fewer demonstrations had. {_EARLY}",
            ),
        ),
    ),
    "alpha": Experiment(
        "Claim 6: weight of the team's reward",
        "How much should the team's reward count?",
        ("math",),
        ("coding numbers",),
        ("coding", "math"),
        tuple(
            Claim(
                f"Alpha 1 beats {other}",
                AT_GRPO,
                other,
                "The best learning rate is chosen for each alpha; within a group advantages are "
                f"scaled to unit deviation, which hides much of alpha. {_EARLY}",
            )
            for other in ("alpha 0", "alpha 0.25", "alpha 0.5", "alpha 2")
        ),
    ),
    "team_size": Experiment(
        "Claim 7: larger teams",
        "Are larger math teams better?",
        (),
        ("math",),
        ("math",),
        tuple(
            Claim(
                f"The team '{other}' beats the pair",
                other,
                AT_GRPO,
                "The base model was primed for the pair; a larger team has more tokens an episode "
                f"in the test, too. {_EARLY}",
            )
            for other in ("3: and a judge", "4: two tools", "5: two reasoners", "7: three of each")
        ),
    ),
}


def seeds_of(ground: Ground, budget: str) -> tuple[int, ...]:
    """The seeds that count on a ground."""
    return (*SEEDS, *MORE) if ground.more and budget == "medium" else SEEDS


def pairs(experiment: Experiment, budget: str) -> Iterator[tuple[str, str, Ground]]:
    """The grounds of an experiment within a budget, each with every arm that it has there."""
    names, records = {
        "small": (experiment.small, SHORT),
        "medium": ((*experiment.small, *experiment.medium), SHORT),
        "full": (experiment.full, LONG),
    }[budget]
    for name in names:
        for arm in experiment.arms:
            if not records[name].arms or arm in records[name].arms:
                yield name, arm, records[name]
