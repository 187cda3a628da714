"""Draws boards of square tiles with Pillow, for `render_mode="rgb_array"`.

    draw([[Tile(WALL), Tile(marks=(Mark("ring", GOAL),))], [Tile(text="7"), Tile()]])

A tile has a ground color, any number of marks, drawn in their order, and a text on top. With
`blocks=(3, 3)` thick lines run round every 3 x 3 tiles. The colors below are
shared by all boards. Pillow is imported with the first picture: environments do not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pettingllms.errors import ConfigError

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

GROUND, SHADE, WALL, LINE = "#f5f1e8", "#e6dfd0", "#4a5160", "#d8d0bf"
INK, PLAYER, GOAL, DONE, FAULT = "#2b2f38", "#2f6fb3", "#c8452f", "#3f8f4f", "#d9822b"
BOX = "#c08a4a"

TILE_PIXELS = 48
_FINE = 3  # drawn this many times larger, then scaled down, because Pillow does not smooth edges
_SHARES = {"square": 0.74, "disc": 0.62, "ring": 0.62, "dot": 0.26, "cross": 0.5}


class Mark(NamedTuple):
    """A shape in the middle of a tile."""

    shape: Literal["square", "disc", "ring", "dot", "cross"]
    color: str


class Tile(NamedTuple):
    """Look of one cell; colors as `#rrggbb`."""

    ground: str = GROUND
    marks: tuple[Mark, ...] = ()
    text: str = ""
    ink: str = INK


def draw(
    rows: Sequence[Sequence[Tile]], *, blocks: tuple[int, int] | None = None
) -> npt.NDArray[np.uint8]:
    """Draws a board as uint8 of (rows * TILE_PIXELS) x (columns * TILE_PIXELS) x 3.

    Args:
        rows: rows of equal length.
        blocks: height and width, in tiles, of blocks that thick lines surround.

    Raises:
        ConfigError: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise ConfigError(
            'render_mode="rgb_array" draws with Pillow, which is not installed; '
            'pip install pillow, or use render_mode="ansi"'
        ) from error
    side = TILE_PIXELS * _FINE
    height, width = len(rows) * TILE_PIXELS, len(rows[0]) * TILE_PIXELS
    image = Image.new("RGB", (width * _FINE, height * _FINE), GROUND)
    pen = ImageDraw.Draw(image)
    for row, tiles in enumerate(rows):
        for column, tile in enumerate(tiles):
            _tile(pen, tile, column * side, row * side, side)
    if blocks is not None:
        _lines(pen, len(rows), len(rows[0]), blocks, side)
    # The scale is a whole number, for which a box filter is the plain mean of the fine pixels.
    return np.asarray(image.resize((width, height), Image.Resampling.BOX))


def _tile(pen: ImageDraw, tile: Tile, x: int, y: int, side: int) -> None:
    # A forty-eighth of a tile is one pixel in the picture at the usual size.
    # Pillow's rectangles include their last row and column, hence the ones that are subtracted.
    pen.rectangle((x, y, x + side - 1, y + side - 1), tile.ground, LINE, side // 48)
    for mark in tile.marks:
        inset = round(side * (1 - _SHARES[mark.shape]) / 2)
        left, top, right, bottom = x + inset, y + inset, x + side - inset, y + side - inset
        thick = side // 10
        if mark.shape == "square":
            pen.rounded_rectangle((left, top, right, bottom), side // 12, mark.color)
        elif mark.shape == "ring":
            pen.ellipse((left, top, right, bottom), None, mark.color, thick)
        elif mark.shape == "cross":
            pen.line((left, top, right, bottom), mark.color, thick)
            pen.line((left, bottom, right, top), mark.color, thick)
        else:
            pen.ellipse((left, top, right, bottom), mark.color)
    if tile.text:
        font = _font(round(side * (0.56 if len(tile.text) == 1 else 0.4)))
        pen.text((x + side / 2, y + side / 2), tile.text, tile.ink, font, anchor="mm")


def _lines(pen: ImageDraw, rows: int, columns: int, blocks: tuple[int, int], side: int) -> None:
    thick = side // 16
    for row in range(0, rows + 1, blocks[0]):
        pen.line((0, row * side, columns * side, row * side), INK, thick)
    for column in range(0, columns + 1, blocks[1]):
        pen.line((column * side, 0, column * side, rows * side), INK, thick)


@lru_cache
def _font(size: int) -> Any:
    from PIL import ImageFont

    # Pillow's own font: a font of the machine would give other pixels on every machine.
    return ImageFont.load_default(size)
