"""Measures the grader: against math-verify's own tests, our judged pairs, and golds in other styles.

    pip download --no-binary :all: --no-deps --dest SDIST math-verify     # unpack it; MIT license
    python -m benchmarks.grading --sdist SDIST/math_verify-0.9.0 --golds MATH-500.jsonl

The test files of math-verify are read, not copied: pairs of a gold and a prediction with the expected
verdict. Left out are predictions that are prose or several boxes (finding the answer in a text is
`boxed`'s task), and options that the grader does not have. `--golds` is a JSONL file with a field
`answer`, or with the answer in the last box of a solution; each gold is rewritten in other styles,
which must be equal to it, and into wrong answers, which must not.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

from benchmarks.options import Options
from pettingllms.grading import boxed, grade
from tests import judged_answers

RESULTS = Path(__file__).with_name("results")

Pair = tuple[str, str, bool, int]
"""Gold, answer, whether they are equal, decimal places."""

_WRAPPED = re.compile(
    r"\s*(?:\$\$(.*)\$\$|\$([^$]*)\$|\\\[(.*)\\\]|\\\(((?:(?!\\\().)*)\\\))\s*", re.DOTALL
)
_PROSE = re.compile(r"\s*[A-Z][a-z]+\W|.*\b(?:which is|it's)\b|.{200}", re.DOTALL)


def answer_of(text: str) -> str | None:
    """The answer alone, or None where finding it is part of the test."""
    if text.count("boxed{") > 1:
        return None
    inner = boxed(text)
    if inner is None and (wrapped := _WRAPPED.fullmatch(text)):
        inner = next(group for group in wrapped.groups() if group is not None)
    if inner is None and _PROSE.match(text):
        return None
    return text if inner is None else inner


def own_tests(sdist: Path) -> Iterator[Pair]:
    """The pairs of math-verify's test files that are about comparing."""
    # The files import each other as `tests.test_all`, which is our package here.
    package = types.ModuleType("tests")
    package.__path__ = [str(sdist / "tests")]
    ours, sys.modules["tests"] = sys.modules["tests"], package
    try:
        names = sorted(path.stem for path in (sdist / "tests").glob("test_*.py"))
        modules = [importlib.import_module(f"tests.{name}") for name in names]
    finally:
        sys.modules["tests"] = ours
    for module in modules:
        for function in vars(module).values():
            for mark in getattr(function, "pytestmark", ()):
                fields = mark.args[0]
                fields = (
                    [f.strip() for f in fields.split(",")] if isinstance(fields, str) else fields
                )
                for row in mark.args[1]:
                    values = dict(zip(fields, row, strict=True))
                    expected = values.get("expected", values.get("result"))
                    asked = values.get("strict"), values.get("allow_set_relation_comp")
                    if "gold" not in values or expected is None or False in asked:
                        continue
                    gold, answer = answer_of(values["gold"]), answer_of(values["pred"])
                    if gold is not None and answer is not None:
                        yield gold, answer, bool(expected), values.get("precision", 6)


def judged() -> Iterator[Pair]:
    """Our own pairs, judged by hand."""
    for name in ("EQUAL", "UNEQUAL", "SYMBOLIC_EQUAL", "SYMBOLIC_UNEQUAL"):
        for gold, answer in getattr(judged_answers, name):
            yield gold, answer, "UN" not in name, 6


def golds(path: Path, most: int) -> list[str]:
    """The first answers of a data set that differ and are short."""
    found = []
    for line in path.read_text().splitlines():
        answer = json.loads(line)["answer"]
        found.append(boxed(answer) or answer)
    return list(dict.fromkeys(gold for gold in found if len(gold) < 200))[:most]


STYLES: dict[str, Callable[[str], str]] = {
    "dollars": lambda gold: f"${gold}$",
    "brackets": lambda gold: rf"\[ {gold} \]",
    "period": lambda gold: f"{gold}.",
    "spaces": lambda gold: re.sub(r"(?<=[=+,&])|(?=[=+,&])", " ", gold),
    "thin spaces": lambda gold: re.sub(r"(?<=[=+,])(?=[^ ])", r"\\,", gold),
    "no spaces": lambda gold: re.sub(r"(?<![a-zA-Z0-9]) | (?![a-zA-Z0-9])", "", gold),
    "dfrac": lambda gold: re.sub(r"\\[td]?frac(?![a-z])", r"\\dfrac", gold),
    "slash": lambda gold: re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"(\1/\2)", gold),
    "left right": lambda gold: re.sub(r"(?<!\\left)\(([^()]*)\)", r"\\left(\1\\right)", gold),
    "bmatrix": lambda gold: gold.replace("pmatrix", "bmatrix"),
    "thousands": lambda gold: re.sub(r"(?<![\d.,{}])\d{4,}(?![\d.])", lambda n: f"{int(n[0]):,}", gold)
    if "," not in gold
    else gold,
    "decimal": lambda gold: _decimal(gold),
    "text": lambda gold: rf"\text{{{gold}}}" if re.fullmatch(r"[\w ]+", gold) else gold,
    "named": lambda gold: f"k = {gold}" if "=" not in gold and not re.search(r"[a-zA-Z]{3}|[<>]", gold) else gold,
    "braces": lambda gold: re.sub(r"\^(\d)", r"^{\1}", gold),
    "cdot": lambda gold: re.sub(r"(?<=\d)(?=\\sqrt|\\pi)", r" \\cdot ", gold),
    "unit": lambda gold: rf"{gold} \text{{ units}}" if re.fullmatch(r"-?\d+|\\frac\{\d+\}\{\d+\}", gold) else gold,
    "degrees": lambda gold: gold.replace(r"^\circ", "°").replace(r"^{\circ}", "°"),
    "percent": lambda gold: re.sub(r"\\?%", " percent", gold),
}  # fmt: skip


