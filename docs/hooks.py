"""Fills pages of the site with what the project itself says, so that no fact is written twice.

{{ help COMMAND }}       what `COMMAND --help` prints
{{ docstring MODULE }}   the docstring of a module, without a heading
{{ manual MODULE }}      the same, of an environment's module, with the arguments of its own
{{ arguments CLASS }}    the arguments of an environment's base class, as `module:attribute`
{{ settings CLASS }}     the fields of a settings dataclass, with what `--help-all` says of them
{{ file PATH }}          a Markdown file of the repository, with its links made to fit
{{ code PATH }}          a Python file without its docstring
{{ environments }}       the table of environments
{{ fields ENV }}         the fields of a row of data for an environment
{{ methods }}            the table of methods
{{ trl }}                what each setting of TRL's GRPOConfig is here
{{ tutorials }}          the scripts of tutorials/, each with its docstring and its code

A mark that names nothing stops the build.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pettingllms.envs.arguments import Argument

ROOT = Path(__file__).parents[1]
_MARK = re.compile(r"^\{\{ (\w+)(?: (\S+))? \}\}$", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]+)\]\((?!https?:|#)[^)]+\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces every mark of a page; called by MkDocs."""
    makers = {"help": _help, "file": _file, "methods": _methods, "trl": _trl}
    makers |= {"tutorials": _tutorials, "manual": _manual, "docstring": _docstring}
    makers |= {"arguments": _arguments, "settings": _settings}
    makers |= {"environments": _environments, "fields": _fields, "code": _code}
    return _MARK.sub(lambda found: makers[found[1]](found[2]), markdown)


def _help(command: str) -> str:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module = scripts[command].partition(":")[0]
    shown = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return f"```text\n{shown.rstrip()}\n```"


def _code(path: str) -> str:
    code = (ROOT / path).read_text(encoding="utf-8").split('"""', 2)[2].strip()
    return f"```python\n{code}\n```"


def _environments(_: str | None) -> str:
    from pettingllms.envs import ENVIRONMENTS

    lines = ["| name | what | agents |", "|---|---|---|"]
    for name, entry_point in ENVIRONMENTS.own.items():
        manual = importlib.import_module(entry_point.partition(":")[0]).__doc__ or ""
        what = manual.split("\n")[2]
        facts = dict(re.findall(r"^\| (\w+) \| (.+) \|$", manual, flags=re.MULTILINE))
        lines.append(f"| `{name}` | {what} | {facts['Agents']} |")
    return "\n".join(lines)


def _fields(env: str) -> str:
    from pettingllms.data import coding_schemas, math, question_schemas

    fields = {"coding": coding_schemas, "math": math, "search": question_schemas}[env].FIELDS
    lines = [f"| field in `{env}` | |", "|---|---|"]
    lines += [f"| `{name}` | {about} |" for name, about in fields.items()]
    return "\n".join(lines)


def _docstring(module: str, level: int = 3) -> str:
    shown = "members: false, show_root_heading: false, show_root_toc_entry: false"
    return f"::: {module}\n    options: {{{shown}, heading_level: {level}}}"


def _manual(module: str) -> str:
    from pettingllms.envs.arguments import described
    from pettingllms.envs.team_env import TeamEnv
    from pettingllms.registry import resolve

    # Example environments are in no package, and MkDocs restores the path after this module's import.
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    shared = described(TeamEnv)
    own = [
        argument
        for argument in described(resolve(f"{module}:env", "environment"))
        if argument not in shared
    ]
    return f"{_docstring(module, level=2)}\n\n**Arguments**\n\n{_listed(own)}"


def _arguments(path: str) -> str:
    from pettingllms.envs.arguments import DECLARED, described
    from pettingllms.registry import resolve

    taken = (one for one in described(resolve(path, "class")) if one.name not in DECLARED)
    return _listed(taken)


def _settings(path: str) -> str:
    from pettingllms.registry import resolve
    from pettingllms.trainers.settings import LARGE

    lines = ["| setting | default | |", "|---|---|---|"]
    for field in dataclasses.fields(resolve(path, "class")):
        if about := field.metadata.get("help"):
            default = "by model" if field.name in LARGE else f"`{_default(field)}`"
            # On the command line `--no-NAME` has this help.
            about = f"`False`: {about}" if field.default is True else about
            lines.append(f"| `{field.name}` | {default} | {about.replace('|', '&#124;')} |")
    return "\n".join(lines)


def _default(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def _listed(arguments: Iterable[Argument]) -> str:
    return "\n".join(f"- `{one.name}={one.default!r}`: {one.about}" for one in arguments)


def _file(path: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    # A page of the site has no neighbors of the repository: such links become plain text.
    return _LINK.sub(r"\1", text)


def _methods(_: str | None) -> str:
    from pettingllms.trainers.method_names import METHODS, PARTS

    lines = ["| method | what it does | source | settings |", "|---|---|---|---|"]
    for name in METHODS.own:
        method = METHODS.load(name)
        if name not in PARTS:
            about = method.__doc__.partition("\n")[0].rstrip(".")
            settings = ", ".join(f"`{key}={value}`" for key, value in method.settings.items())
            lines.append(f"| `{name}` | {about} | {method.source} | {settings} |")
    return "\n".join(lines)


def _trl(_: str | None) -> str:
    from trl.trainer.grpo_config import GRPOConfig

    from pettingllms.trainers.config import ATGRPOConfig
    from pettingllms.trainers.settings import LARGE
    from pettingllms.trainers.trl_names import HERE, MEANING, NOT_HERE

    own = {field.name: field.default for field in dataclasses.fields(ATGRPOConfig)}
    lines = ["| `GRPOConfig` | here | |", "|---|---|---|"]
    for field in sorted(dataclasses.fields(GRPOConfig), key=lambda field: field.name):
        name, here = field.name, HERE.get(field.name, "")
        setting, _, note = here.partition(": ")
        note = note or NOT_HERE.get(name, MEANING.get(name, ""))
        if name in own:
            setting = "another meaning" if name in MEANING else "the same"
            default = "of the model and environment" if name in LARGE else f"`{own[name]}`"
            if own[name] != field.default:
                theirs = f"default: {default}, in TRL `{field.default}`"
                note = "; ".join(filter(None, (note, theirs)))
        shown = f"`{setting}`" if here else setting or "-"
        lines.append(f"| `{name}` | {shown} | {note} |")
    return "\n".join(lines)


def _tutorials(_: str | None) -> str:
    parts = []
    for path in sorted((ROOT / "tutorials").glob("[0-9]*.py")):
        about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        title, _, rest = about.partition("\n")
        shown = _code(str(path.relative_to(ROOT)))
        parts.append(f"## {title.rstrip('.')}\n\n{rest.strip()}\n\n{shown}")
    return "\n\n".join(parts)
