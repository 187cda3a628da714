"""The figures of the pages of results: each is shown there, and drawn from what is published."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from benchmarks import figures, tables
from pettingllms.statistics import Estimate

pytestmark = pytest.mark.usefixtures("as_published")
PAGES = sorted((Path(__file__).parents[1] / "docs" / "results").glob("*.md"))


def test_every_figure_whose_result_is_published_is_on_a_page_and_no_other():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name, (needed, _) in figures.FIGURES.items():
        assert (f"](../figures/{name}.png)" in text) == tables.published(needed), name
        assert (figures.OUT / f"{name}.png").is_file() == tables.published(needed), name


def test_points_are_drawn_in_the_rows_of_their_names_with_their_intervals():
    figure, axis = plt.subplots()
    points = [
        figures.Point("one", Estimate(0.5, 0.4, 0.7), "a", "red"),
        figures.Point("two", Estimate(0.9, 0.8, 1.0), "a", "red"),
    ]
    figures.rows_of_points(axis, points, label="success")
    assert [text.get_text() for text in axis.get_yticklabels()] == ["one", "two"]
    drawn = [np.asarray(line.get_xydata()).T.tolist() for line in axis.lines]
    assert [[0.4, 0.7], [0.0, 0.0]] in drawn
    assert [[0.9], [1.0]] in drawn
    assert axis.get_ylim()[0] > axis.get_ylim()[1], "the first row is on top"
    plt.close(figure)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parts", "peers", "claims_swap", "claims_grouping", "decisions"])
def test_a_figure_is_drawn_from_the_published_result(name):
    figure = figures.FIGURES[name][1]()
    assert figure.axes
    assert all(axis.lines for axis in figure.axes)
    plt.close(figure)