def _decimal(gold: str) -> str:
    if found := re.fullmatch(r"(-?)\\frac\{(\d+)\}\{(\d+)\}", gold):
        value = Fraction(int(found[2]), int(found[3]))
        return f"{found[1]}{float(value):.8f}"
    return f"{gold}.0" if re.fullmatch(r"-?\d+", gold) else gold


def styles(answers: list[str]) -> Iterator[Pair]:
    """Every gold in every style that changes it."""
    for gold in answers:
        for rewrite in STYLES.values():
            if (written := rewrite(gold)) != gold:
                yield gold, written, True, 6


def wrong(answers: list[str]) -> Iterator[Pair]:
    """Every gold against another gold, itself with another number, and hedges."""
    for at, gold in enumerate(answers):
        other = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), gold, count=1)
        for answer in (answers[at - 1], other, "1=0", "0=0", f"{gold}, {gold}1", f"-({gold})1"):
            if answer != gold and not (gold == "0" and answer == "0=0"):
                yield gold, answer, False, 6


def math_verify_alone(gold: str, answer: str, places: int) -> bool:
    """The verdict of math-verify's default configuration on bare LaTeX."""
    from math_verify import parse, verify

    left, right = (parse(f"${text}$", parsing_timeout=5) for text in (gold, answer))
    return bool(verify(left, right, float_rounding=places, timeout_seconds=5))


def compare(pairs: list[Pair]) -> dict[str, object]:
    """How often the grader and math-verify give the expected verdict, and how fast."""
    began = sum(os.times()[:4])
    ours = [grade(gold, answer, places=places) for gold, answer, _, places in pairs]
    seconds = sum(os.times()[:4]) - began
    theirs = [math_verify_alone(gold, answer, places) for gold, answer, _, places in pairs]
    expected = [pair[2] for pair in pairs]
    return {
        "pairs": len(pairs),
        "agree": sum(v.equal == e for v, e in zip(ours, expected, strict=True)),
        "agree_math_verify_alone": sum(v == e for v, e in zip(theirs, expected, strict=True)),
        "false_accepts": sum(v.equal and not e for v, e in zip(ours, expected, strict=True)),
        "false_accepts_math_verify_alone": sum(v and not e for v, e in zip(theirs, expected, strict=True)),
        "decided_exactly": sum(v.by == "exact" for v in ours),
        "undecided": sum(v.by == "undecided" for v in ours),
        "cpu_ms_per_pair_here": round(1000 * seconds / len(pairs), 2),
        "differences": [
            [gold[:120], answer[:120], equal]
            for (gold, answer, equal, _), verdict in zip(pairs, ours, strict=True)
            if verdict.equal != equal
        ],
    }  # fmt: skip


def main() -> None:
    """Runs all comparisons, prints the table and writes it."""
    parser = Options(__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--sdist", type=Path, required=True, help="math-verify's unpacked sdist")
    parser.add_argument("--golds", type=Path, required=True, help="JSONL with a field 'answer'")
    parser.add_argument("--most", type=int, default=500, help="different golds. Default: 500")
    options = parser.parse_args()
    answers = golds(options.golds, options.most)
    logging.disable()  # math-verify prints whole texts that take too long
    grade("x+1", "1+x")  # starts the process of SymPy
    tables = {
        "math-verify's own tests": list(own_tests(options.sdist)),
        "our judged pairs": list(judged()),
        "golds in other styles": list(styles(answers)),
        "wrong answers to golds": list(wrong(answers)),
    }
    results: dict[str, object] = {
        "sdist": options.sdist.name,
        "golds": options.golds.name,
        "different_golds": len(answers),
        "golds_sha256": hashlib.sha256(options.golds.read_bytes()).hexdigest(),
    }
    for name, pairs in tables.items():
        results[name] = found = compare(pairs)
        print({name: {key: value for key, value in found.items() if key != "differences"}})
    (RESULTS / "grading.json").write_text(json.dumps(results, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
