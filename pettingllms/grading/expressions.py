r"""Reads one expression in the notation of LaTeX, Python, SymPy or Unicode, and computes it as it reads.

A letter is a variable, letters side by side are a product, and a subscript is part of its letter. Before brackets
without an operator (`a(n)`) a letter is a function, as `f` and `g` always are. `log(x)`, as programs print it, is
`\ln x`; `\log x` has an unknown base. Any word that is not known is prose, and two numbers side by side are not one.
By default only rational numbers are read.
"""

from __future__ import annotations

import itertools
import re
from fractions import Fraction
from numbers import Rational
from operator import add, mul, sub, truediv
from typing import Any

MAX_BITS = 8000  # of a power
_TRIG = "sin cos tan cot sec csc sinh cosh tanh coth sech csch"
_FUNCTIONS = "exp log sqrt cbrt root floor ceiling sign re im conjugate factorial binomial gcd lcm Min Max Abs Rational Log"
OPERATORS = ("Sum", "Product", "Integral", "Antiderivative", "Limit")
FUNCTIONS = {name: name for name in re.findall(r"\w+", f"{_TRIG} {_FUNCTIONS} {OPERATORS}")}
FUNCTIONS |= {arc + n: f"a{n}" for n in re.findall(r"\w+", _TRIG) for arc in ("arc", "a")}
FUNCTIONS |= {"ln": "log", "abs": "Abs", "min": "Min", "max": "Max", "Fraction": "Rational", "ceil": "ceiling", "binom": "binomial", "frac": "Rational"}  # fmt: skip
CONSTANTS = {"pi": "pi", "infty": "oo", "oo": "oo", "infinity": "oo", "inf": "oo", "degree": "degree", "e": "E", "i": "I"}  # fmt: skip
CONSTANTS |= {"R": "Reals", "Z": "Integers", "N": "Naturals", "Q": "Rationals", "C": "Complexes", "Reals": "Reals"}  # fmt: skip
_GREEK = "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|upsilon|phi|chi|psi|omega|ell|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega|varepsilon|vartheta|varphi"
_COUNTS = "0 zero 1 one 2 two 3 three 4 four 5 five 6 six 7 seven 8 eight 9 nine 10 ten 11 eleven 12 twelve 13 thirteen 14 fourteen 15 fifteen 16 sixteen 17 seventeen 18 eighteen 19 nineteen 20 twenty 30 thirty 40 forty 50 fifty 60 sixty 70 seventy 80 eighty 90 ninety"
COUNTS = {word: int(n) for n, word in re.findall(r"(\S+) (\w+)", _COUNTS)}
_FACTORS = "12 dozen 20 score 100 hundred 144 gross 1000 thousand 100000 lakh 1000000 million 10000000 crore 1000000000 billion 1000000000000 trillion 1/2 half 1/2 halve 1/3 third 1/4 quarter 1/5 fifth 1/8 eighth 1/9 ninth 1/12 twelfth 1/20 twentieth 1/100 percent"
FACTORS = {word: n for n, word in re.findall(r"(\S+) (\w+)", _FACTORS)}
FACTORS |= {f"{word}th": f"1/{n}" for word, n in {**COUNTS, **FACTORS}.items()}
FACTORS |= {f"{word}s": n for word, n in FACTORS.items()}
_NAMES = "|".join([_GREEK, *(name for name in CONSTANTS if len(name) > 1)])
WORDS = {*FUNCTIONS, *COUNTS, *FACTORS, *_NAMES.split("|")}


def regex(pattern: str) -> re.Pattern[str]:
    r"""Compiles a pattern of ASCII classes in which `\>` is the end of a name."""
    return re.compile(pattern.replace(r"\>", "(?![a-zA-Z])"), re.ASCII)


# An exponent with a sign has two digits, as programs print it: `2e-1` is an expression.
_NUMBER = r"(?:1|\d*\.\d+)[eE]-\d(?!\d)|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE](?:[-+]\d{2,4}|\d{1,4})(?![0-9a-zA-Z.]))?"
_LETTER = rf"(?:\\(?:{_NAMES}|[eiRZNQC])\>|(?<![a-zA-Z])(?:{_NAMES})\>|[a-zA-Z]\d*)(?: ?_ ?(?:\{{[^{{}}]*\}}|[a-zA-Z]|\d+))?"
_TOKEN = regex(
    rf" *(?:(?P<number>{_NUMBER})|\\?(?P<call>{'|'.join(FUNCTIONS)})\>"
    rf"|(?:\\|(?<![a-zA-Z]))(?P<word>{'|'.join(FACTORS)})\>|(?P<letter>{_LETTER})|(?P<sign>\*\*|\\[a-zA-Z]+|[^ ]))"
)
_PROGRAM = regex(r"(?<![a-zA-Z0-9_])[IE](?![a-zA-Z0-9_])|(?<=\d)j(?![a-zA-Z0-9])")
_FUSED = regex(rf"[a-zA-Z]{{0,2}}(?:{'|'.join(FUNCTIONS)})")
_WORDS = regex("[a-zA-Z]+(?: +[a-zA-Z]+)+")
_DATE = regex(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}/\d{1,2}/\d{4}")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class Unreadable(ValueError):
    """The text is no expression, or none of this kind."""


