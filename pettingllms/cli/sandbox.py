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

from pettingllms.cli.guard import guarded
from pettingllms.errors import ConfigError
from pettingllms.sandbox import BACKENDS, Case, Limits, RunResult, open_sandbox

_MARKS = {"ok": "ok     ", "missing": "MISSING", "unknown": "?      "}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pettingllms-sandbox", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="say what this machine can do, and what is missing")
    doctor.set_defaults(action=_doctor)
    build = commands.add_parser("build", help="build the image for --sandbox docker")
    build.add_argument(
        "--base",
        help="base image; `host` makes one from this machine's Python, for engines without a "
        "registry. Default: the official slim image, by digest",
    )
    _add_packages(build)
    build.set_defaults(action=_build)
    check = commands.add_parser("check", help="run the self-check and print what was found")
    check.add_argument("--all", action="store_true", help="also list what is as it should be")
    _add_backend(check)
    check.set_defaults(action=_check)
    run = commands.add_parser("run", help="run one program")
    run.add_argument("file", help="a Python program; - reads it from standard input")
    run.add_argument("--stdin", help="file with the program's input. Default: none")
    run.add_argument("--function", help="call this function, or method of Solution, instead")
    run.add_argument("--args", default="[]", help="its arguments as a JSON list")
    run.add_argument("--json", action="store_true", help="print the whole result as JSON")
    for field in dataclasses.fields(Limits):
        kind = float if field.name.endswith("_s") else int
        flag = f"--{field.name.replace('_', '-')}"
        run.add_argument(flag, type=kind, default=field.default, help=f"default {field.default}")
    _add_backend(run)
    _add_packages(run)
    run.set_defaults(action=_run)
    return parser


def _add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sandbox", choices=BACKENDS, default=BACKENDS[0], help="back end")


def _add_packages(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--packages", default="", help="third-party packages for programs, as in numpy,sympy"
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _doctor(_: argparse.Namespace) -> int:
    from pettingllms.sandbox.diagnosis import diagnose

    usable = False
    for finding in diagnose():
        print(f"{_MARKS[finding.state]}  {finding.what:<11} {finding.detail}")
        if finding.cure:
            print(f"{'':<22}mend it: {finding.cure}")
        usable |= finding.what in ("embedded", "image") and finding.state == "ok"
    return 0 if usable else 1


def _build(options: argparse.Namespace) -> int:
    from pettingllms.sandbox import containers, image

    packages = _names(options.packages)
    with contextlib.closing(containers.connect()) as client:
        base = options.base
        if base == "host":
            base = image.host_base(client, packages=packages)
        print(image.build_image(client, packages=packages, base=base))
    return 0


def _check(options: argparse.Namespace) -> int:
    from pettingllms.sandbox.selfcheck import self_check

    failed: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    with open_sandbox(options.sandbox, workers=1) as sandbox:
        for report in self_check(sandbox):
            if report.complaint:
                failed[report.group] += 1
                print(f"FAILED   {report.group}: {report.name}: {report.complaint}", flush=True)
            else:
                passed[report.group] += 1
                if options.all:
                    print(f"ok       {report.group}: {report.name}", flush=True)
        isolation = sandbox.run(["1"], [Case()])[0][0].isolation
    print(f"\nback end {options.sandbox}, isolation {isolation}")
    for group in {**passed, **failed}:
        print(f"  {group:<12} {passed[group]:>4} as they should be, {failed[group]} not")
    return 1 if failed else 0


def _run(options: argparse.Namespace) -> int:
    program = sys.stdin.read() if options.file == "-" else _text(options.file)
    stdin = _text(options.stdin) if options.stdin else ""
    case = Case(stdin, options.function, options.args)
    limits = Limits(**{f.name: getattr(options, f.name) for f in dataclasses.fields(Limits)})
    with open_sandbox(options.sandbox, 1, packages=_names(options.packages)) as sandbox:
        [[result]] = sandbox.run([program], [case], limits=limits)
    if options.json:
        print(json.dumps(dataclasses.asdict(result), indent=2))
    else:
        _show(result)
    return 0 if result.status == "ok" else 1


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="surrogateescape")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def _show(result: RunResult) -> None:
    sys.stdout.write(result.stdout)
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
    """The command; returns its exit code: 0 where all is well, 1 where something is not."""
    options = _parser().parse_args(arguments)

    def act() -> int:
        code: int = options.action(options)
        return code

    return guarded(act)


if __name__ == "__main__":
    sys.exit(main())
