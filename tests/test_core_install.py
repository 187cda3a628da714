"""What works, and what is said, where nothing but the core is installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from pettingllms.errors import EXTRAS

ROOT = Path(__file__).parents[1]
MORE = ("datasets", "docker", "huggingface_hub", "openai", "PIL", "pyarrow", "ray", "sympy", "vllm")
ABSENT = f"import sys; sys.modules.update(dict.fromkeys({[*EXTRAS, *MORE]}))\n"


def run(program: str) -> str:
    """What a process prints in which an import of any library of an extra fails."""
    command = [sys.executable, "-c", ABSENT + program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_every_command_explains_itself() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    modules = [target.partition(":")[0] for target in scripts.values()]
    shown = run(f"""
import contextlib, importlib
for name in {modules}:
    for words in (["--help"], []):  # a traceback would end this process
        with contextlib.suppress(SystemExit):
            importlib.import_module(name).main(words)
""")
    for name in scripts:
        assert f"{name} " in shown


def test_what_needs_an_extra_says_which() -> None:
    assert (
        run("""
import pettingllms as pl
from pettingllms.errors import MissingExtra
for name in ("train", "evaluate", "ATGRPOTrainer"):
    try:
        getattr(pl, name)
    except MissingExtra as error:
        print(str(error).partition(" ")[2])
""")
        == 3 * "is not installed; pip install 'pettingllms[train]'\n"
    )
