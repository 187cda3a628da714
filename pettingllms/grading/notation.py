r"""Reads an answer as people and programs write it: LaTeX or plain text.

`plain` removes what only changes its looks. What is left may have a name before it (`split_name`) or
a unit after it (`split_unit`), be a rational number (`read_number`), or a list or a matrix of other
answers (`split_list`). Everything is linear in the text, and numbers are bounded in size.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

MAX_CHARS = 2000
"""Longer texts are equal only if they are the same text."""
MAX_DIGITS = 400
FUNCTIONS = frozenset(
    """
    sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log exp sqrt max min gcd lcm mod and
    """.split()  # noqa: SIM905 - a list of words reads better as words
)

_SIMPLER = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|[bB]igg?|displaystyle|textstyle|limits)(?![a-zA-Z])\.?", ""),
        (r"\\!\s*", ""),
        (r"(?<=[0-9])\{\s*,\s*\}(?=[0-9])", ","),
        (r"(?<=[0-9])\\[,;: ](?=[0-9]{3}(?![0-9]))", ""),
        (r"(?<!\\)\\[,;: ]|\\q?quad(?![a-zA-Z])|~|\s+", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"(\\(?:frac|binom)) *([0-9]) *(?=[0-9{])", r"\1{\2}"),
        (r"(\\(?:frac|binom) *\{[^{}]*\}) *([0-9])", r"\1{\2}"),
        (r"\\(?:text(?:bf|it|rm|sf|normal)?|math(?:rm|bf|it|sf)|mbox|operatorname)\s*\{([^{}]*)\}", r" \1 "),
        (r"\\%|(?<=[0-9}]) ?(?:percent(?:age)?|pct)(?![a-zA-Z])", "%"),
        (r"\\\$|\$|[€£¥₹₩₽]|\\[()\[\]]", ""),
        (r"\\langle(?![a-zA-Z])", "("), (r"\\rangle(?![a-zA-Z])", ")"),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"), (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"(?<=[0-9]) ?degrees?(?![a-zA-Z])|\\degree(?![a-zA-Z])|\^ *\{ *\\circ *\}", r"^\\circ"),
    )
)  # fmt: skip
_SIGNS = str.maketrans(
    {
        "²": "^2", "³": "^3", "×": r"\times ", "÷": "/", "·": r"\cdot ", "⋅": r"\cdot ",
        "π": r"\pi ", "√": r"\sqrt ", "∞": r"\infty ", "°": r"^\circ", "−": "-", "–": "-",
    }
)  # fmt: skip
_SQUARE_METERS = re.compile(r"(?<=[0-9]) ?([kcdm]?m)(?=[²³])")
# `12 000`, where no other digits are beside them; not the `1 100/3` of a mixed number.
_THOUSANDS = re.compile(r"(?<![0-9.,])(?<![0-9.,] )[1-9][0-9]{0,2}(?: [0-9]{3})++(?! ?[0-9/])")
_NAME = re.compile(r"\s*([a-zA-Z](?:_(?:\w|\{\w*\}))?)\s*(?:=(?!=)|\\in(?![a-zA-Z]))\s*(?=\S)")
_CHOICE = re.compile(r"\(([a-zA-Z])\)")
_BLANKS = re.compile(r"(?<![0-9])\s+|\s+(?![0-9\s])")


def plain(text: str) -> str:
    r"""Removes what only changes the looks of `text`: dollars, spacing, `\text`, `\dfrac`."""
    if "\\\\" in text:
        # They end the row of a matrix; elsewhere they are one backslash, escaped once too often.
        row = r"\\cr " if r"\begin" in text else r"\\"
        text = re.sub(r"\\\\(?:\[[^\[\]]*\])?", row, text)
    text = _THOUSANDS.sub(lambda found: found[0].replace(" ", ""), text)
    text = _SQUARE_METERS.sub(r" \1", text).translate(_SIGNS)
    for pattern, replacement in _SIMPLER:
        text = pattern.sub(replacement, text)
    text = text.strip().rstrip(".").strip()
    choice = _CHOICE.fullmatch(text)
    return choice[1] if choice else text


def split_name(text: str) -> tuple[str, str]:
    r"""The name and the value of `x = 5` or `x \in (0, 1)`; an empty name for any other text."""
    found = _NAME.match(text)
    # Not `x = y = 5` or `x = 1, x = 2`.
    if found is None or "=" in text[found.end() :]:
        return "", text
    return found[1], text[found.end() :]


def squashed(text: str) -> str:
    """Folds `text` for comparison as text: one case, no blanks but those between digits."""
    return _BLANKS.sub("", text).casefold()


# ------------------------------------------------------------------------------- numbers


class Number(NamedTuple):
    """A rational number and how it was written."""

    value: Fraction
    decimal: bool = False
    percent: bool = False
    unit: str = ""


_DECIMAL = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]*+)?|\.[0-9]++)"
_POWER = r"\s*(?:\^|\*\*)\s*\{?\s*([-+]?[0-9]{1,4})\s*\}?"
_SCIENTIFIC = re.compile(
    rf"({_DECIMAL})(?:[eE]([-+]?[0-9]{{1,4}})|\s*(?:\\times|\\cdot|\*)\s*10{_POWER})?"
)
_RAISED = re.compile(rf"({_DECIMAL}){_POWER}")
_RATIO = re.compile(
    rf"(?:([0-9]++)\s*)?\\frac\s*\{{\s*([-+]?\s*{_DECIMAL})\s*\}}\s*\{{\s*([-+]?\s*{_DECIMAL})\s*\}}"
    rf"|(?:([0-9]++)\s+)?({_DECIMAL})\s*/\s*([-+]?\s*{_DECIMAL})"
)
_SIGN = re.compile(r"[-+\s]*+")


def read_number(text: str) -> Number | None:
    """Reads a rational number, perhaps with a percent sign and a unit; None for anything else."""
    if len(text) > MAX_CHARS:
        return None
    value, unit = split_unit(text)
    percent = value.endswith("%")
    value = value.removesuffix("%").strip()
    negative = False
    # Signs and brackets may take turns, as in -(-(5)).
    for _ in range(3):
        sign = _SIGN.match(value)
        assert sign is not None  # it matches the empty text
        negative ^= sign[0].count("-") % 2 == 1
        value = value[sign.end() :]
        if not (
            value.startswith("(") and value.endswith(")") and _encloses(value) and "," not in value
        ):
            break
        value = value[1:-1]
    found = _fraction(value)
    if found is None:
        return None
    found = (-found if negative else found) / (100 if percent else 1)
    return Number(found, "." in value or "e" in value.lower(), percent, unit)


def _fraction(text: str) -> Fraction | None:
    """Evaluates a decimal, a power, a fraction or a mixed number; None where it is too large."""
    try:
        if found := _SCIENTIFIC.fullmatch(text):
            return _decimal(found[1]) * _power(Fraction(10), int(found[2] or found[3] or 0))
        if found := _RAISED.fullmatch(text):
            return _power(_decimal(found[1]), int(found[2]))
        if found := _RATIO.fullmatch(text):
            whole, up, down = found.groups()[:3] if found[2] else found.groups()[3:]
            # In a mixed number both parts of the fraction are whole.
            if whole and not (up.isdecimal() and down.isdecimal()):
                return None
            return _decimal(whole or "0") + _decimal(up) / _decimal(down)
    except (OverflowError, ZeroDivisionError):
        pass
    return None


def _decimal(digits: str) -> Fraction:
    if len(digits) > MAX_DIGITS:
        raise OverflowError
    return Fraction(re.sub(r"[,\s]", "", digits))


def _power(base: Fraction, exponent: int) -> Fraction:
    # Tested before, because the result itself might not fit into any memory.
    # A digit has less than four bits.
    if abs(exponent) * max(base.numerator, base.denominator).bit_length() > 4 * MAX_DIGITS:
        raise OverflowError
    if base == 0 and exponent <= 0:
        raise ZeroDivisionError
    return base**exponent


_SHORT_UNITS = frozenset(
    """
    m cm mm km g kg mg s ms h hr hrs min l L ml mL dL ft in yd mi lb lbs oz N J W V A K C F Hz
    kHz kW mph kph km/h m/s rad deg
    """.split()  # noqa: SIM905
)
_NO_UNITS = FUNCTIONS | {"inf", "nan", "infinity", "true", "false", "for", "all", "error"}
_VALUE = re.compile(
    r"(?:[-+*/(){}0-9.,%\s]|\^(?!\\circ)|(?<=[0-9.])[eE](?=[-+]?[0-9])"
    r"|\\(?:frac|sqrt|pi|times|cdot)(?![a-zA-Z])|pi(?![a-zA-Z])|sqrt(?=\s*\())*+"
)
_UNIT = re.compile(r"[A-Za-z]+(?:[ /][A-Za-z]+){0,3}\s*(?:\^\s*\{?[23]\}?)?\.?")


def split_unit(text: str) -> tuple[str, str]:
    """Splits a number from the unit after it; an empty unit for any other text.

    A unit is only compared with another: it is degrees, a short sign, or words.
    """
    found = _VALUE.match(text)
    assert found is not None  # it matches the empty text
    value, rest = found[0].strip(), text[found.end() :].strip()
    if not rest or not value or not (value[-1] in "0123456789.)}%" or value.endswith("pi")):
        return text, ""
    if rest == r"^\circ":
        return value, "degree"
    glued = not found[0][-1].isspace() and value[-1] != "%"
    short = rest.rstrip(".^{}23 ")
    # A single letter right beside a number may be a variable: `5m` is a product as well.
    known = short in _SHORT_UNITS and not (glued and len(short) == 1)
    # A word is a unit, letters beside a number are a product: `5 apples` but not `5xyz`.
    words = re.findall("[a-z]+", rest.lower())
    spoken = not glued and all(len(word) > 2 for word in words) and not _NO_UNITS & {*words}
    if not _UNIT.fullmatch(rest) or not (known or spoken):
        return text, ""
    return value, re.sub(r"[ {}.]", "", rest) if known else rest.lower().rstrip(".").removesuffix(
        "s"
    )


# ------------------------------------------------------------------------------- lists and matrices


class Items(NamedTuple):
    """Several answers in one: in `()`, `[)`, `{}`, ..., without brackets, or entries of a matrix.

    Of a vector, `brackets` is `row` or `column`, of any other matrix its size, such as `2x3`.
    """

    brackets: str
    items: tuple[str, ...]


_MATRIX = re.compile(
    r"[(\[]?\s*\\begin\{([pbB]?matrix|smallmatrix|array)\}(?:\{[lcr| ]*\})?(.*)\\end\{\1\}\s*[)\]]?",
    re.DOTALL,
)
_AND = re.compile(r",?(?:\s+|(?<=\)))(?:and|or)(?:\s+|(?=\())")
_THREE_DIGITS = re.compile(r"[0-9]{3}(?![0-9])")


def split_list(text: str) -> Items | None:
    """Takes a plain text that is a list or a matrix apart; None for any other text."""
    inner, brackets = text.strip(), ""
    if matrix := _MATRIX.fullmatch(inner):
        return _matrix(matrix[2])
    if inner.startswith("\\{") and inner.endswith("\\}"):
        inner, brackets = inner[2:-2], "{}"
    elif inner[:1] in ("(", "[", "{") and inner[-1:] in (")", "]", "}") and _encloses(inner):
        inner, brackets = inner[1:-1], inner[0] + inner[-1]
    items = _items(inner)
    # Brackets around one value only group it.
    if items is None or (len(items) < 2 and brackets in ("", "()")):
        return None
    if any(not item for item in items) and len(items) > 1:
        return None
    return Items(brackets, items)


def _matrix(body: str) -> Items | None:
    rows = [row.split("&") for row in body.strip().removesuffix(r"\cr").split(r"\cr")]
    if "\\begin" in body or len({len(row) for row in rows}) > 1:
        return None
    height, width = len(rows), len(rows[0])
    kind = "row" if height == 1 else "column" if width == 1 else f"{height}x{width}"
    return Items(kind, tuple(cell.strip() for row in rows for cell in row))


def _encloses(text: str) -> bool:
    """Returns whether the first bracket of `text` is closed by its last one; intervals may mix them."""
    depth = 0
    for at, mark in enumerate(text):
        depth += (mark in "([{") - (mark in ")]}")
        if depth == 0:
            return at == len(text) - 1
    return False


def _items(text: str) -> tuple[str, ...] | None:
    r"""Cuts `text` outside of brackets at commas, `and` and `or`, or at semicolons; `\pm` is two."""
    # With two of them it would be open which values belong together.
    if text.count(r"\pm") == 1 and "," not in text:
        return (text.replace(r"\pm", "+").strip(), text.replace(r"\pm", "-").strip())
    text = _AND.sub(", ", text)
    # With a blank after some comma, the others may be in numbers: `1,234, 5`.
    spaced = ", " in text
    cuts: dict[str, list[int]] = {",": [], ";": []}
    depth = 0
    for at, mark in enumerate(text):
        depth += (mark in "([{") - (mark in ")]}")
        if depth < 0:
            return None
        in_number = spaced and mark == "," and _THREE_DIGITS.match(text, at + 1)
        if mark in cuts and depth == 0 and not in_number:
            cuts[mark].append(at)
    places = [-1, *(cuts[";"] or cuts[","]), len(text)]
    items = (text[begin + 1 : end].strip() for begin, end in pairwise(places))
    return tuple(items) if depth == 0 else None
