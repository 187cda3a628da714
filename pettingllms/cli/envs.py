"""Lists, explains, checks, and plays environments in a terminal.

    pettingllms-envs list
    pettingllms-envs show sokoban
    pettingllms-envs check ./my_env.py:env --replies replies.txt
    pettingllms-envs play sokoban --seed 3 --env-args.size 7

NAME is a name from `list`, `module:attribute`, or `path/to/file.py:attribute`. Arguments of the
environment are JSON (--env-args '{"size": 7}') or given one by one (--env-args.size 7).
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import io
import shutil
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from pettingllms.cli.guard import dispatched
from pettingllms.cli.options import CommandParser
from pettingllms.envs import ENVIRONMENTS, TextEnv, arguments, check_env
from pettingllms.envs.aec import (
    BRIDGES,
    AnyEnv,
    creator_of,
    load_env,
    made_with,
    observe_text,
    takes_anything,
)
from pettingllms.envs.base import next_agent
from pettingllms.errors import CloneError, ConfigError, ConformanceError
from pettingllms.models import SHIPPED
from pettingllms.names import declared_in
from pettingllms.trainers.settings import as_object

BROKEN = 1
"""Exit code of `check` if the environment fails a test."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    0: done. 1: `check` failed. 2: an error. 130: interrupted.
    """
    for stream, how in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace")):
        # Text of any encoding may be played, and no terminal may stop the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=how)
    return dispatched(_parser, argv)


def _parser() -> CommandParser:
    parser = CommandParser(prog="pettingllms-envs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", action=_list, help="list the environments that have a name")
    show = commands.add_parser("show", action=_show, help="show the arguments of an environment")
    check = commands.add_parser(
        "check",
        action=_check,
        help="test an environment with check_env",
        description="Tests everything that training relies on. The exit code is 1 if a test fails.",
    )
    check.add_argument("--episodes", type=int, default=3, help="episodes of each check. Default: 3")
    check.add_argument(
        "--replies",
        type=Path,
        metavar="FILE",
        help="replies that the environment can parse, each followed by an empty line. Default: random "
        "text, most of it unparsable",
    )
    play = commands.add_parser(
        "play",
        action=_play,
        help="play an episode by hand, for all agents",
        description="Shows each prompt, reads a reply from standard input, and shows its reward. A reply "
        "ends with an empty line outside of a ``` block, or with Ctrl-D.",
    )
    for command in (show, check, play):
        command.add_argument(
            "name", metavar="NAME", help="name, module:attribute, or file.py:attribute"
        )
    for command in (check, play):
        command.add_argument("--seed", type=int, default=0, help="seed of the task. Default: 0")
        command.add_argument("--env-args", metavar="JSON", help="arguments of the environment")
    return parser


def _list(options: argparse.Namespace) -> int:
    del options
    what = {"judged": "NAME", "program": "FILE.py:FUNCTION"}
    bridges = {f"{name}:{what.get(name, 'GAME')}": path for name, path in BRIDGES.items()}
    for name, path in (ENVIRONMENTS.paths() | bridges).items():
        module = importlib.import_module(path.partition(":")[0])
        print(f"{name:<24} {_summary(module.__doc__)}")
    return 0


def _summary(docstring: str | None) -> str:
    """Returns the first paragraph that is not a title."""
    paragraphs = [text for text in inspect.cleandoc(docstring or "").split("\n\n") if text]
    return " ".join(next((p for p in paragraphs if not p.startswith("#")), "").split())


def _show(options: argparse.Namespace) -> int:
    """Prints what there is to know before making an environment: what it is, and its arguments."""
    width = min(shutil.get_terminal_size().columns, 100)
    maker: Any = creator_of(options.name)
    # A maker with **kwargs does not say what it takes; the class of what it makes does.
    target = type(load_env(options.name).unwrapped) if takes_anything(maker) else maker
    target = getattr(target, "func", target)  # of a game that another library names
    lines = [options.name]
    about = _summary(getattr(inspect.getmodule(target), "__doc__", None))
    lines += textwrap.wrap(about, width, initial_indent="  ", subsequent_indent="  ")
    if isinstance(target, type) and issubclass(target, TextEnv):
        lines += [f"  reset options: {', '.join(target.reset_options) or 'none'}"]
        if schemes := getattr(target, "schemes", ()):
            lines += [f"  reward schemes: {', '.join(schemes)}"]
        for model in SHIPPED:
            if (declared := getattr(target, declared_in(model), None)) is not None:
                fitted = ", ".join(f"{key}={value!r}" for key, value in declared.items())
                lines += [f"  for --model {model}: {fitted or 'no arguments'}"]
    lines += ["", "Arguments:"]
    indent = " " * 6
    for argument in arguments.described(target):
        if not takes_anything(maker) and argument.name not in inspect.signature(maker).parameters:
            continue
        required = argument.default is inspect.Parameter.empty
        default = "required" if required else f"default {argument.default!r}"
        lines.append(f"  {argument.name}: {argument.kind or 'Any'}, {default}")
        lines += textwrap.wrap(
            argument.about, width, initial_indent=indent, subsequent_indent=indent
        )
    print("\n".join(lines))
    return 0


def _check(options: argparse.Namespace) -> int:
    env_args, replies = as_object("--env-args", options.env_args), list[str]()
    if options.replies is not None:
        try:
            with options.replies.open(encoding="utf-8", errors="replace") as file:
                replies = list(read_replies(file))
        except OSError as error:
            raise ConfigError(f"--replies {options.replies}: {error.strerror}") from error
    name, maker = options.name, creator_of(options.name)
    subject = (lambda: made_with(name, maker, env_args, env_args)) if env_args else name
    try:
        check_env(subject, episodes=options.episodes, seed=options.seed, replies=replies)
    except (ConformanceError, CloneError) as error:
        print(f"{options.name} fails: {error}")
        return BROKEN
    print(f"{options.name} passes")
    return 0


def _play(options: argparse.Namespace) -> int:
    env_args, name = as_object("--env-args", options.env_args), options.name
    env = made_with(name, creator_of(name), env_args, env_args)
    env.reset(seed=options.seed)
    replies = read_replies(sys.stdin)
    if sys.stdin.isatty():
        print("End a reply with an empty line or Ctrl-D; Ctrl-C stops.")
    earned: dict[str, float] = defaultdict(float)
    flags: Mapping[str, bool] = {}
    info: Mapping[str, Any] = {}
    count = 0
    while (agent := next_agent(env)) is not None:
        print(f"----- {agent}\n{observe_text(env, agent)}\n-----", flush=True)
        reply = next(replies, None)
        if reply is None:
            print(f"stopped: the input ended after {count} replies")
            return 0
        if not sys.stdin.isatty():
            # Without the predicate, `indent` would leave empty lines without a mark.
            print(textwrap.indent(reply, "> ", lambda _: True))
        env.step(reply)
        count += 1
        # Read now: stepping finished agents out of the episode clears the rewards.
        flags = {
            "terminated": any(env.terminations.values()),
            "truncated": any(env.truncations.values()),
        }
        for other, reward in env.rewards.items():
            earned[other] += float(reward)
        info = env.infos[agent]
        print(_result(env, agent))
    ends = " and ".join(name for name, flag in flags.items() if flag) or "over"
    returns = ", ".join(f"{agent} {value:g}" for agent, value in earned.items())
    success = f", success {info['success']}" if "success" in info else ""
    print(f"the episode is {ends} after {count} replies{success}; returns: {returns}")
    return 0


def _result(env: AnyEnv, agent: str) -> str:
    """Returns what the last reply earned, in a line."""
    reward, info = float(env.rewards[agent]), env.infos[agent]
    inner = env.unwrapped
    if not isinstance(inner, TextEnv):
        return f"{agent} earns {reward:g}"
    team, local, error = info["team_reward"], info["local_reward"], info["parse_error"]
    parts = f"{agent} earns {reward:g} = {inner.alpha:g} * team {team:g} + local {local:g}"
    return f"{parts}; success {info['success']}" + (f"; unparsable: {error}" if error else "")


def read_replies(stream: TextIO) -> Iterator[str]:
    """Reads replies: each ends with an empty line, or with the input.

    An empty line inside of a fenced block (```) is part of the reply, so that programs can be
    given. Two empty lines in a row give an empty reply.
    """
    reply, fenced = list[str](), False
    while True:
        # Not `for line in stream`: a terminal has more lines after Ctrl-D.
        line = stream.readline()
        text = line.rstrip("\r\n")
        if text or (line and fenced):
            reply.append(text)
            fenced ^= text.lstrip().startswith("```")
        elif line or reply:
            yield "\n".join(reply)
            reply, fenced = [], False
        else:
            return


if __name__ == "__main__":
    sys.exit(main())
