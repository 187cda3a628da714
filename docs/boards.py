"""The three board games in one picture: `python docs/boards.py [boards.png]`."""

from __future__ import annotations

import sys

import numpy as np
from PIL import Image

from pettingllms.envs import make

GAMES = {
    "plan_path": {"height": 8, "width": 8},
    "sokoban": {"size": 8, "boxes": 2, "pushes": (6, 20)},
    "sudoku": {"size": 4},
}
PIXELS = 384


def main() -> None:
    """Draw the first task of each game, side by side."""
    pictures = []
    for name, arguments in GAMES.items():
        env = make(name, render_mode="rgb_array", **arguments)
        env.reset(seed=2)
        picture = Image.fromarray(env.render()).resize((PIXELS, PIXELS), Image.Resampling.LANCZOS)
        pictures.append(np.pad(np.asarray(picture), ((0, 0), (0, 24), (0, 0)), constant_values=255))
    out = sys.argv[1] if len(sys.argv) > 1 else "boards.png"
    Image.fromarray(np.hstack(pictures)[:, :-24]).save(out)


if __name__ == "__main__":
    main()
