r"""Reads an answer as people and programs write it: takes its looks off (`plain`) and takes it apart.

It may be a chain of relations, a value with a unit, a rational number, or a list or a matrix of other answers;
the rest is an expression. Everything is linear in the text, and numbers are bounded in size.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from pettingllms.grading.expressions import COUNTS, FACTORS, WORDS, Expression, Unreadable, regex

MAX_CHARS = 2000  # longer texts are equal only if they are the same text
_WRAPPED = regex(r"(?s)\*+([^*]*)\*+|\*\*(.*)\*\*|__(.*)__|'([^']*)'|\"([^\"]*)\"|`+([^`]*)`+|\$\$?([^$]*)\$\$?|\\[(\[](.*)\\[)\]]|(?:=|≈|\\approx\>)+(.*)|\{([^{},:]+)\}|<b>(.*)</b>|[“‘]([^”’]*)[”’]|(.*[^.\\])(?:\.|\\+)")  # fmt: skip
# What is read, and after it other ways to write it.
_ALIASES = r"""* × · ⋅ ∗ \cdot \times, / ÷ ⁄ ∕ \div, - − – ‑, ' ’, ( ⟨ \langle, ) ⟩ ⌋ ⌉ \rangle \rfloor \rceil, \{ \lbrace, \} \rbrace, | \vert \lvert \rvert \mid
<= =< ≤ ⩽ \le \leq \leqslant, >= => ≥ ⩾ \ge \geq \geqslant, < \lt, > \gt, = := == ∈ \in, ≈ \approx, != ≠ \ne \neq \not=, -> → \to \rightarrow
\{\} ∅ \emptyset \varnothing, floor( ⌊ \lfloor, ceil( ⌈ \lceil, \frac \dfrac \tfrac \cfrac, \binom \dbinom \tbinom, \log_{10} \lg, \Sum \sum, \Product \prod
\sqrt √, \sqrt[3] ∛, \sqrt[4] ∜, \pm ± +/-, \mp ∓, \infty ∞, \degree °, \cup ∪ \bigcup, \cap ∩ \bigcap, \lor ∨ \vee, \land ∧ \wedge, \setminus ∖, \R ℝ"""
# Names, and `x! = 5`, which is no `!=`, need blanks around them.
_SAME = {alias: f" {name} " if re.search("[a-z!]", name) else name for name, *others in map(str.split, re.split(", |\n", _ALIASES)) for alias in others}  # fmt: skip
_SAME |= dict.fromkeys("\u200b\ufeff", "") | dict.fromkeys("\u00a0\u2009\u202f", "~")
_BASES = dict(re.findall(r"(\w+) (\d+)", "binary 2 0b 2 octal 8 0o 8 hex 16 hexadecimal 16 0x 16"))
_ONES, _TENS = "|".join([*COUNTS][1:10]), "|".join([*COUNTS][20:])
_BOUND = r"(\{(?:[^{}]|\{[^{}]*\})*\}|\\[a-z]+|\w)"


def _spelled(signs: re.Match[str]) -> str:
    """Raised and lowered digits, and a fraction or a Greek letter by its Unicode name."""
    folded = unicodedata.normalize("NFKC", signs[0])
    if signs.lastindex:
        return f"{' ^_'[signs.lastindex]}{{{folded}}}"
    up, bar, down = folded.partition("⁄")
    if bar:
        return rf"\frac{{{up}}}{{{down}}}"
    letter = unicodedata.name(signs[0]).split()[-1].replace("LAMD", "LAMBD").lower()
    return f"\\{letter.capitalize() if signs[0].isupper() else letter} "


_SIMPLER = [(regex(pattern), replacement) for pattern, replacement in (
    (r"(?<=\d) ?([kcdm]?m)(?=[²³])", r" \1"), ("([⁰¹²³⁴-⁻ⁿ]+)|([₀-₉]+)|[¼-¾⅐-⅞Α-ΡΣ-Ωα-ω]", _spelled), (r"\\not *=|\\[a-z]+|[:=]=|=[<>]|\+ ?/ ?-|[^ -}]", lambda found: _SAME.get(found[0].replace(" ", ""), found[0])),
    # Blanks or points between groups of three digits; not the `1 100/3` of a mixed number.
    (r"(?<![\d.,])(?<![\d.,]\s)[1-9]\d{0,2}(?:[ ~]\d{3})++(?! ?[\d/])(?:,\d+$)?|(?<![\d.,])[1-9]\d{0,2}(?:\.\d{3}){2,}(?![\d.])(?:,\d+)?|^-?[1-9]\d{0,2}\.\d{3},\d+$", lambda found: re.sub(r"[\s~.]", "", found[0]).replace(",", ".")),
    (r"\\(?:left|right|[bB]igg?[lrm]?|(?:display|text|script)style|[lL]arge|LARGE|small|limits|boxed|fbox)\>\.?|\\!\s*|\\(?:text)?color\{\w+\}|\\(?:begin|end)\{(?:equation|aligned|align|gather)\*?\}|\\[()\[\]]", ""), (r"(?<=\d)\{\s*,\s*\}(?=\d)", ","),
    (r"(?<=\d)(?:\\[,;: ]|[_'])(?=\d{3}(?!\d))", ""), (r"(?<!\\)\\[,;: ]|\\q?quad\>|(?<!^)~|\s+", " "),
    (r"(\\(?:frac|binom)) *(\d) *(?=[\d{\\])", r"\1{\2}"), (r"(\\(?:frac|binom) *\{[^{}]*\}) *(\d)", r"\1{\2}"), (r"\\mathbb\s*\{?\s*([CNQRZ])\s*\}?", r"\\\1 "),
    (r"\\(?:(?:text|math)(?:bf|it|rm|sf|normal)?|mbox|bbox|underline|ensuremath|operatorname)\s*\{([^{}]*)\}", r" \1 "), (r"\\?[%％]|(?<=[\d}]) ?(?:per ?cent(?:age)?|pct)\>", r"\\percent "),
    (r"\|((?! \()[^|]+)\|", r" Abs(\1)"), (r"(?<=\d) ?degrees?\>|\^ *\{? *\\circ\> *\}?", r"\\degree "),
    # Of `\log` without a base, and of operators with bounds, the body follows. A binomial may be `n \choose k`.
    (r"\\log(?! ?_| ?\{ ?\()|\blog(?= [a-zA-Z0-9\\])", r"\\Log "), (r"\b([fg]) ?\^ ?\{? ?(-?\d) ?\}?(?= ?\()", r"\1_{\2}"), (r"(?:\{|(?<![^{}]))([^{}]*)\\choose\>([^{}]*)\}?", r"\\binom{\1}{\2}"),
    (rf"\\(Sum|Product) ?_ ?\{{ ?(\w+) ?= ?([^{{}}]*)\}} ?\^ ?{_BOUND}", r"\\\1(\2, \3, \4)"),
    (rf"\\int(?: ?_ ?{_BOUND} ?\^ ?{_BOUND})?\>((?:(?!\\int).)*?) ?d ?([a-z])\>", lambda found: rf"\Integral({found[4]}, {found[1]}, {found[2]}) ({found[3]})" if found[1] else rf"\Antiderivative({found[4]}) ({found[3]})"),
    (r"\\lim ?_ ?\{ ?(\w) ?-> ?([^{}^]*)(?:\^ ?\{? ?([+-]) ?\}?)? ?\}", lambda found: rf"\Limit({found[1]}, {found[2]}{f', {found[3]}1' if found[3] else ''})"),
    (r"^(Sum|Product|Integral)\((.+), \((\w+), ([^()]+), ([^()]+)\)\)$", r"\\\1(\3, \4, \5) (\2)"), (r"^Limit\((.+), (\w+), ([^(),]+)\)$", r"\\Limit(\2, \3, 1) (\1)"),
    (r"^.*(?:Sum|Product)\(i,.*$", lambda found: re.sub(r"(?<![\\a-zA-Z])i(?![a-zA-Z])", "i_1", found[0])),
    (r"\\?\blog(10|2)(?=\()", r"\\log_{\1}"), (r"\\((?:sin|cos|tan|cot|sec|csc)h?) ?\^ ?\{? ?-1 ?\}?", r"\\arc\1 "),
    (r"(?<=[\d)]) (squared|cubed|factorial)\b", lambda found: {"s": "^2", "c": "^3", "f": "!"}[found[1][0]]), (rf"(?<=[a-z])-(?=(?:{'|'.join(FACTORS)})\b)", " "),
    # Numbers in words: `three hundred and five thousand` is `(3*100+5) thousand`.
    (rf"(?i)(?:(?<![a-z] )|(?<=and )|(?<=hundred )|(?<=llion )|(?<=base )|(?<=minus )|(?<=negative ))\b(?:({_TENS})[ -](?=(?:{_ONES})\b))?({'|'.join(COUNTS)})\>", lambda found: str(sum(COUNTS[word.lower()] for word in found.groups("zero")))),
    (r"(\d+) hundred(?: and)? (\d{1,2})(?!\d)", r"(\1*100+\2)"), (r"(?<= )(thousand|million|billion)(?: and)? (?=[\d(])", r"\1+"),
    (r"^\\?\{ *\w+ *(?:= *\\R *)?[:|]([^{}]*[<>=][^{}]*?)\\?\}$", r"\1"),
    # What SymPy and NumPy print; a matrix is a list of rows.
    (r"[(\[]?\s*\\begin\{([pbB]?matrix|smallmatrix|array)\}(?:\{[lcr| ]*\})?((?:(?!\\begin).)*?)(?:\\cr)?\s*\\end\{\1\}\s*[)\]]?", lambda found: f"[[{found[2].replace('&', ',')}]]".replace(r"\cr", "],[")),
    (r"\b(?:math|np|numpy|sp|sympy|torch)\.(?=[a-zA-Z])", ""), (r"^(?:(?:Immutable)?(?:Dense)?Matrix|array|tensor|Tuple(?=\((.*)\)$)|frozenset|(FiniteSet|set))\((.*)\)$", lambda found: f"({found[1]})" if found[1] else rf"\{{{found[3]}\}}" if found[2] else found[3]), (r"\b(?:Integer|Float|Decimal|mpf|float\d+|int\d+)\('?([^()']*)'?\)", r"\1"), (r"(?<=[\d.\]])\s+(?=[-\d.\[][-\d.e+\[\]\s]*\]$)", ","), (r"^(?:EmptySet|\{\})$", r"\\{\\}"),
    (r"Interval(?:\.(open|Lopen|Ropen))?\(((?:[^()]|\([^()]*\))*)\)", lambda found: f"{'(' if found[1] in ('open', 'Lopen') else '['}{found[2]}{')' if found[1] in ('open', 'Ropen') else ']'}"),
    (r"^(?:Eq|(Ne))\(((?:[^(),]|\([^()]*\))*), (.*)\)$", lambda found: f"{found[2]} {'!' if found[1] else ''}= {found[3]}"), (r"(?<=[{ ])([a-zA-Z]\w*) ?: (?=.*\}\]?$)", r"\1="), (r"^\](?=.*[,;])", "("), (r"^([\[(].*[,;].*)\[$", r"\1)"), (r"\\frac *\{ *d([a-zA-Z]?) *\} *\{ *d([a-zA-Z]) *\}|(?<![\w\\])d([a-zA-Z]?) ?/ ?d([a-zA-Z])(?!\w)", r"d_{\1\3\2\4}"), (r"\b(?:minus|negative) (?=\d)", "-"),
    (r"(?<![\d.])(\d*)\.(\d*)(?:\\(?:overline|bar|dot) *\{? *(\d+) *\}?|\((\d+)\)|(\d)\5\5+(?:\.{3}|…|\\[lc]?dots)$)", lambda found: f"((0{found[1]}{found[2]}+{found[found.lastindex]}/{'9' * len(found[found.lastindex])})/10^{len(found[2])})"),
    # A mixed number is a sum, the base is a part of the number, and of a time am and pm are.
    (r"(?<![\w.^)\]}])(\d+) *\\frac *\{ *(\d+) *\} *\{ *(\d+) *\}", r"(\1+\2/\3)"), (r"(?<![\w.^)\]}/])(?<![\w.)\]}/] )(\d+) (\d+) ?/ ?(\d+)(?![\d.])", r"(\1+\2/\3)"),
    (r"(?i)^(0[xob])([\da-f]+)$", r"\2_\1"),
    (r"^\(?(\d[\dA-Fa-f]*|[A-Fa-f]{2,}(?=.*(?:16|hex|0x))|[A-F]{2,})\)?(?: ?_[ {(]*(?:base )?| \(?(?:in )?(?:base |(?=binary|octal|hex)))(\w+)[ })]*$", lambda found: f"{found[1].upper()}_{_BASES.get(found[2].lower(), found[2])}"),
    (r"_10$", ""), (r"(?i)\b(\d{1,2})(:\d{2})? ?([ap])\.? ?m\b\.?", lambda found: f"{int(found[1])}{found[2] or ':00'}{found[3].lower()}m"), (r"^(0[1-9]|1[3-9]|2[0-3])(:[0-5]\d)$", lambda found: f"{int(found[1]) % 12}{found[2]}{'pm' if found[1] > '12' else ''}"),
)]  # fmt: skip
# Also 1,50,000, as in India, where a group begins with 0: 12,34,567 may be three numbers.
_GROUPED = regex(r"(?<![\d.,])(?:\d{1,3}(?:,\d{3})++|(?=[0-9,]*,0)\d{1,2}(?:,\d{2})+,\d{3})(?!,?\d)")  # fmt: skip
_BLANKS = regex(r"(?<!\d)\s+|\s+(?![0-9\s])")


# One match per box or brace; an escaped brace opens and closes nothing.
_BOX = regex(r"\\(?:boxed|fbox)[ \t\n]*+\{|\\[^a-zA-Z]|[{}]")


def boxed(text: str) -> str | None:
    r"""Returns the content of the last `\boxed{...}` or `\fbox{...}` whose braces close, the outermost; or None."""
    content: tuple[int, int] | None = None
    opened: list[int | None] = []  # where the content of each open box begins; None: a plain brace
    for token in _BOX.finditer(text):
        mark = token[0]
        if mark[-1] == "{" and mark != r"\{":
            opened.append(token.end() if len(mark) > 1 else None)
        elif mark == "}" and opened and (start := opened.pop()) is not None:
            # A box that closes later and began earlier replaces those within it.
            content = (start, token.start())
    return text[content[0] : content[1]] if content else None


@functools.lru_cache(maxsize=4096)
def plain(text: str) -> str:
    r"""Removes what only changes the looks of `text`: dollars, spacing, `\text`, `\dfrac`, bold face."""
    for _ in range(6):
        text = text.strip()
        inside, opening = boxed(text), _BOX.match(text)
        if inside is not None and opening and text == f"{opening[0]}{inside}}}":
            text = inside
        elif (wrapped := _WRAPPED.fullmatch(text)) is not None:
            text = wrapped[wrapped.lastindex or 0]
        else:
            break
    # They end the row of a matrix; elsewhere they are one backslash, escaped once too often.
    text = re.sub(r"\\\\(?:\[[^\[\]]*\])?", r"\\cr " if r"\begin" in text else r"\\", text)
    if text.count("$") % 2 == text.count("\\$") % 2:
        text = re.sub(r"(?<!\\)\$", "", text)
    for pattern, replacement in _SIMPLER:
        text = pattern.sub(replacement, text)
    if ", " in text or not re.search(r"[(\[]|\\\{", text):
        text = _GROUPED.sub(lambda match: match[0].replace(",", ""), text)
    return re.sub(r"^\(?([a-zA-Z])\)$", r"\1", text.strip().removesuffix(".").strip())


def squashed(text: str) -> str:
    """Folds `text` for comparison as text: no blanks but those between digits, and words in one case."""
    text = _BLANKS.sub("", text)
    return text if re.search(r"[0-9+*/^=\\]|[a-zA-Z]\(", text) else text.casefold()


def cut(text: str, pattern: str) -> tuple[list[str], list[str]]:
    """Splits `text` outside of brackets, which have to close: the pieces, and the marks between them."""
    pieces, marks, begin, depth = [], [], 0, 0
    for mark in regex(rf"([(\[{{])|([)\]}}])|{pattern}").finditer(text):
        depth += bool(mark[1]) - bool(mark[2])
        if depth == 0 and not mark[2]:
            pieces.append(text[begin : mark.start()].strip())
            marks.append(mark[0].strip(" ,"))
            begin = mark.end()
        elif depth < 0:
            break
    if depth:
        raise Unreadable
    return [*pieces, text[begin:].strip()], marks


def encloses(text: str) -> bool:
    """Returns whether the first bracket of `text` is closed by its last one; intervals may mix them."""
    depths = [*itertools.accumulate((mark in "([{") - (mark in ")]}") for mark in text)]
    return depths[-1:] == [0] and 0 not in depths[:-1]


def _or_none(read: Any) -> Any:
    """Makes None of what cannot be read, and remembers what was."""

    @functools.lru_cache(maxsize=4096)
    def reads(text: str) -> Any:
        with contextlib.suppress(ArithmeticError, ValueError, RecursionError):
            return read(text) if len(text) <= MAX_CHARS else None

    return reads


read_number = _or_none(Expression)
# Dimension and power, factor, and names of units.
_TABLE = """
m 1: 1 m meter metre, 1000 km kilometer kilometre, 1/100 cm centimeter centimetre, 1/1000 mm millimeter, 127/5000 in inch inches, 381/1250 ft foot feet, 1143/1250 yd yard, 201168/125 mi mile
m 3: 1/1000 L l liter litre, 1/1000000 mL ml cc milliliter, 1/10000 dL
s 1: 1 s sec second, 1/1000 ms millisecond, 60 min minute, 3600 h hr hour, 86400 day, 604800 week
g 1: 1 g gram, 1000 kg kilogram, 1/1000 mg milligram, 1000000 tonne, 45359237/100000 lb pound, 45359237/1600000 oz ounce
month 1: 1 month, 12 yr year; usd 1: 1 $ dollar usd, 1/100 ¢ cent; eur 1: 1 € euro; deg 1: 1 degree deg, 180/pi rad radian; £ 1: 1 £; ¥ 1: 1 ¥; ₹ 1: 1 ₹ rupee; N 1: 1 N newton; J 1: 1 J joule; W 1: 1 W watt; Hz 1: 1 Hz hertz
"""
_UNITS: dict[str, tuple[str, int, str]] = {}
for _dimension, _power, _row in re.findall(r"(\S+) (\d): ([^;\n]+)", _TABLE):
    for _factor, *_names in map(str.split, _row.split(",")):
        _UNITS |= dict.fromkeys(_names, (_dimension, int(_power), _factor))
_NO_UNITS = {*WORDS, *re.findall(r"\w+", "not error nan infinite true false none for all and with mod modulo plus minus times over choose base negative less more than squared cubed undefined solution wrong right correct incorrect answer above below except but the are was too")}  # fmt: skip
_VALUE = regex(
    r"(?:[-+*/(){}0-9.,\s!^]|(?<=[0-9.])[eE](?=[-+]?\d)|\\(?:frac|sqrt|pi|percent)\>"
    rf"|(?:pi|sqrt|{'|'.join(FACTORS)})\>)*+(?<=[0-9.)}}!a-z ])"
)
_PART = regex(r"(?:(/|per )|\*)? ?(?:(square|sq|cubic)\.? )?\\?([a-zA-Z]+|[$€£¥₹¢])\.?(?: ?\^ ?\{?(-?[1-3])\}?| (squared|cubed))? *")  # fmt: skip
_POWERS = {None: 1, "square": 2, "sq": 2, "squared": 2, "cubic": 3, "cubed": 3}
_MONEY = regex(r"([-+]?) ?\\?([$€£¥₹]) ?(?=[-0-9.\\])(.*)")


def split_unit(text: str) -> tuple[str, str, str]:
    """Splits a number from the unit after it: its dimensions and its factor; no unit for any other text."""
    number = _VALUE.match(_MONEY.sub(r"\1\3 \2", text) if _MONEY.match(text) else text)
    # What an operator stands before is a variable: 5 - s.
    if number is None or number[0].strip()[-1:] in ("", *"+-*/^"):
        return text, "", ""
    value, rest = number[0], number.string[number.end() :].strip().replace("mph", "mi/h")
    spaced = value[-1] in " }" or rest[:1] == "\\"
    at, factor, powers = 0, "1", Counter[str]()
    while at < len(rest):
        match = _PART.match(rest, at)
        if match is None or (unit := _known(match[3], spaced or at > 0)) is None:
            return text, "", ""
        at = match.end()
        power = (-1 if match[1] else 1) * int(match[4] or _POWERS[match[2]] * _POWERS[match[5]])
        powers[unit[0]] += unit[1] * power
        factor += f"*({unit[2]})^({power})"
    return (
        value.strip(),
        " ".join(f"{dimension}^{powers[dimension]}" for dimension in sorted(powers)),
        factor,
    )


def _known(word: str, spaced: bool) -> tuple[str, int, str] | None:
    """A unit's kind, power and factor. A letter or two right beside a number is a variable."""
    lower = word.lower() if len(word) > 2 or word in ("KM", "CM", "KG", "ML") else word
    names = [word, lower, lower.removesuffix("s"), lower.removesuffix("es")]
    for name in filter(_UNITS.__contains__, names):
        return _UNITS[name] if spaced or len(name) > 2 or not name.isalpha() else None
    # A word has a vowel, and letters in the order of the alphabet are a product.
    noun = len(word) > 3 or re.fullmatch("[b-df-hj-np-tv-z][aeiou][b-df-hj-np-tv-z]", word)
    product = word == "".join(sorted({*word})) or not re.search("[aeiou]", lower)
    return (names[2], 1, "1") if noun and not product and not {*names} & _NO_UNITS else None


class Items(NamedTuple):
    """Several answers in one, in brackets such as `()`, `[)`, `{}`, or none; a matrix is a `row`, a `column` or, by the lengths of its rows, `[3, 3]`."""

    brackets: str
    items: tuple[str, ...]


AND = r",? *(?:(?<=[ )}\]])(?:and|or)(?=[ (\\{\[])|\\(?:land|lor)\>(?=.*[<>=]))|,|(?<=\)) *[|&] *(?=\()"
_CONDITION = regex(r"(?=.*(?:[<>]|!=)).*(?:\b(?:and|or)\b|\\(?:land|lor)\>|[|&])")  # fmt: skip


@_or_none
def split_list(inner: str) -> Items | None:
    """Takes a plain text that is a list or a matrix apart; None for any other text."""
    if _CONDITION.match(inner):
        return None
    brackets, enclosed = "", re.fullmatch(r"\\?([(\[{])(.*?)\\?([)\]}])", inner)
    if enclosed and encloses(inner.removeprefix("\\")):
        inner, brackets = enclosed[2], enclosed[1] + enclosed[3]
    rows = cut(inner, ",")[0] if brackets == "[]" else []
    if all(row.startswith("[") and encloses(row) for row in rows) and rows:
        cells = [cut(row[1:-1], ",")[0] for row in rows]
        shape = [len(row) for row in cells]
        line = "row" if len(shape) == 1 else "column" if {*shape} == {1} else str(shape)
        return Items(line, tuple(cell for row in cells for cell in row))
    items = tuple(_items(inner)) if inner.strip() else ()
    names = {named[1] for item in items if (named := re.fullmatch(r"(\w+) ?=[^=<>]+", item))}
    if brackets in ("", "()", "{}") and len(names) == len(items) > 1:
        return Items("row", tuple(sorted(items)))  # a value for each name, in their order
    # Brackets around one value only group it.
    if (len(items) < 2 and brackets in ("", "()")) or (len(items) > 1 and not all(items)):
        return None
    return Items(brackets, items)


def _items(text: str) -> Iterator[str]:
    r"""Cuts `text` outside of brackets at commas, `and` and `or`, or at semicolons; `\pm` is two."""
    pieces = cut(text, ";")[0]
    for piece in pieces if len(pieces) > 1 else cut(text, AND)[0]:
        # With two of them it would be open which values belong together.
        for plus, minus in ("+-", "-+") if piece.count(r"\pm") == 1 else [(r"\pm", r"\mp")]:
            yield piece.replace(r"\pm", plus).replace(r"\mp", minus).strip()


_NAME = regex(r"(?!(?:\\?pi|e|i|\\infty)$)(?:[a-zA-Z]+(?: ?_ ?(?:\w|\{\w*\}))?'*|[a-zA-Z]\w*\([^()]*\)|\([a-z](?:, ?[a-z])*\)|\\[a-zA-Z]+)")  # fmt: skip
_NAMES = regex(r"(?!\\pi)[^0-9]*[a-zA-Z][^0-9]*")


class Relation(NamedTuple):
    """A chain such as `0 < x < 1`. The name of `x = 5` is `x`, of `x + y = 5` it is `~`, of `2x = 5` it is empty."""

    name: str
    signs: tuple[str, ...]
    sides: tuple[str, ...]


@_or_none
def split_relation(text: str) -> Relation | None:
    """Takes a chain of relations apart; None for any other text."""
    sides, signs = ([], []) if _CONDITION.match(text) else cut(text, r"(?<= )!=|[<>]=|[<>=≈]")
    if not all(sides) or len({*sides}) < 2:  # `x = x` says nothing
        return None
    if signs == ["="] and not _NAME.fullmatch(sides[0]):
        sides.sort(key=lambda side: not _NAME.fullmatch(side))  # `5 = x` names x
    named = _NAME.fullmatch(sides[0])
    name = squashed(sides[0]) if named else "~" if _NAMES.fullmatch(sides[0]) else ""
    return Relation(name, tuple(signs), tuple(sides))
