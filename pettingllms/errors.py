"""Every error that pettingllms raises on purpose, in one tree.

    PettingLLMsError
    |- ConfigError          (ValueError)    an option, key or value that cannot be used
    |- DatasetError         (ValueError)    a row of a task file that does not fit its schema
    |- MissingExtra         (ImportError)   a library of an extra that is not installed
    |- GroupError           (ValueError)    candidates that must not share one advantage group
    |- UnknownNameError     (LookupError)   a name that is in no registry
    |- CloneError           (TypeError)     an environment that cannot be copied exactly
    |- ConformanceError     (AssertionError)  an environment that breaks its contract
    |- StaleSamplerError    (RuntimeError)  a sampler that holds another version than the trainer
    |- SamplerUnavailable   (RuntimeError)  the inference engine failed, also at a second try
    |- WorkersLost          (RuntimeError)  too many processes were lost in one job, or none starts
    |- NonFiniteError       (ArithmeticError)  a loss or gradient that is not a number
    |- RunFolderError       (OSError)       a run folder that cannot be written or resumed
    '- SandboxUnavailable   (RuntimeError)  the sandbox failed, not the program in it

Each is also the closest standard exception, so that callers who know nothing of this package
can still catch it. Text written by a model never raises any of them.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator


class PettingLLMsError(Exception):
    """Base class of all errors raised on purpose by this package."""


class ConfigError(PettingLLMsError, ValueError):
    """An option, a configuration key or a value that cannot be used."""


class DatasetError(PettingLLMsError, ValueError):
    """A row of a task file that does not fit its schema; names file, line and field."""


class MissingExtra(PettingLLMsError, ModuleNotFoundError):
    """A library of an extra that is not installed; says how to install it."""


class GroupError(PettingLLMsError, ValueError):
    """Candidates that must not share one advantage group."""


class UnknownNameError(PettingLLMsError, LookupError):
    """A name that is in no registry."""


class CloneError(PettingLLMsError, TypeError):
    """An environment of which no exact copy can be made."""


class ConformanceError(PettingLLMsError, AssertionError):
    """An environment that breaks the contract that `check_env` checks; names the property."""


class StaleSamplerError(PettingLLMsError, RuntimeError):
    """A sampler that holds another version of the weights than the trainer."""


class SamplerUnavailable(PettingLLMsError, RuntimeError):
    """The inference engine failed, also at a second try; none of its completions was used."""


class WorkersLost(PettingLLMsError, RuntimeError):
    """Too many processes of a run were lost in one job, or none can be started."""


class NonFiniteError(PettingLLMsError, ArithmeticError):
    """A loss or gradient that is not a finite number."""


class RunFolderError(PettingLLMsError, OSError):
    """A run folder that cannot be written, is in use, or cannot be resumed."""


class SandboxUnavailable(PettingLLMsError, RuntimeError):
    """The sandbox itself failed. It says nothing about the program and is never a reward."""


_TRAIN = ("torch", "transformers", "trl", "peft", "accelerate", "safetensors", "rich", "yaml")
_MODULES = {"train": (*_TRAIN, "matplotlib"), "serve": ("httpx2", "uvicorn", "starlette")}
EXTRAS = {module: extra for extra, modules in _MODULES.items() for module in modules}
"""Module -> the extra that installs it."""


@contextlib.contextmanager
def naming_extras() -> Iterator[None]:
    """Says which extra is missing where an import fails.

    Raises:
        MissingExtra: a library of `EXTRAS` is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in EXTRAS:
            raise
        raise MissingExtra(
            f"{name} is not installed; pip install 'pettingllms[{EXTRAS[name]}]'", name=name
        ) from error


LISTED = 30
NEAR = 0.66
"""The least share of letters that a name has in common with one that is suggested, if both begin alike."""
NEARER = 0.75
"""That of other names: TRL's losses `luspo` and `vespo` are no slips of `sapo`."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that names the closest known name if it is near, or lists them, at most `LISTED`."""
    # Sorted, because messages must not depend on the order of a set.
    names = sorted(set(known))
    # Without the dashes of options, which would make every two of them alike.
    bare = {candidate.lstrip("-"): candidate for candidate in names}
    stripped = name.lstrip("-")
    alike = [candidate for candidate in bare if candidate[:1] == stripped[:1]]
    close = difflib.get_close_matches(stripped, alike, n=3, cutoff=NEAR)
    if close := close or difflib.get_close_matches(stripped, bare, n=3, cutoff=NEARER):
        # Letters that changed places are the likeliest slip; else the closest name comes first.
        best = max(close, key=lambda match: sorted(match) == sorted(stripped))
        return f"did you mean {bare[best]!r}?"
    if not names:
        return "none are known"
    more = f", ... ({len(names)} in all)" if len(names) > LISTED else ""
    return f"known: {', '.join(names[:LISTED])}{more}"
