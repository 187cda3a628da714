"""The command line of a benchmark: that of the package's commands, which suggests what was meant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pettingllms.cli.options import CommandParser
from pettingllms.errors import ConfigError, did_you_mean


def known(option: str, values: Sequence[str], names: Sequence[str]) -> None:
    """Exits with one line where a name is not one of `names`."""
    for name in values:
        if name not in names:
            raise SystemExit(f"{option}: unknown name {name!r}; {did_you_mean(name, names)}")


class Options(CommandParser):
    """The options of the benchmark that was started; a mistake is one line, with exit status 2."""

    def __init__(self, description: str | None) -> None:
        spec = sys.modules["__main__"].__spec__  # None where tests call a benchmark's function
        module = "" if spec is None else spec.name.removesuffix(".__main__")
        super().__init__(prog=f"python -m {module}", description=description)

    def parse_beside(
        self, published: Path, argv: Sequence[str] | None = None
    ) -> argparse.Namespace:
        """Parses a command line that may have `--out`; only the defaults write what is published.

        Args:
            published: the default of `--out`.
            argv: the command line.
        """
        defaults = {action.dest: action.default for action in self._actions}
        self.add_argument(
            "--out", type=Path, default=published, help="file to write; other settings need one"
        )
        options = self.parse_args(argv)
        others = (
            name for name, value in defaults.items() if vars(options).get(name, value) != value
        )
        if options.out == published and (name := next(others, None)):
            self.error(f"--{name} is not that of {published.name}; add --out FILE")
        return options

    def error(self, message: str) -> NoReturn:
        """Prints the message, with the nearest name for an unknown option, and exits."""
        try:
            super().error(message)
        except ConfigError as refused:
            self.exit(2, f"{self.prog}: {refused}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse lists all choices, which are dozens of experiments here.
        if action.choices is not None and value not in action.choices:
            hint = did_you_mean(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"unknown value {value!r}; {hint}")
