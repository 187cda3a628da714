"""The one reader of YAML: whatever it returns, JSON can say, too."""

from __future__ import annotations

from typing import Any, ClassVar

import yaml

from pettingllms.errors import ConfigError

_PLAIN = {f"tag:yaml.org,2002:{x}" for x in ("str", "int", "float", "bool", "null", "seq", "map")}


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    # Without dates, which stay text, and merges; None is what refuses any other tag.
    yaml_implicit_resolvers: ClassVar = {
        first: [pair for pair in pairs if pair[0] in _PLAIN]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors: ClassVar = {
        tag: made
        for tag, made in yaml.SafeLoader.yaml_constructors.items()
        if tag in {*_PLAIN, None}
    }

    def fetch_alias(self) -> None:
        # Aliases make cycles, and gigabytes of a few lines.
        raise yaml.MarkedYAMLError(problem="aliases are not read", problem_mark=self.get_mark())

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            str(value if isinstance(value, int) else 0)  # fails where it has too many digits
        except (ValueError, ArithmeticError, LookupError) as error:
            what = f"{str(node.value)[:40]!r} is no {node.tag.rpartition(':')[2]} that can be read"
            raise yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark) from error
        return value


def read_yaml(content: bytes) -> Any:
    """The value of a YAML text; a `ConfigError` says in one line where it cannot be read, and why."""
    try:
        return yaml.load(content.decode(), _Loader)
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError) as error:
        what, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(
            place + " ".join(str(what if what and mark else error).split())
        ) from error
