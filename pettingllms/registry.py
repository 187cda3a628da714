"""Things by name or path, imported when they are first used; other packages may add names.

A `Registry` maps names to `module:attribute` paths. Another package adds its own through an entry
point, for example in its pyproject.toml:

    [project.entry-points."pettingllms.methods"]
    mine = "my_package.credit:MyMethod"

| registry | group of entry points | what the path leads to |
|---|---|---|
| `pettingllms.envs.ENVIRONMENTS` | `pettingllms.environments` | returns a PettingZoo AEC environment |
| `pettingllms.trainers.method_names.METHODS` | `pettingllms.methods` | a subclass of `Method` |
| `pettingllms.rollout.shapes.SHAPES` | `pettingllms.shapes` | a subclass of `RolloutShape` |
| `pettingllms.samplers.base.SAMPLERS` | `pettingllms.samplers` | `open_engine(served, settings)` |
| `pettingllms.sandbox.types.SANDBOXES` | `pettingllms.sandboxes` | returns an object with `run` and `close` |

A path works wherever a name does, so that nothing has to be installed to try something. Its module may
be a file: `path/to/file.py:attribute`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean


class Registry:
    """Things of one kind by name.

    Args:
        kind: what they are, one word, for messages; its plural names the group of entry points.
        paths: name -> `module:attribute`.
    """

    def __init__(self, kind: str, paths: Mapping[str, str]) -> None:
        self.kind = kind
        self.own = dict(paths)
        """This package's, without those of installed ones."""
        # Of all kinds, `sandbox` alone ends in x.
        self._group = f"pettingllms.{kind}{'es' if kind.endswith('x') else 's'}"

    def paths(self) -> dict[str, str]:
        """Name -> `module:attribute`: this package's in the order of the table, then others'."""
        # Ours come last in the update, too, so that installing a package replaces none of them.
        others = importlib.metadata.entry_points(group=self._group)
        return self.own | {entry.name: entry.value for entry in others} | self.own

    def __contains__(self, name: str) -> bool:
        return name in self.own or name in self.paths()

    def path_of(self, name: str) -> str:
        """Returns the path of a name, without importing it; a path is its own.

        Raises:
            UnknownNameError: nothing has this name; the text suggests what does.
        """
        # Entry points come last: to find them, all installed packages are looked through.
        if ":" in name or name in self.own:
            return self.own.get(name, name)
        paths = self.paths()
        if name not in paths:
            raise UnknownNameError(f"unknown {self.kind} {name!r}; {did_you_mean(name, paths)}")
        return paths[name]

    def load(self, name: str) -> Any:
        """Imports what has this name, or is at this path.

        Raises:
            UnknownNameError: nothing has this name, or the path leads nowhere.
            ConfigError: not a path of the form `module:attribute`.
        """
        return resolve(self.path_of(name), self.kind)


def resolve(path: str, kind: str) -> Any:
    """Imports the object at a path, `module:attribute` or `file.py:attribute`.

    Raises:
        UnknownNameError: no such file, module, or attribute; the text suggests a similar one.
        ConfigError: not a path of this form, or another module with the file's name is loaded.
    """
    module_name, _, attribute = _importable(path).partition(":")
    if module_name[:1] in ("", ".") or not attribute:
        raise ConfigError(
            f"{path!r} is not a `module:attribute` path, such as my_package.my_{kind}:x or ./my_file.py:x"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that is there but fails to import something else keeps its own error.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UnknownNameError(
            f"there is no module {error.name!r} for the {kind} {path!r}; install it, or add "
            "its folder to PYTHONPATH"
        ) from None
    target = getattr(module, attribute, None)
    if target is None:
        public = [name for name in vars(module) if not name.startswith("_")]
        raise UnknownNameError(
            f"module {module_name!r} has no {attribute!r}; {did_you_mean(attribute, public)}"
        )
    return target


def _importable(path: str) -> str:
    """Returns `module:attribute` for `file.py:attribute`, with the file imported; else `path`.

    The file is imported like a script: it can import the modules in its folder.
    """
    name, _, attribute = path.rpartition(":")
    if not name.endswith(".py"):
        return path
    file = Path(name).expanduser().resolve()
    if not file.is_file():
        raise UnknownNameError(f"there is no file {file}")
    loaded = sys.modules.get(file.stem)
    # Run only once: a second run would make other classes of the same names, which `pickle` and
    # `isinstance` tell from the first ones.
    if loaded is None:
        _import(file)
    elif getattr(loaded, "__file__", None) != str(file):
        raise ConfigError(
            f"{file} cannot be imported: a module {file.stem!r} is loaded already; rename the file"
        )
    return f"{file.stem}:{attribute}"


def _import(file: Path) -> None:
    # Last in the search path, where the folder hides no other module.
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    # There before it runs, as by an import: dataclasses and pickles look for their module.
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # A second try must not find half a module.
        del sys.modules[file.stem]
        raise
