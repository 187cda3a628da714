"""The parsers of all commands: argparse whose mistakes are one clear line.

`CommandParser` is for commands with arguments of their own. `OptionParser` makes its options from
the fields of settings dataclasses, `--max-steps` and `--max_steps` alike, which are also the keys of
a `--config` file; the command line goes over the file. Nothing is ignored: an unknown option or key
is an error that suggests the nearest one.

An option that takes a JSON object may be given key by key: `--env-args.max_turns 2` is
`--env-args '{"max_turns": 2}'`; keys given so go over those of the file one by one. Such an option
may have a main key, which its plain form sets: `--sandbox docker --sandbox.packages numpy` is
`--sandbox '{"backend": "docker", "packages": "numpy"}'`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pettingllms import __version__
from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.trainers.trl_names import advice

MAIN_KEYS: Mapping[str, str] = {"--sandbox": "backend"}
"""Option -> the key that its plain form sets."""
Objects = dict[str, dict[str, Any]]


class _Formatter(argparse.HelpFormatter):
    """One spelling of each option, and the value that will be used where it is not given."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, 110)
        super().__init__(prog, max_help_position=34, width=width)

    def start_section(self, heading: str | None) -> None:
        """Opens a section."""
        super().start_section(heading and heading[:1].upper() + heading[1:])

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002
        # Paragraphs with indented lines are examples.
        return "\n\n".join(
            part if "\n " in f"\n{part}" else textwrap.fill(part, width)
            for part in text.split("\n\n")
        )

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        takes_value = action.nargs != 0 and action.const is not True
        values = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{action.option_strings[-1]} {values}" if takes_value else action.option_strings[-1]

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return {int: "N", float: "X"}.get(action.type, "...")  # type: ignore[call-overload, no-any-return]

    def _expand_help(self, action: argparse.Action) -> str:
        text = str(action.help)
        unset = action.default is None or action.default is False or action.default == {}
        if action.option_strings and action.nargs != 0 and not unset:
            text += "" if "efault: " in text else f" (default: {action.default})"
        return text


class CommandParser(argparse.ArgumentParser):
    """Raises `ConfigError` where argparse prints its usage and exits; shows examples in the help.

    Options are not abbreviated, and those that take an object may be given key by key. `action` is
    what a subcommand does: options -> exit code.
    """

    def __init__(
        self,
        *,
        examples: Sequence[str] = (),
        action: Callable[[argparse.Namespace], int] | None = None,
        **kwargs: Any,
    ) -> None:
        if examples:
            kwargs["epilog"] = "\n".join(["Examples:", *(f"  {example}" for example in examples)])
        kwargs.setdefault("formatter_class", _Formatter)
        own_help = kwargs.pop("add_help", True)
        super().__init__(allow_abbrev=False, add_help=False, **kwargs)
        if action is not None:  # else it would be among the options of every command
            self.set_defaults(action=action)
        if own_help:
            self.add_argument("-h", "--help", action="help", help="Print this help and exit")
        version = f"pettingllms {__version__}"
        self.add_argument(
            "--version", action="version", version=version, help="Print the version and exit"
        )

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """The values of a command line.

        Raises:
            ConfigError: an unknown option or command, or a value of the wrong type.
        """
        names = set(self._options())
        words, objects = gathered(argv, names)
        # argparse would first miss a command or an argument, which the option may have been meant for.
        first = words[0].partition("=")[0] if words else ""
        if first.startswith("--") and first not in names | {"--"}:
            raise ConfigError(self._unknown("option", first, names))
        return self.parse_args([*words, *as_words(objects)])

    def error(self, message: str) -> NoReturn:
        """Raises `ConfigError` with the message, and the nearest name for an unknown option."""
        # Only the text of argparse's message says what it did not recognize.
        unknown = re.match(r"unrecognized arguments: (\S[^\s=]*)", message)
        if unknown is not None and not unknown[1].startswith("-"):
            raise ConfigError(f"unexpected argument {unknown[1]!r}; options start with --")
        if unknown is not None and (owners := self._commands_with(unknown[1].partition(".")[0])):
            raise ConfigError(
                f"option {unknown[1]} belongs to {', '.join(owners)}; see {self.prog} {owners[0]} --help"
            )
        if unknown is not None:
            raise ConfigError(self._unknown("option", unknown[1], set(self._options())))
        # argparse names all spellings, `--max_steps/--max-steps`; the last one is enough.
        message = re.sub(r"^argument \S*?(--[a-z0-9-]+):", r"\1:", message)
        raise ConfigError(f"{message}; see {self.prog} --help")

    def _unknown(self, what: str, name: str, names: Iterable[str]) -> str:
        """The message that refuses an option or key, with a hint at what to write instead."""
        return f"unknown {what} {name!r}; {did_you_mean(name, names)}"

    def _commands_with(self, option: str) -> list[str]:
        """The subcommands that have an option."""
        return [n for n, p in self._commands().items() if option in p._option_string_actions]

    def _commands(self) -> dict[str, CommandParser]:
        """The parsers of the subcommands by name."""
        groups = (a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction))
        return next(groups, {})

    def _options(self) -> Iterator[str]:
        """The option strings of this parser and of its subcommands."""
        yield from self._option_string_actions
        for parser in self._commands().values():
            yield from parser._options()


