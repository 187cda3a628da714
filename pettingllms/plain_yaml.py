"""The one reader of YAML: whatever it returns, JSON can say, too."""

from __future__ import annotations

from typing import Any, ClassVar

import yaml

from pettingllms.errors import ConfigError

_NAMES = ("str", "int", "float", "bool", "null", "seq", "map")
_PLAIN = tuple(f"tag:yaml.org,2002:{name}" for name in _NAMES)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    # Without those of dates, which stay text, and of merges.
    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in pairs if tag in _PLAIN]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    # None is the one that refuses any other tag.
    yaml_constructors: ClassVar = {
        tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (*_PLAIN, None)
    }

    def fetch_alias(self) -> None:
        # Aliases make cycles, and gigabytes of a few lines.
        raise yaml.MarkedYAMLError(problem="aliases are not read", problem_mark=self.get_mark())

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            str(value if isinstance(value, int) else 0)  # fails where it has too many digits
        except (ValueError, ArithmeticError, LookupError) as error:
            problem = (
                f"{str(node.value)[:40]!r} is no {node.tag.rpartition(':')[2]} that can be read"
            )
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error
        return value


def read_yaml(content: bytes) -> Any:
    """The value of a YAML text, of plain types alone: dates are text, and aliases are refused.

    Raises:
        ConfigError: it cannot be read; says in one line where and why.
    """
    try:
        return yaml.load(content.decode(), _Loader)
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        if mark is None:
            raise ConfigError(" ".join(str(error).split())) from error
        problem = getattr(error, "problem", None) or getattr(error, "context", None)
        raise ConfigError(f"line {mark.line + 1}, column {mark.column + 1}: {problem}") from error
