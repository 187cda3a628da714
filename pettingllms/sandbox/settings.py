"""`SandboxSettings`: everything that a user decides about the sandbox, in one record.

It is written as a back end alone (`docker`) or as an object of keys, and it travels unchanged from
the command line or YAML to `shared_sandbox` and `open_sandbox`:

    --sandbox docker --sandbox.packages numpy,sympy --sandbox.cpu_s 6
    sandbox: {backend: docker, packages: [numpy, sympy], cpu_s: 6}

Every field of `Limits` is a key. Such a limit replaces the environment's default and the data
set's own limit.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.registry import Registry
from pettingllms.sandbox.types import Limits

BACKENDS = ("embedded", "docker")
SANDBOXES = Registry("sandbox", {})
"""Back ends by name that other packages offer as `pettingllms.sandboxes`: what makes an object with
`run` and `close`, as in `module:factory`."""
LIMITS = tuple(field.name for field in fields(Limits))

# Names become parts of pip's command line and of an image's name.
_PACKAGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_NOT_EVERYWHERE = {
    "workers": ("embedded", "docker"),
    "packages": ("embedded", "docker"),
    "runtime": ("docker",),
}


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """The back end that runs programs, and the limits of a run.

    Raises:
        ConfigError: a value that cannot be used, or one that the back end does not take.
    """

    backend: str = "embedded"
    """`embedded`, `docker` or `module:factory`."""
    workers: int | None = None
    """Programs that run at the same time; None: the back end's default."""
    packages: tuple[str, ...] = ()
    """Third-party packages that programs may import."""
    runtime: str | None = None
    """OCI runtime of the containers, as Docker's own option; None: the engine's default."""
    # Pairs and not a mapping, because settings are the key under which a sandbox is shared.
    limits: tuple[tuple[str, float], ...] = ()
    """Limits that replace those of the environment and the data set: name and value, sorted."""

    def __post_init__(self) -> None:
        kind = _kind(self.backend)
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"sandbox.workers must be at least 1, got {self.workers}")
        for name in self.packages:
            if not _PACKAGE.fullmatch(name):
                raise ConfigError(f"sandbox.packages: {name!r} is not the name of a package")
        for name, kinds in _NOT_EVERYWHERE.items():
            if getattr(self, name) and kind not in kinds:
                raise ConfigError(
                    f"sandbox.{name} is for {', '.join(kinds)}, not for {self.backend!r}; leave it out"
                )
        try:
            Limits(**dict(self.limits))  # type: ignore[arg-type]
        except ConfigError as error:
            raise ConfigError(f"sandbox.{error}") from None

    @classmethod
    def of(cls, value: Self | Mapping[str, Any] | str, **changes: Any) -> Self:
        """The settings that `value` describes, with `changes` by key over them.

        Args:
            value: settings, a mapping of keys, a back end, or the text of a JSON object.
            changes: keys and their values; None leaves a key unchanged.

        Raises:
            ConfigError: not such a value, an unknown key, or a value that cannot be used.
        """
        keys = value.keys() if isinstance(value, SandboxSettings) else _keys(value)
        keys |= {name: setting for name, setting in changes.items() if setting is not None}
        allowed = [*(field.name for field in fields(cls) if field.name != "limits"), *LIMITS]
        for name in keys:
            if name not in allowed:
                raise ConfigError(f"unknown key sandbox.{name}; {did_you_mean(str(name), allowed)}")
        checked = {
            name: _typed(name, setting) for name, setting in keys.items() if setting is not None
        }
        limits = tuple(sorted((name, checked.pop(name)) for name in LIMITS if name in checked))
        return cls(**checked, limits=limits)

    def keys(self) -> dict[str, Any]:
        """The back end and every key that differs from its default, as JSON values."""
        rest = {"workers": self.workers, "packages": list(self.packages), "runtime": self.runtime}
        changed = {name: value for name, value in rest.items() if value}
        return {"backend": self.backend, **changed, **dict(self.limits)}

    @property
    def text(self) -> str:
        """The shortest text that `of` reads as these settings."""
        keys = self.keys()
        return self.backend if len(keys) == 1 else json.dumps(keys)

    def under(self, given: str) -> Self:
        """These settings with the keys of the text `given` over them.

        Another back end drops `runtime`, which belongs to the old one.
        """
        mine, over = self.keys(), _keys(given)
        if over.get("backend", self.backend) != self.backend:
            mine.pop("runtime", None)
        return self.of({**mine, **over})

    def limits_over(self, default: Limits, own: Iterable[tuple[str, float]] = ()) -> Limits:
        """The limits of a run: the user's over the data set's `own` over the environment's."""
        return _replaced(_replaced(default, dict(own)), dict(self.limits))

    @property
    def pool(self) -> Self:
        """The same settings for all runs that can share workers: without limits.

        A container's memory is fixed when it starts, so docker keeps the limits that it follows
        from.
        """
        kept = ("memory_mib", "tmp_mib") if self.backend == "docker" else ()
        limits = tuple((name, value) for name, value in self.limits if name in kept)
        return dataclasses.replace(self, limits=limits)


