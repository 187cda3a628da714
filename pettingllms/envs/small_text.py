"""Prompts of one short instruction, and lenient reading of replies, for pretrained models of 0.1 to 0.5B parameters.

Such a model follows no format and often continues or repeats its prompt. A `small` prompt therefore names what can
be copied, and each function here reads the one thing that was asked for out of free text.
"""

from __future__ import annotations

import re

from pettingllms.data.asserts import Test
from pettingllms.envs.coding_text import MAX_BLOCK_CHARS, is_call, parse_program
from pettingllms.envs.parsing import MAX_MOVES, ParseError

MOVES = {"up": "U", "down": "D", "left": "L", "right": "R"}
READ_CHARS = 2_000
"""Characters of a reply that are read, except of programs."""

_MOVE = re.compile(rf"\b({'|'.join(MOVES)})\b", re.IGNORECASE)
_YES_NO = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?<![\w.])(?<!\d/)-?(?:\d{1,3}(?:,\d{3})+|\d{1,9})(?!\w|[./]\d|,\d{3}(?!\d))"
)
"""A whole number, also with commas between thousands; no part of a decimal number, a fraction, or a word."""
_FORMULA = re.compile(r"\d{1,9}(?: {0,2}[-+*/] {0,2}\d{1,9}){1,30}")
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n")
_EXAMPLE = re.compile(r"\binput:\s*([^\n]{1,200}?)\s*\boutput:[ \t]*([^\n]{1,200})", re.IGNORECASE)


def moves(text: str) -> tuple[str, ...] | ParseError:
    """Returns the directions that a reply names, in order."""
    words = _MOVE.findall(text[:READ_CHARS])[:MAX_MOVES]
    if not words:
        return ParseError("none of up, down, left and right")
    return tuple(MOVES[word.lower()] for word in words)


def number(text: str) -> int | ParseError:
    """Returns the last whole number in a reply."""
    numbers = _NUMBER.findall(text[:READ_CHARS])
    return int(numbers[-1].replace(",", "")) if numbers else ParseError("no whole number")


def formula(text: str) -> str | ParseError:
    """Returns the first formula of a reply, such as `5 + 4 - 2`, as a program that prints its value."""
    match = _FORMULA.search(text[:READ_CHARS])
    return f"print({match[0]})" if match else ParseError("no formula such as 3 + 4")


def yes_or_no(text: str) -> str | ParseError:
    """Returns the first `yes` or `no` of a reply, in lower case."""
    match = _YES_NO.search(text[:READ_CHARS])
    return match[1].lower() if match else ParseError("neither yes nor no")


def program(text: str) -> str | ParseError:
    """Returns the program of a reply; the block that holds it may be cut off."""
    whole = parse_program(text)
    if isinstance(whole, str):
        return whole
    match = _FENCE.search(text)
    code = text[match.end() :] if match else ""
    return code if 0 < len(code) <= MAX_BLOCK_CHARS else whole


def example(text: str, function: str | None) -> tuple[Test, ...] | ParseError:
    """Returns the first `Input: ... Output: ...` of a reply as a test; of a function with its arguments."""
    match = _EXAMPLE.search(text[:READ_CHARS].replace("`", ""))
    if match is None:
        return ParseError("no `Input:` with an `Output:` after it")
    test_input = match[1] if function is None else f"[{match[1]}]"
    test = Test(test_input, match[2].strip())
    if function is not None and not is_call(test):
        return ParseError("arguments and value of a function have to be JSON, such as 3 or [1, 2]")
    return (test,)


def direction(rows: int, columns: int) -> str:
    """Names where something is that lies so many rows below and columns to the right."""
    vertical = "down" if rows > 0 else "up" if rows else ""
    horizontal = "right" if columns > 0 else "left" if columns else ""
    return " and ".join(filter(None, (vertical, horizontal))) or "here"


def spoken(proposal: str) -> str:
    """Says a board's proposal in words: `[U, R]` as `up, right`, and a fill by its number."""
    words = [word for letter in proposal for word, move in MOVES.items() if move == letter]
    return ", ".join(words) or " ".join(_NUMBER.findall(proposal)[-1:]) or "nothing"


def asked_way(goal: str, blocked: list[str], rest: str = "") -> str:
    """Asks for a way; `blocked` are the directions in which nothing can be done."""
    walls = f" You cannot go {' or '.join(blocked)}." if blocked else ""
    return f"The {goal}.{rest}{walls} Say which way it is:"
