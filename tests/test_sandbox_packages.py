"""`packages=` finds what this interpreter finds, wherever that is installed, and shows no more."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from pettingllms.sandbox import Case, Limits
from pettingllms.sandbox.client import WorkerConnection
from pettingllms.sandbox.embedded import ENVIRONMENT, FLAGS, WORKER_MAIN
from pettingllms.sandbox.types import RunPlan
from pettingllms.sandbox.workers import ProcessChannel, WorkerLost

PROGRAM = "import {name}; print({name}.where, {name}.part.more)"


def package(folder: Path, name: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(
        f"where = {folder.name!r}\nfrom {name} import part\n"
    )
    (folder / name / "part.py").write_text("more = 1\n")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with a package, a `.pth` file, and one that imports a finder."""
    root = tmp_path_factory.mktemp("venv")
    root.chmod(0o755)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "v"], check=True)
    [site] = (root / "v" / "lib").glob("python*/site-packages")
    package(site, "installed")
    package(root / "edited", "editable")
    package(root / "found", "finder")
    (root / "edited" / "secret.py").write_text("key = 'of the host'")
    (root / "found" / "finder" / "__init__.py").write_text(
        "where = 'found'\nfrom finder import part\n"
    )
    (site / "edited.pth").write_text(f"{root / 'edited'}\n")
    (site / "found.pth").write_text("import _found_finder\n")
    (site / "_found_finder.py").write_text(
        "import importlib.util, sys\nclass Finder:\n @classmethod\n def find_spec(cls, name, path=None, target=None):\n"
        f"  if name == 'finder': return importlib.util.spec_from_file_location(name, {str(root / 'found' / 'finder' / '__init__.py')!r}, submodule_search_locations=[{str(root / 'found' / 'finder')!r}])\n"
        "sys.meta_path.append(Finder)\n"
    )
    return root / "v" / "bin" / "python"


def says(
    python: Path,
    packages: Sequence[str],
    programs: Sequence[str],
    options: Mapping[str, object] = MappingProxyType({}),
    **variables: str,
) -> list[str]:
    settings = json.dumps({"packages": list(packages), **options})
    command = (str(python), *FLAGS, str(WORKER_MAIN), settings)
    environment = {**ENVIRONMENT, **variables}
    order = RunPlan.of(programs, [Case()], Limits(), end_at_limit=True)
    request = order.request([(number, 0) for number in range(len(programs))])
    with contextlib.closing(WorkerConnection(ProcessChannel(command, environment))) as link:
        results = [result for _, result in link.ask(*request, wall_s=30.0)]
    return [(result.stdout or result.stderr).strip() for result in results]


@pytest.mark.parametrize(
    ("name", "where"),
    [("installed", "site-packages"), ("editable", "edited"), ("finder", "found")],
)
def test_a_package_is_found_where_the_interpreter_finds_it(
    environment: Path, name: str, where: str
):
    assert says(environment, [name], [PROGRAM.format(name=name)]) == [f"{where} 1"]


def test_nothing_else_of_the_folder_of_a_package_is_shown(environment: Path):
    source = environment.parents[2] / "edited" / "secret.py"
    look = [f"print(open({str(source)!r}).read())", "import secret", "import installed"]
    outputs = says(environment, ["editable"], look)
    assert [text.splitlines()[-1].split(":")[0] for text in outputs] == [
        "FileNotFoundError",
        "ModuleNotFoundError",
        "ModuleNotFoundError",
    ]


def test_what_lies_beside_a_package_is_not_there_where_it_could_be_seen(environment: Path):
    """Without namespaces the files are there, and Landlock alone says that they cannot be read."""
    programs = [f"import {name}" for name in ("installed", "finder", "secret")]
    options = {"without": ["namespaces"]}
    outputs = says(environment, ["editable"], programs, options)
    assert [text.rpartition("\n")[2].split(":")[0] for text in outputs] == [
        "ModuleNotFoundError"
    ] * 3


def test_without_packages_no_site_is_looked_at(environment: Path):
    [text] = says(environment, [], ["import installed"])
    assert text.endswith("No module named 'installed'")


def test_a_package_that_no_site_has_is_named(environment: Path):
    with pytest.raises(WorkerLost, match="no_such_package"):
        says(environment, ["no_such_package"], ["1"])


def test_a_package_in_the_users_own_folder_is_found(tmp_path_factory: pytest.TempPathFactory):
    home = tmp_path_factory.mktemp("home")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    package(home / ".local" / "lib" / version / "site-packages", "mine")
    for folder in (home, *home.rglob("*")):
        folder.chmod(0o755)
    base = Path(sys.executable).resolve()  # a virtual environment does not look there
    [text, beside] = says(
        base, ["mine"], [PROGRAM.format(name="mine"), "import pip"], HOME=str(home)
    )
    assert text == "site-packages 1"
    assert beside.endswith("No module named 'pip'")


SYSTEM = Path("/usr/bin/python3")
DEBIAN = Path("/usr/lib/python3/dist-packages")


def debian_package() -> str:
    """A package that the distribution has installed for its own Python, of modules alone."""
    pure = sorted(file.parent.name for file in DEBIAN.glob("[a-z]*/__init__.py"))
    for name in pure:
        code = f"import sys; assert sys.version_info >= (3, 11); import {name}"
        command = [str(SYSTEM), "-s", "-W", "error", "-c", code]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return name
    pytest.skip("there is no Debian's Python 3.11 or later with a package of its own")


def test_a_package_of_the_distribution_is_found():
    name = debian_package()
    program = f"import {name}; print({name}.__file__)"
    [text] = says(SYSTEM, [name], [program])
    assert text == str(DEBIAN / name / "__init__.py")
