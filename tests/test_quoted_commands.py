"""Every command of `benchmarks` that a page quotes runs with its smallest settings."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
TINY = ROOT / "pettingllms/models/tiny"
MADE = f"--device cpu --prompt-tokens 8 --model-config {TINY / 'config.json'}"
LEARNED = "benchmarks/out/learning_math/at_grpo-0"
"""A run that an earlier command makes."""
SEARCH_ARMS = [
    "at_grpo, dense",
    "at_grpo",
    "look_ahead",
    "grpo",
    "dr_mas",
    "mhgpo",
    "mhgpo, fork on first",
]
"""Those of `search_team`, which has up to fifteen seeds of each."""
HINDSIGHT_ARMS = ["at_grpo", "hindsight", "hindsight, finder alone"]
FEW = "--rounds 1 --prompts 2 --k 2 --reply-tokens 2"
FEWEST = {"num_generations": 2, "tasks_per_step": 2}
RUN = [
    "tables --write",
    "paper --list",
    "advice --dry-run",
    "alpha --dry-run",
    "crew --dry-run",
    "judged --dry-run",
    "paper calls --seeds 0 --dry-run",
    "paper judges --tokens 1 --dry-run",
    "paper local --tokens 1 --dry-run",
    "paper silent_groups --seeds 0 --tokens 1 --dry-run",
    "paper methods --envs plan_path --tokens 1 --seeds 0 --jobs 1 --dry-run",
    "claims --help",
    "claims --medium --dry-run",
    "claims --small --only grouping --dry-run",
    "peers --dry-run --env coding --seeds 0 --tokens 1",
    "peers_sweep --dry-run",
    "reading --dry-run --minutes 0 --only read relay",
    "distillation --dry-run --minutes 0",
    "agentrl --dry-run --minutes 0",
    "method_rates --dry-run --minutes 0",
    "hindsight_training --dry-run --minutes 0",
    "late_outcome --dry-run --minutes 0",
    "reading --minutes 0 --only read relay",
    "errands",
    "relay",
    "search_speed --passages 30 --words 12 --queries 2",
    "programs --rounds 2 --waiting 4",
    f"conversations --turns 2 --candidates 2 --new-tokens 4 --model {TINY} {FEW}",
    f"conversations --parts sampling --turns 2 --together 2 --candidates 2 --model {TINY} {FEW}",
    "boards --rounds 1 --calls 1",
    "soak --runs 5",
    "blind",
    "overlap",
    "figures",
    "sandbox --rounds 1",
    "scale simulate --tasks 2",
    f"sampling --sizes tiny {FEW}",
    f"sampling --model {TINY} {FEW}",
    f"train_step --longest 8 --trl-rows 2 --rounds 1 --prompts 2 --k 2 4 --reply-tokens 2 4 {MADE}",
    "serving --clients 1 --rounds 1 --max-tokens 2",
]
"""Commands of the default suite; trainings of experiments are listed by them, not run."""
LONGER = [
    f"update --model {TINY} --longest 4 --tokens-per-batch 64 {FEW}",
    "late_outcome --minutes 0.1 --out made/late_outcome.json",
    "alone --tokens 1 --seeds 0 --tasks 2 --out made/alone.json",
    "leader --tokens 1 --seeds 0 --tasks 2 --out made/leader.json",
    "malt --tokens 1 --seeds 0 --tasks 2 --out made/malt.json",
    "rounds --tokens 1 --seeds 0 --tasks 2 --out made/rounds.json",
    "ensemble --seeds 0 --tasks 2 --out made/ensemble.json",
    "gate --tokens 1 --seeds 0 --tasks 2 --out made/gate.json",
    "learning --env math --seeds 0",
    "learning --env plan_path --seeds 0 --policies shared --out made/learned.json",
    "trust",
    "airl --tokens 1 --tasks 2 --seeds 31 --out made/airl.json",
    "step --golden 1 --played 1 --updates 1 --tasks 2",
    f"viewer --gigabytes 0.001 --run {LEARNED}",
    f"refill {LEARNED} --rounds 1",
    "parts --only plan_path --seeds 21 --out benchmarks/results/parts.json",
    "habits --only math --seeds 0",
    "priming.prime --recipe search --clean 1 --out made/primed",
    "priming.protocol",
    "protocol --minutes 1",
    "priming.duet",
    "advice",
    "advice_grounds --only plan_path --steps 8 --seeds 20",
    "alpha --minutes 1",
    "priming.crew",
    "crew --minutes 1 --out made/crew.json",
    "priming.judged",
    "judged --minutes 1 --out made/judged.json",
    "between --only signal",
    "search_team --only grpo",
    "search_team",
    "agentrl --out made/agentrl.json",
    "method_rates --out made/method_rates.json",
    "hindsight_training --out made/hindsight_training.json",  # on the embedded model
    "paper debate --tokens 1 --seeds 0 --tasks 2",
]
"""Commands that take more than a few seconds: `make test-benchmarks`."""
FROZEN = "frozen HEAD --envs plan_path --methods at_grpo"
"""The command that needs a repository of git: `make test-benchmarks`."""
BESIDE_REASONING_GYM = ["sudoku_speed --rounds 1"]
"""Commands that compare with reasoning-gym: `make test-reasoning`."""
WITH_GAMES = [
    "games --only textarena:TicTacToe-v0 pettingzoo:classic/rps_v2",
    "priming.games",
    """self_play --game kuhn tictactoe --seeds 0 --set '{"max_steps": 1, "tasks_per_step": 1}'""",
    "league --minutes 0.1 --out made/league.json",
]
"""Commands that need TextArena or PettingZoo's classic games: `make test-games`."""
WITH_SMOLLM2 = [
    "prompts --replies 1 --envs math --kinds small --out made/prompts.json",
    "hindsight --envs read --tasks 1 --out made/hindsight.json",
    "sweet --tasks 2 --out made/sweet.json",
]
"""Commands that load a pretrained model: `make test-real`."""
ON_RAY = [
    "scale sleepers --workers 1 --shards 1 --seconds 0.1",
    "scale overhead --steps 2",
    "scale chaos --runs 1 --seed 200 --steps 1",
]
"""Commands that start processes on Ray: `make test-ray`."""
SMALLEST = {
    "benchmarks.airl.EPISODES": 2,
    "benchmarks.airl.RATES": [0.002],
    "benchmarks.agentrl.SEEDS": [41],
    "benchmarks.agentrl.SETTINGS": FEWEST | {"max_completion_length": 2},
    "benchmarks.agentrl.TEST_TASKS": 2,
    "benchmarks.agentrl.TOKENS": 1,
    "benchmarks.agentrl.UPDATES": 1,
    "benchmarks.agentrl.VALIDATION_TASKS": 2,
    "benchmarks.between.STEPS": 1,
    "benchmarks.blind.TESTED": 2,
    "benchmarks.crew.RATES": [0.003],
    "benchmarks.crew.SEEDS": [0],
    "benchmarks.crew.SETTINGS": FEWEST,
    "benchmarks.crew.TASKS": 2,
    "benchmarks.crew.TOKENS": 1,
    "benchmarks.ensemble.TABLE_TASKS": 5,
    "benchmarks.ensemble.TOKENS": 2,
    "benchmarks.habits.HALF": 1,
    "benchmarks.judged.ASKED": 1,
    "benchmarks.judged.PHRASES": 2,
    "benchmarks.judged.RATES": [0.001],
    "benchmarks.judged.SEEDS": [0],
    "benchmarks.judged.SETTINGS": FEWEST,
    "benchmarks.judged.TASKS": 2,
    "benchmarks.judged.TOKENS": 1,
    "benchmarks.hindsight_training.GRIDS": {arm: [0.001] for arm in HINDSIGHT_ARMS},
    "benchmarks.hindsight_training.MODEL": "embedded",
    "benchmarks.hindsight_training.SEEDS": [13],
    "benchmarks.hindsight_training.SETTINGS": {"tasks_per_step": 1, "num_generations": 2},
    "benchmarks.hindsight_training.TEST_TASKS": 2,
    "benchmarks.hindsight_training.TOKENS": 1,
    "benchmarks.hindsight_training.VALIDATION_TASKS": 2,
    "benchmarks.method_rates.ARMS": ["max_rl"],
    "benchmarks.method_rates.RATES": [0.012],
    "benchmarks.method_rates.SEEDS": [11],
    "benchmarks.method_rates.TASKS": 2,
    "benchmarks.method_rates.TOKENS": 1,
    "benchmarks.league.EVERY": 1,
    "benchmarks.league.GAMES": 1,
    "benchmarks.league.REPLIES": 2,
    "benchmarks.league.SETTINGS": {"tasks_per_step": 1},
    "benchmarks.league.VERSIONS": [0, 1],
    "benchmarks.learning.PASS_TASKS": 2,
    "benchmarks.learning.TASKS": 2,
    "benchmarks.learning.PASSES": [1, 2],
    "benchmarks.games.EPISODES": 1,
    "benchmarks.gate.RECORD": 2,
    "benchmarks.priming.games.POOL": {"KuhnPoker-v1": 20, "TicTacToe-v0": 20},
    "benchmarks.priming.games.STEPS": {"KuhnPoker-v1": 1, "TicTacToe-v0": 1},
    "benchmarks.priming.prime.EXAMPLES": 4000,
    "benchmarks.priming.prime.PHASES": [{"steps": 1}],
    "benchmarks.priming.crew.PHASES": [{"steps": 2}],
    "benchmarks.priming.duet.PHASE": {"steps": 2},
    "benchmarks.priming.judged.PHASES": [{"steps": 2}],
    "benchmarks.priming.protocol.PHASE": {"steps": 2},
    "benchmarks.overlap.STORIES": 2,
    "benchmarks.overlap.TASKS": 2,
    "benchmarks.protocol.COMMON": {"max_tokens": 1, "tasks_per_step": 2},
    "benchmarks.protocol.RATES": [0.003],
    "benchmarks.protocol.SEEDS": [0],
    "benchmarks.protocol.TASKS": 2,
    "benchmarks.scale.CODING": FEWEST,
    "benchmarks.scale.KILLS": 1,
    # Each policy has a process that loads torch.
    "benchmarks.scale.SMALL": FEWEST
    | {"num_iterations": 1, "policies": "shared", "tasks_per_shard": 1},
    "benchmarks.search_team.ARMS": {arm: {"seeds": [100]} for arm in SEARCH_ARMS},
    "benchmarks.search_team.COMMON": FEWEST | {"max_completion_length": 2},
    "benchmarks.search_team.LENGTH": 2,
    "benchmarks.search_team.OTHER_TASKS": 2,
    "benchmarks.search_team.RATES": [0.001],
    "benchmarks.search_team.START_TOKENS": 1,
    "benchmarks.search_team.TASKS": 2,
    "benchmarks.search_team.TOKENS": 1,
    "benchmarks.search_team.TUNING": [100],
    "benchmarks.search_team.VALIDATION": 2,
    "benchmarks.self_play.EVERY": 1,
    "benchmarks.self_play.MATCHES": 2,
    "benchmarks.step.RATES": [0.002],
    "benchmarks.step.REPLIES": 2,
    "benchmarks.step.SEEDS": [51],
    "benchmarks.sweet.HELD_OUT": 1,
    "benchmarks.sweet.PAIRS": 1,
    "benchmarks.sweet.REPLIES": 4,
    "benchmarks.sweet.SETTINGS": {"dtype": "float32"},  # bfloat16 is slow on many processors
    "benchmarks.trust.TASKS": 30,
    "benchmarks.warm.START_TOKENS": 1,
}
"""Sizes of experiments that are no options, as these commands have them."""
LAST = {
    "pettingllms.cli.train": "--max-steps 1 --tasks-per-step 1 --num-generations 2 --eval-tasks 1 "
    "--max-completion-length 2 --no-compare-roles",
    "pettingllms.cli.evaluate": "--max-completion-length 8",
    "pettingllms.cli.view": "",
}
"""Words that end the commands of the package which experiments start."""
NOT_COPIED = shutil.ignore_patterns("out", "__pycache__")
"""Results of runs, and what other processes may be compiling."""
OPTIONS = {"--peer": "needs gym-sokoban"}
"""Options that no test gives."""


