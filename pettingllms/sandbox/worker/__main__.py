"""Start the worker from its folder without importing the package around it.

The parents of this folder are registered as empty packages, so that the worker's modules keep
their full names (`pettingllms.sandbox.worker.frames`) and nothing outside the folder can be
found under them.
"""

from __future__ import annotations

import os
import sys
import types

FOLDER = os.path.dirname(os.path.abspath(__file__))


def _adopt_folder() -> None:
    parents: tuple[tuple[str, list[str]], ...] = (
        ("pettingllms", []),
        ("pettingllms.sandbox", []),
        ("pettingllms.sandbox.worker", [FOLDER]),
    )
    for name, path in parents:
        module = types.ModuleType(name)
        module.__path__ = path
        sys.modules[name] = module
    # Otherwise each module here could be imported a second time, under its bare name.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER]


if __name__ == "__main__":
    _adopt_folder()
    from pettingllms.sandbox.worker import start

    start.main(sys.argv[1:]).perform()
