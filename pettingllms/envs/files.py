"""Environments in a file: `path/to/my_env.py:env`, without a package or PYTHONPATH."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from pettingllms.errors import ConfigError, UnknownNameError


def importable(path: str) -> str:
    """Returns `module:attribute` for `file.py:attribute`, with the file imported; else `path`.

    The file is imported like a script: the modules beside it can be imported, too.

    Raises:
        UnknownNameError: there is no such file.
        ConfigError: another module of this name is imported already.
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
