"""`pettingllms-sandbox`: build the image, check a back end, run a program, look at this machine."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pettingllms.cli.guard import dispatched
from pettingllms.cli.options import CommandParser
from pettingllms.errors import ConfigError
from pettingllms.sandbox import Case, Limits, RunResult, SandboxSettings, open_sandbox
from pettingllms.sandbox.types import BACKENDS

_MARKS = {"ok": "ok     ", "missing": "MISSING"}


_LIMITS = {
    "cpu_s": "seconds of CPU time, summed over threads",
    "wall_s": "seconds of wall time",
    "memory_mib": "MiB of memory in addition to the interpreter's",
    "output_kib": "KiB each of standard output, standard error, and a returned value",
    "processes": "threads; new processes are always refused",
    "tmp_mib": "MiB of files in /tmp",
    "open_files": "open files",
}
"""Help of the limits of `run`."""


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="pettingllms-sandbox",
        description="Runs untrusted programs, and checks and builds what the sandbox needs.",
        examples=(
            "pettingllms-sandbox doctor",
            "pettingllms-sandbox check --sandbox docker",
            "pettingllms-sandbox run program.py --stdin in.txt --cpu-s 1",
        ),
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="show what this machine supports, and what is missing",
        description="Shows what each back end needs, what is missing on this machine, and how to get "
        "it.\nThe exit code is 1 if no back end can be used.",
    )
    doctor.set_defaults(action=_doctor)
    build = commands.add_parser(
        "build",
        help="build the image for --sandbox docker",
        description="Builds the image of the docker back end with the engine at DOCKER_HOST, and prints "
        "its name.",
        examples=(
            "pettingllms-sandbox build",
            "pettingllms-sandbox build --packages numpy,sympy",
        ),
    )
    build.add_argument(
        "--base",
        metavar="IMAGE",
        help="base image with Python 3.11 or later. Default: the official slim image, by digest",
    )
    _add_packages(build)
    build.set_defaults(action=_build)
    check = commands.add_parser(
        "check",
        help="attack a back end and print what got through",
        description="Runs every attack of the self-check on a back end and prints what got through.\nThe "
        "exit code is 1 if anything did.",
        examples=(
            "pettingllms-sandbox check",
            "pettingllms-sandbox check --sandbox docker --runtime runsc",
        ),
    )
    check.add_argument("--all", action="store_true", help="also list attacks that were stopped")
    _add_backend(check)
    check.set_defaults(action=_check)
    _add_run(commands)
    return parser


def _add_run(commands: argparse._SubParsersAction[CommandParser]) -> None:
    run = commands.add_parser(
        "run",
        help="run one program",
        description="Runs one program and prints its output; status and cost go to standard error.\nThe "
        "exit code is 0 if the status is ok, else 1.",
        examples=(
            "pettingllms-sandbox run program.py --stdin in.txt",
            "pettingllms-sandbox run solution.py --function add --args '[1, 2]' --json",
            "pettingllms-sandbox run program.py --packages numpy --memory-mib 1024",
        ),
    )
    run.add_argument("file", help="a Python program; - reads it from standard input")
    run.add_argument("--stdin", metavar="FILE", help="file with the program's input. Default: none")
    run.add_argument(
        "--function", metavar="NAME", help="call this function, or method of Solution, instead"
    )
    run.add_argument(
        "--args", metavar="JSON", default="[]", help="its arguments as a JSON list. Default: []"
    )
    run.add_argument("--json", action="store_true", help="print the whole result as JSON")
    for field in dataclasses.fields(Limits):
        number_type = float if field.name.endswith("_s") else int
        run.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=number_type,
            metavar="X" if number_type is float else "N",
            help=f"limit: {_LIMITS[field.name]}. Default: {field.default}",
        )
    _add_backend(run)
    run.set_defaults(action=_run)


def _add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sandbox",
        default="embedded",
        metavar="BACKEND",
        help="embedded, docker or module:factory. Default: embedded",
    )
    parser.add_argument(
        "--runtime", metavar="NAME", help="docker: OCI runtime of the containers, such as runsc"
    )
    parser.add_argument(
        "--require-isolation",
        default="any",
        metavar="LEVEL",
        help="full: refuse to run without namespaces, Landlock, and seccomp. Default: any",
    )
    _add_packages(parser)


def _add_packages(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--packages",
        default="",
        metavar="NAMES",
        help="third-party packages for programs, as in numpy,sympy. Default: none",
    )


def _settings(options: argparse.Namespace, **limits: float | None) -> SandboxSettings:
    """One worker of the back end that the options name."""
    settings = SandboxSettings.of(options.sandbox)
    return SandboxSettings.of(
        settings,
        # A back end of a user's own takes no number of workers.
        workers=1 if settings.backend in BACKENDS else None,
        packages=options.packages or None,
        runtime=options.runtime,
        **limits,
    )


def _doctor(_: argparse.Namespace) -> int:
    from pettingllms.sandbox.isolation import diagnose

    usable = False
    for finding in diagnose():
        print(f"{_MARKS[finding.state]}  {finding.what:<11} {finding.detail}")
        if finding.cure:
            print(f"{'':<22}fix: {finding.cure}")
        # Findings on single layers do not decide: a back end may do without one.
        usable |= finding.what in ("embedded", "image") and finding.state == "ok"
    return 0 if usable else 1


def _build(options: argparse.Namespace) -> int:
    from pettingllms.sandbox import docker

    packages = tuple(name.strip() for name in options.packages.split(",") if name.strip())
    with contextlib.closing(docker.connect()) as client:
        print(docker.build_image(client, packages=packages, base=options.base))
    return 0


def _check(options: argparse.Namespace) -> int:
    from pettingllms.sandbox.selfcheck import self_check

    failed: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    settings = _settings(options)
    with open_sandbox(settings, require_isolation=options.require_isolation) as sandbox:
        for report in self_check(sandbox):
            if report.complaint:
                failed[report.group] += 1
                print(f"FAILED   {report.group}: {report.name}: {report.complaint}", flush=True)
            else:
                passed[report.group] += 1
                if options.all:
                    print(f"ok       {report.group}: {report.name}", flush=True)
        # By a run, because it is a result that says how its program was isolated.
        isolation = sandbox.run(["1"], [Case()])[0][0].isolation
    print(f"\nback end {settings.backend}, isolation {isolation}")
    for group in {**passed, **failed}:
        print(f"  {group:<12} {passed[group]:>4} as they should be, {failed[group]} not")
    return 1 if failed else 0


def _run(options: argparse.Namespace) -> int:
    if options.file == "-":
        program = _decoded(sys.stdin.buffer.read(), "standard input")
    else:
        program = _text(options.file)
    stdin = _text(options.stdin) if options.stdin else ""
    case = Case(stdin, options.function, options.args)
    limits = {field.name: getattr(options, field.name) for field in dataclasses.fields(Limits)}
    settings = _settings(options, **limits)
    with open_sandbox(settings, require_isolation=options.require_isolation) as sandbox:
        [[result]] = sandbox.run([program], [case], limits=settings.limits_over(Limits()))
    if options.json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        _show(result)
    return 0 if result.status == "ok" else 1


def _text(path: str) -> str:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    return _decoded(data, path)


def _decoded(data: bytes, name: str) -> str:
    # A case holds text, so that other bytes could not reach the program as they are.
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{name} is not UTF-8: byte 0x{data[error.start]:02x} in line {line}; convert it, as "
            "with iconv -f LATIN1 -t UTF-8"
        ) from None


def _show(result: RunResult) -> None:
    sys.stdout.write(result.stdout)
    # So that the streams come in this order where both go to a terminal.
    sys.stdout.flush()
    sys.stderr.write(result.stderr)
    if result.value is not None:
        print(result.value)
    print(
        f"[{result.status}, exit code {result.exit_code}, CPU {result.cpu_s:.3f} s, "
        f"wall {result.wall_s:.3f} s, {result.memory_mib:.0f} MiB, {result.isolation}]",
        file=sys.stderr,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 where all is well, 1 where something is not."""
    return dispatched(_parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