class OptionParser(CommandParser):
    """Options made from dataclass fields, plus `--config`, `--version` and `--help`.

    Args:
        fields: as from `fields_of`.
        prog: name of the command.
        description: first paragraph of its help.
        examples: command lines to show at the end of the help.
        defaults: values that the command line sets -> the text of the defaults of other fields in the
            help: the values that will be used.
        rare: fields that `--help-all` shows and `--help` does not.
        several: fields that take several words, which are joined by commas: `--env coding math` is
            `--env coding,math`.
    """

    def __init__(
        self,
        fields: Sequence[dataclasses.Field[Any]],
        *,
        prog: str,
        description: str,
        examples: Sequence[str] = (),
        defaults: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {},
        rare: Collection[str] = (),
        several: Collection[str] = (),
    ) -> None:
        usage = "%(prog)s [--config FILE] [--option VALUE ...]"
        super().__init__(
            prog=prog, description=description, examples=examples, usage=usage, add_help=False
        )
        self.fields = {field.name: field for field in fields}
        self._shown, self._several = defaults, several
        self._rare = [name for name in rare if name in self.fields]
        # Switches, because the defaults that they show depend on the other options.
        self.add_argument("-h", "--help", action="store_true", help="Print this help and exit")
        if self._rare:
            self.add_argument("--help-all", action="store_true", help="Print all options and exit")
        self.add_argument("--config", metavar="FILE", help="YAML file with any of these settings")
        groups: dict[str, argparse._ArgumentGroup] = {}
        for field in fields:
            title = field.metadata["group"]
            group = groups.get(title) or groups.setdefault(title, self.add_argument_group(title))
            self._add_field(field, group)

    def _add_field(self, field: dataclasses.Field[Any], group: argparse._ArgumentGroup) -> None:
        name, dashed = field.name, field.name.replace("_", "-")
        about, default = field.metadata["help"], _default_of(field)
        # The last one is the one that errors and the help show.
        names = dict.fromkeys([*field.metadata.get("aliases", ()), f"--{name}", f"--{dashed}"])
        if (type_of_value := _type_of(field)) is not bool:
            several: Any = {"nargs": "+"} if name in self._several else {}
            group.add_argument(
                *names, dest=name, type=type_of_value, default=default, help=about, **several
            )
            return
        # Of a pair of switches, the one that changes something is shown.
        on, off = (argparse.SUPPRESS, about) if default else (about, argparse.SUPPRESS)
        switch: Any = {"nargs": "?", "const": True, "type": _truth}
        group.add_argument(*names, dest=name, default=default, help=on, **switch)
        group.add_argument(
            f"--no-{dashed}", dest=name, action="store_false", default=default, help=off
        )

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """The value of every option; the attribute `given` names those that were given.

        `given` counts the command line, `in_file` the file. Prints the help and exits on `--help`.

        Raises:
            ConfigError: an unknown option or key, a value of the wrong type, an unreadable file.
        """
        words, objects = gathered(argv, set(self._options()))
        argv = [*words, *as_words(objects)]
        # Once to find the file, and once more with its values as the defaults.
        namespace, values = self.parse_args(argv), dict[str, str]()
        if namespace.config is not None:
            values = self._from_file(Path(namespace.config))
            # argparse converts and checks defaults that are text, as it does words.
            self.set_defaults(**values)
            for option, pairs in objects.items():
                in_file = values.get(option.lstrip("-").replace("-", "_"))
                objects[option] = as_object(option, in_file) | pairs
            argv = [*words, *as_words(objects)]
            namespace = self.parse_args(argv)
        typed = {word.partition("=")[0] for word in argv}
        namespace.given = {
            action.dest for action in self._actions if typed & set(action.option_strings)
        }
        namespace.in_file = set(values)
        for name in self._several:
            if isinstance(words := getattr(namespace, name), list):
                setattr(namespace, name, ",".join(words))
        everything = vars(namespace).get("help_all")
        if namespace.help or everything:
            print(self._help(namespace, () if everything else self._rare), end="", flush=True)
            sys.exit()
        return namespace

    def values(self, namespace: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
        """The values of these fields that the command line or the file gives."""
        present = namespace.given | namespace.in_file
        return {name: getattr(namespace, name) for name in names if name in present}

    def _from_file(self, path: Path) -> dict[str, str]:
        # Of the train extra, which other commands do without.
        from pettingllms.plain_yaml import read_yaml
        from pettingllms.runs.folder import upgraded

        try:
            values = read_yaml(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from error
        except ConfigError as error:
            raise ConfigError(f"--config {path} is not YAML: {error}") from error
        if values is None:
            return {}
        if not isinstance(values, dict):
            raise ConfigError(f"--config {path} must map settings to values, as in `max_steps: 60`")
        values = upgraded(values)
        for key, value in values.items():
            if key not in self.fields:
                raise ConfigError(f"{path}: {self._unknown('key', str(key), self.fields)}")
            if value is None and self.fields[key].default is not None:
                raise ConfigError(f"{path}: {key} has no value; give one or remove the key")
        return {key: _as_typed(value) for key, value in values.items() if value is not None}

    def _unknown(self, what: str, name: str, names: Iterable[str]) -> str:
        dashes = name.startswith("-")
        if hint := advice(name, {action.dest for action in self._actions}):
            return f"unknown {what} {name!r}; {hint}"
        # An option is known under both spellings; one is enough to suggest.
        names = {option.replace("_", "-") for option in names} if dashes else names
        return super()._unknown(what, name.replace("_", "-") if dashes else name, names)

    def _help(self, namespace: argparse.Namespace, hidden: Collection[str]) -> str:
        """The options with the values that will be used beside those given."""
        values = self.values(namespace, self.fields)
        defaults = {name: _default_of(field) for name, field in self.fields.items()}
        defaults |= {**self._shown(values), **values}
        for action in self._actions:
            if action.dest in hidden:
                action.help = argparse.SUPPRESS
            action.default = defaults.get(action.dest)
        about = str(self.description)
        if {"env", "model"} <= self.fields.keys():
            model = f"--model {defaults['model']}" if defaults["model"] else "the embedded model"
            about += f" The defaults shown are those for --env {defaults['env']} and {model}."
        if hidden:
            about += f" --help-all shows {len(hidden)} more options."
        self.description = about
        return self.format_help()


def fields_of(*kinds: type, shared: str | None = None) -> list[dataclasses.Field[Any]]:
    """The fields of settings dataclasses, with their types.

    Args:
        kinds: dataclasses.
        shared: only fields with this key in their metadata; else those that are options.
    """
    options = []
    for cls in kinds:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if (shared or "help") in field.metadata:
                field.type = hints[field.name]
                options.append(field)
    return options


# ------------------------------------------------------------------------------- objects by key


def gathered(argv: Sequence[str], known: Collection[str]) -> tuple[list[str], Objects]:
    """Splits a command line into plain words and, by option, the keys given one by one.

    Args:
        argv: the command line.
        known: the options that there are; a dotted word of any other stays a word.

    Raises:
        ConfigError: an option is given both as a whole and by key, or has no keys.
    """
    words, objects = list[str](), Objects()
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        option, dot, key = word.partition("=")[0].partition(".")
        if option not in known or (dot and not key):
            words.append(word)
        elif dot and f"{option}-args" in known:
            cure = word.replace(".", "-args.", 1)
            raise ConfigError(f"{option} has no keys, got {word}; write {cure}")
        elif dot:
            value = _as_json(_value(word, rest))
            objects.setdefault(option, {})[key.replace("-", "_")] = value
        elif option in MAIN_KEYS and ("=" in word or rest):
            value = word.partition("=")[2] if "=" in word else rest.pop(0)
            if value.lstrip().startswith("{"):
                words += [option, value]
            else:
                objects.setdefault(option, {})[MAIN_KEYS[option]] = value
        else:
            words.append(word)
    for option, pairs in objects.items():
        if any(word.partition("=")[0] == option for word in words):
            raise ConfigError(f"give either {option} or {option}.{next(iter(pairs))}, not both")
    return words, objects


def as_words(objects: Objects) -> list[str]:
    """The gathered objects as `--name JSON`."""
    return [word for option, pairs in objects.items() for word in (option, json.dumps(pairs))]


def as_object(option: str, text: str | None) -> dict[str, Any]:
    """The keys of an option's value in a file; empty where it is not an object."""
    if text is None:
        return {}
    value = _as_json(text)
    if isinstance(value, dict):
        return value
    return {MAIN_KEYS[option]: text} if option in MAIN_KEYS else {}


def _value(word: str, rest: list[str]) -> str:
    if "=" in word:
        return word.partition("=")[2]
    # A single dash begins a value, since it may be a negative number.
    return rest.pop(0) if rest and not rest[0].startswith("--") else "true"


def _as_json(text: str) -> Any:
    """A value of JSON's, or the text itself."""
    try:
        return json.loads(text, parse_constant=str)  # NaN is no JSON, whatever Python says
    except ValueError:
        return text


# ---------------------------------------------------------------------------------------- values


def _type_of(field: dataclasses.Field[Any]) -> Any:
    """What argparse makes of a word: the type of a field without None; an object comes as text."""
    kinds = typing.get_args(field.type) or (field.type,)
    return next((kind for kind in kinds if kind in _PLAIN), str)


_PLAIN = (bool, int, float, str)


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return None if field.default is dataclasses.MISSING else field.default


def _truth(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
    return words[text.lower()]


def _as_typed(value: Any) -> str:
    """A YAML value as the command line would spell it, so that both are checked alike."""
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)