class Quoted(NamedTuple):
    """A command of a page, without the values of its options."""

    module: str
    first: str
    """Its first word, where that is no option: an experiment, or a kind of measurement."""
    options: frozenset[str]


def _texts() -> Iterator[str]:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("docs/*/*.md")]
    yield from (p.read_text() for p in pages if p.name != "CHANGELOG.md")
    for page in ("pettingllms/models/README.md", "benchmarks/results/tables.md"):
        yield (ROOT / page).read_text()
    for place in ("benchmarks", "pettingllms"):
        for path in (ROOT / place).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    yield ast.get_docstring(node) or ""


def read(command: str) -> Quoted:
    """Takes a command apart; brackets around what may be left out do not count."""
    module, *words = shlex.split(re.sub(r"[\[\]]", " ", command))
    first = words[0] if words and re.fullmatch("[a-z_]{2,}", words[0]) else ""
    options = frozenset(word for word in words if word.startswith("--"))
    return Quoted(module, first if module in ("paper", "scale") else "", options)


def quoted() -> list[Quoted]:
    """The commands of all pages and docstrings."""
    line = re.compile(r"python -m benchmarks\.([a-z_.]+[^`|)\n]*)")
    commands = {
        # A remark follows after several blanks, or behind a sign.
        read(re.split(r"\s{2,}|[#;&'\"]", quotation)[0].rstrip(". "))
        for text in _texts()
        for quotation in line.findall(text)
    }
    return sorted(commands, key=lambda c: (c.module, c.first, sorted(c.options)))