_OPTIONS = [f.name for f in fields(SandboxSettings) if f.name not in ("backend", "limits")]
HELP = (
    "Where programs run: embedded (Linux, no daemon), docker, or module:factory (an object "
    "of yours with run and close, such as a client for a service). Its settings one by one: "
    + ", ".join(f"--sandbox.{name}" for name in [*_OPTIONS, *LIMITS])
    + ", as in --sandbox.packages numpy,sympy"
)
"""Help of the option `--sandbox`."""


def _kind(backend: str) -> str:
    """One of `BACKENDS`, or `module:` for an object of the user's."""
    if not isinstance(backend, str):
        raise ConfigError(f"sandbox.backend must be a text, got {backend!r}")
    if backend in BACKENDS:
        return backend
    if ":" in backend or backend in SANDBOXES:
        return "module:"
    raise ConfigError(
        f"sandbox must be one of {', '.join(BACKENDS)} or module:factory, got "
        f"{backend!r}; {did_you_mean(backend, [*BACKENDS, *SANDBOXES.paths()])}"
    )


def _keys(value: Mapping[str, Any] | str) -> dict[str, Any]:
    """The keys that a value gives, unchecked."""
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, str):
        raise ConfigError(f"sandbox must be a back end or an object of settings, got {value!r}")
    if not value.lstrip().startswith("{"):
        return {"backend": value}
    try:
        keys = json.loads(value)
    except ValueError as error:
        raise ConfigError(f"sandbox must be a JSON object, got {value!r}: {error}") from None
    return dict(keys)


def _typed(name: str, value: Any) -> Any:
    if name == "packages":
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            raise ConfigError(f"sandbox.packages must be names, as in numpy,sympy, got {value!r}")
        return tuple(stripped for package in names if (stripped := package.strip()))
    if name in ("backend", "runtime"):
        if not isinstance(value, str):
            raise ConfigError(f"sandbox.{name} must be a text, got {value!r}")
        return value
    seconds = name.endswith("_s")
    # bool is a subclass of int in Python, and True is no number of seconds or workers.
    fits = isinstance(value, int | float if seconds else int) and not isinstance(value, bool)
    if not fits:
        raise ConfigError(
            f"sandbox.{name} must be a {'number' if seconds else 'whole number'}, got {value!r}"
        )
    return value


def _replaced(limits: Limits, changes: Mapping[str, float]) -> Limits:
    """`limits` with `changes`; more CPU time without a wall limit of its own scales the latter."""
    more = changes.get("cpu_s", 0.0) / limits.cpu_s
    if more > 1 and "wall_s" not in changes:
        # No more than `Limits` takes.
        changes = {**changes, "wall_s": min(limits.wall_s * more, 86_400)}
    return dataclasses.replace(limits, **changes)  # type: ignore[arg-type]