def _refuse(*_: Any) -> Any:
    raise Unreadable


def _raised(base: Any, by: Any) -> Any:
    """Refuses towers of powers before they are computed, and roots of exact numbers."""
    if all(isinstance(number, Rational) for number in (base, by)):
        bits = max(abs(base.numerator), base.denominator).bit_length()
        inexact = isinstance(base, Fraction) and by.denominator > 1
        if inexact or base == 0 >= by or (bits > 1 and abs(by) * bits > MAX_BITS):
            raise Unreadable
    return base**by


# How tightly an operator binds, and what it does.
_BINARY = {"+": (1, add), "-": (1, sub), "*": (2, mul), "/": (2, truediv), "^": (3, _raised)}
_BINARY |= {"**": _BINARY["^"]}


class Expression:
    """Computes a text with `number`; `call` makes functions, constants and symbols. Raises Unreadable."""

    def __init__(self, text: str, number: Any = Fraction, call: Any = _refuse) -> None:
        words = {*re.findall(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}", text)} - WORDS
        unknown = [word for word in words if not _FUSED.fullmatch(word)]
        prose = any(len(word) > 4 for word in unknown) or (unknown and _WORDS.fullmatch(text))
        if prose or _DATE.fullmatch(text) or re.search(r"[0-9.]{401}", text):
            raise Unreadable
        if "\\" not in text and not re.search("(?<![a-zA-Z])i(?![a-zA-Z])", text):
            text = _PROGRAM.sub(lambda name: r"\e " if name[0] == "E" else r"\i ", text)
        tokens = [(token.lastgroup or "", token) for token in _TOKEN.finditer(text)]
        self._tokens = [*((group, token[group]) for group, token in tokens), ("", "")]
        self._number, self._call, self._at = number, call, 0
        self.decimal = any(group == "number" and {*".eE"} & {*text} for group, text in self._tokens)
        self.value = self._value()
        if self._token[0]:
            raise Unreadable

    @property
    def _token(self) -> tuple[str, str]:
        return self._tokens[self._at]

    def _take(self, *signs: str) -> str:
        text = self._token[1]
        self._at += text in signs
        return text if text in signs else ""

    def _value(self, above: int = 0) -> Any:
        """A value and the operators after it that bind tighter than `above`; side by side is a product."""
        if sign := self._take("+", "-"):
            value = -self._value(2) if sign == "-" else self._value(2)
        else:
            value = self._primary()
            value = self._call("factorial", value) if self._take("!") else value
        while True:
            group, text = self._token
            beside = group in ("letter", "call") or text in _CLOSING or text in FACTORS
            level, combine = (2, mul) if beside else _BINARY.get(text, (0, mul))
            if level <= above:
                return value
            self._at += not beside
            value = combine(value, self._value(min(level, 2)))  # a tower is read from the top

    def _primary(self) -> Any:
        group, text = self._token
        if group in ("sign", ""):
            (value,) = self._bracket()
            return value
        self._at += 1
        if group == "letter":
            return self._name(text)
        if group == "call":
            return self._function(FUNCTIONS[text])
        return self._number(FACTORS.get(text, text))

    def _bracket(self) -> list[Any]:
        closing = _CLOSING.get(self._take(*_CLOSING), "none")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        if not self._take(closing):
            raise Unreadable
        return values

    def _name(self, text: str) -> Any:
        """A constant, or a symbol with its subscript."""
        name = text.lstrip("\\").rstrip("0123456789").partition("_")[0].strip()
        index = re.sub(r"[^\w+-]|_", "", text.removeprefix("\\").removeprefix(name))
        if name in CONSTANTS and not index and (len(name) > 1 or name in "ei" or text[0] == "\\"):
            return self._call(CONSTANTS[name])
        symbol = name.removeprefix("var") + (index and f"_{index}")
        argument = itertools.takewhile(lambda token: token[1] != ")", self._tokens[self._at + 1 :])
        simple = all(group in ("number", "letter") or text == "," for group, text in argument)
        if self._token[1] == "(" and (simple or name in ("f", "g")):
            return self._call("Function", symbol, *self._bracket())
        return self._call("Symbol", symbol)

    def _function(self, name: str) -> Any:
        r"""A function: its arguments in brackets, or a product as in `\sin 2x`."""
        if name in OPERATORS:  # its variable and bounds, then its body
            bounds = self._bracket()
            return self._call(name, self._value(1), *bounds)
        after = [self._primary()] if self._take("_") else []
        if name == "sqrt" and self._token[1] == "[":
            name, after = "root", self._bracket()
        power = self._value(2) if self._take("^", "**") else None
        opening = self._token[1]
        if opening in ("(", "{"):
            values = self._bracket() + after
            if opening == "{" and name in ("Rational", "binomial"):
                values.append(self._primary())
        elif name in ("sqrt", "root"):
            values = [self._primary(), *after]
        else:
            values = [self._value(2), *after]
            while (token := self._token)[0] in ("letter", "word") or token[1] == "{":
                values[0] = values[0] * self._value(2)
        if name == "Rational" and len(values) == 2:
            return values[0] / values[1]
        value = self._call(name, *values)
        return value if power is None else _raised(value, power)