KNOWN = [
    read(command)
    for commands in (RUN, [FROZEN], LONGER, BESIDE_REASONING_GYM, WITH_GAMES, WITH_SMOLLM2, ON_RAY)
    for command in commands
]


def test_pages_quote_commands() -> None:
    assert len({command.module for command in quoted()}) > 40


@pytest.mark.parametrize("command", quoted(), ids=lambda c: " ".join([*c[:2], *sorted(c.options)]))
def test_a_quoted_command_is_run_with_its_options(command: Quoted) -> None:
    assert any(
        covered.module == command.module
        and command.first in ("", covered.first)
        and command.options - OPTIONS.keys() <= covered.options
        for covered in KNOWN
    ), "add its options to a command that runs, or a command of its own"


@pytest.mark.slow
def test_what_is_run_is_quoted() -> None:
    modules = {command.module for command in quoted()}
    assert {covered.module for covered in KNOWN} == modules
    assert all(find_spec(f"benchmarks.{module}") for module in modules)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_quoted_commands_run_with_their_smallest_settings(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    assert _failures(RUN, tmp_path) == {}


# Marks are spelled out: without importing it, `conftest.py` reads here under which marks this file has tests.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(LONGER, id="benchmarks", marks=pytest.mark.benchmarks),
        pytest.param(BESIDE_REASONING_GYM, id="reasoning", marks=pytest.mark.reasoning),
        pytest.param(WITH_GAMES, id="games", marks=pytest.mark.games),
        pytest.param(WITH_SMOLLM2, id="real", marks=pytest.mark.real),
        pytest.param(ON_RAY, id="ray", marks=pytest.mark.ray),
    ],
)
def test_marked_commands_run_with_their_smallest_settings(
    commands: list[str], tmp_path: Path
) -> None:
    assert _failures(commands, tmp_path) == {}


@pytest.mark.benchmarks
@pytest.mark.timeout(1800)
def test_a_revision_trains_the_same_bytes_as_itself(tmp_path: Path) -> None:
    for name in ("benchmarks", "pettingllms"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=NOT_COPIED)
    # A repository of its own: a shallow clone and an unpacked archive have no revisions to name.
    git = ["git", "-c", "user.name=ci", "-c", "user.email=ci@localhost"]
    for words in (["init", "-q"], ["add", "pettingllms"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", *shlex.split(f"benchmarks.{FROZEN}")]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert re.fullmatch(r"plan_path +at_grpo +([0-9a-f]{16}) \1 *\n", ended.stdout)


def _failures(commands: Sequence[str], folder: Path) -> dict[str, str]:
    """Command -> why it failed, of those that did. They write into a copy of their folders."""
    for name in ("benchmarks", "docs", "sandbox", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=NOT_COPIED)
    (folder / "README.md").write_text((ROOT / "README.md").read_text())
    calls = [[f"benchmarks.{module}", *words] for module, *words in map(shlex.split, commands)]
    started = {command[0] for command in calls} | {"benchmarks.warm", "benchmarks.priming.prime"}
    ended = subprocess.run(
        [sys.executable, "-P", "tests/quoted_commands.py"],
        cwd=folder,
        input=json.dumps(
            {
                "commands": calls,
                "constants": {n: v for n, v in SMALLEST.items() if n.rsplit(".", 1)[0] in started},
                "last": {module: words.split() for module, words in LAST.items()},
            }
        ),
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[[")]
    assert len(lines) == len(calls), ended.stderr[-2000:]
    # Only the ends: pytest cuts longer texts.
    return {" ".join(command): failed[-300:] for command, failed, _ in lines if failed}
