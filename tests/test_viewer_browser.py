"""The viewer in a real browser: a real run and evaluation, hostile texts, the exported file.

`make test-browser` runs these. They leave a picture of each view in build/screenshots.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.browsing import Browser, browser
from tests.viewed import Viewer, viewer
from tests.viewer_runs import HOSTILE, add_step, episode, eval_folder, lines, run_folder

pytestmark = pytest.mark.browser

RUN, EVAL = "runs/coding", "evals/mine"
LAPTOP, PHONE = (1280, 720), (390, 844)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Path:
    """Two short runs of the embedded model, with a tree and with whole episodes, and an evaluation."""
    import torch

    from pettingllms.cli import evaluate
    from pettingllms.session import run_training as train
    from pettingllms.trainers.config import ATGRPOConfig

    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("viewed")
    for name, steps, method in (("coding", 2, "at_grpo"), ("episodes", 1, "grpo")):
        train(
            ATGRPOConfig(
                env="coding",
                policies="per-role",
                num_generations=4,
                tasks_per_step=6,
                method=method,
                max_steps=steps,
                eval_tasks=2,
                output_dir=str(place / "runs" / name),
            )
        )
    run, out = str(place / "runs" / "coding"), str(place / "evals" / "mine")
    words = ["--adapters", run, "--swap", "all", "--samples", "2", "--limit", "3", "--out", out]
    assert evaluate.main(["--env", "coding", *words]) == 0
    return place


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Viewer]:
    with viewer(cwd=folder) as running:
        yield running


@pytest.fixture
def page(chromium: Browser, served: Viewer) -> Iterator[Browser]:
    """The list of runs on a laptop's screen. Afterwards: no complaint, nothing asked of others."""
    chromium.size(*LAPTOP)
    chromium.open("about:blank")
    chromium.complaints()
    chromium.requests()
    chromium.open(served.address)
    chromium.one("table.rows")
    yield chromium
    assert chromium.complaints() == []
    assert [
        address for address in chromium.requests() if not address.startswith(served.address)
    ] == []


def tree_of(page: Browser, address: str, run: str = RUN, line: int = 1, more: str = "") -> None:
    page.open(f"{address}#/tree?s={quote(run, safe='')}&l=1&e={line}{more}")
    page.one("article.candidate")


def hash_of(page: Browser) -> str:
    return str(page.run("return location.hash"))


def test_a_tree_is_three_clicks_away(page: Browser) -> None:
    page.click("a", RUN)
    page.one(".chart", "Reward by role")
    page.click(".steps a")
    page.one("table.episodes")
    page.click("table.episodes a")
    page.one("article.candidate", "Reply")
    assert len(page.all(".node")) % 4 == 0
    assert len(page.all(".node.chosen")) == len(page.all(".column-head"))


def test_every_curve_that_was_asked_for_is_there(page: Browser) -> None:
    page.open(f"{page.driver.current_url.partition('#')[0]}#/run?s={quote(RUN, safe='')}")
    titles = page.until(lambda: [element.text for element in page.all(".chart strong")])
    wanted = (
        "Success", "Reward by role", "Team part", "Local part", "Entropy", "clipped",
        "without signal", "Truncated", "Unreadable", "Sampler against trainer", "Tokens a second",
        "Share of a step's time",
    )  # fmt: skip
    assert [name for name in wanted if not any(name in title for title in titles)] == []


def test_ticks_of_a_chart_are_exact(page: Browser) -> None:
    steps = [factor * 10.0**power for power in range(-4, 5) for factor in (1, 2, 2.5, 5)]
    for apart in steps:
        ticks = [n * apart for n in range(-3, 5)]
        shown = page.run("return arguments[0].map((t) => tickText(t, arguments[1]))", ticks, apart)
        assert [float(text.replace("−", "-")) for text in shown] == pytest.approx(
            ticks, rel=1e-9
        ), apart


def test_the_table_filters_sorts_and_searches(page: Browser, served: Viewer) -> None:
    page.open(f"{served.address}#/step?s={quote(RUN, safe='')}&l=1")
    page.one(".count", "6 of 6")
    rows = served.ask("facts", source=RUN, label="1", after=0)["rows"]

    def shown(text: str) -> list[str]:
        page.one(".count", text)
        return [element.text for element in page.all("table.episodes td a")]

    failed = [row["task"] for row in rows if row["success"] is False]
    page.run(
        "const s = [...document.querySelectorAll('select')].find((e) => e.parentNode.textContent.startsWith('Outcome'));"
        "s.value = 'no'; s.dispatchEvent(new Event('change', {bubbles: true}));"
    )
    assert shown(f"{len(failed)} of 6") == failed
    assert "ok=no" in hash_of(page)
    page.click("form button", "Clear")
    silent = [row["task"] for row in rows if any(group["flat"] for group in row["groups"])]
    page.click("label", "without signal")
    assert shown(f"{len(silent)} of 6") == silent
    page.click("form button", "Clear")
    page.one(".count", "6 of 6")
    page.press("/")
    wanted = rows[2]["task"]
    text = served.ask("episode", source=RUN, line=rows[2]["line"])["row"]["decisions"][0]["prompt"]
    field = page.one("#search")
    field.send_keys(text.split("\n")[1][:60].upper() + "\n")
    page.until(lambda: "searching" not in page.one(".count").text)
    assert wanted in [element.text for element in page.all("table.episodes td a")]
    page.click("form button", "Clear")
    page.click("button.sort", "Tokens")
    page.one("th[aria-sort=ascending]", "Tokens")
    tokens = [
        int(element.text.replace(",", "")) for element in page.all("table.episodes td:nth-child(5)")
    ]
    assert tokens == sorted(tokens) == sorted(row["tokens"] for row in rows)


def test_a_candidate_shows_its_reward_its_group_and_its_text(page: Browser, served: Viewer) -> None:
    tree_of(page, served.address, more="&at=0.1")
    row = served.ask("episode", source=RUN, line=1)["row"]
    one = row["decisions"][0]["candidates"][1]
    assert page.one(".text", one["completion"].split("\n")[0])
    numbers = [float(element.text.replace("−", "-")) for element in page.all(".formula b")]
    assert numbers == pytest.approx(
        [one["reward"], 1.0, one["team_reward"], one["local_reward"]], abs=6e-3
    )
    assert "Compared with the 4 replies to this prompt" in page.text
    assert f"{row['decisions'][0]['policy']}, version" in page.text
    assert "Log-probability" in page.text


def test_the_page_shows_the_numbers_that_it_was_sent_and_computes_none(
    chromium: Browser, tmp_path: Path
) -> None:
    """Numbers are exchanged on their way to the page, which would show others if it computed them."""
    run_folder(tmp_path / "runs" / "trees", steps=1)
    whole = run_folder(tmp_path / "runs" / "whole", steps=0, estimator="grpo")
    rows = [episode("t", [["a"], ["b"]], index=n) for n in range(3)]
    (whole / "trajectories.jsonl").write_bytes(lines(rows, step=1))
    times = {"kind": "train", "step": 1, "time/step": 2.0, "time/score": 1.0}
    (whole / "metrics.jsonl").write_text(json.dumps(times) + "\n")
    eval_folder(tmp_path / "evals" / "mine")
    numbers = {
        "mean": 71.5, "low": 61.0, "high": 81.0, "deviation": 17.5, "solved": 41, "said": 43,
        "logprob_per_token": -3.75, "advantage_mean": 5.5, "unread": 37, "time_share/score": 7.25,
    }  # fmt: skip
    with viewer(cwd=tmp_path) as running:
        chromium.size(*LAPTOP)
        chromium.open("about:blank")
        chromium.complaints()
        chromium.open(running.address)
        chromium.one("table.rows")
        chromium.run(
            "const [numbers] = arguments, ask = answers.ask.bind(answers);"
            "const changed = (value, name) => typeof value === 'number' && name in numbers ? numbers[name]"
            " : Array.isArray(value) ? value.map((each) => changed(each))"
            " : value && typeof value === 'object'"
            "   ? Object.fromEntries(Object.entries(value).map(([k, v]) => [k, changed(v, k)])) : value;"
            "answers.ask = async (...question) => changed(await ask(...question));",
            numbers,
        )

        def shows(place: str, selector: str, text: str) -> None:
            chromium.open(f"{running.address}#/{place}")
            chromium.one(selector, text)

        shows("run?s=runs%2Fwhole", ".chart", "7.25")
        assert chromium.one(".steps a").get_attribute("title") == "step 1: 41 of 43 solved"
        shows("step?s=runs%2Ftrees&l=1", ".count", "41 of 43 solved")
        for text in ("71.50", "61.00 … 81.00", "37 unreadable"):
            chromium.one("table.episodes td", text)
        for run in ("trees", "whole"):
            shows(f"tree?s=runs%2F{run}&l=1&e=1&at=0.0", ".compared figcaption", "mean 71.5")
            chromium.one(".compared figcaption", "deviation 17.5")
            chromium.one(".advantage", "+5.5")
            chromium.one("dl.pairs dd", "−3.75 a token")
        shows("eval?s=evals%2Fmine", "table.rows td.num a", "41 of 43")
        compared = "compare?a=evals%2Fmine&al=base&b=evals%2Fmine&bl=adapters"
        shows(compared, ".lead", "+71.5 [+61, +81]")
        assert chromium.complaints() == []


def test_two_candidates_side_by_side(page: Browser, served: Viewer) -> None:
    tree_of(page, served.address)
    row = served.ask("episode", source=RUN, line=1)["row"]
    texts = [candidate["completion"] for candidate in row["decisions"][0]["candidates"]]
    page.click("[data-node='1.0.0']")
    page.click("button", "Compare with")
    other = next(place for place in (3, 2, 1) if texts[place] != texts[0] or place == 1)
    page.click(f"[data-node='1.0.{other}']")
    page.one(".difference")
    columns = [
        "\n".join(
            str(page.run("return arguments[0].textContent", element))
            for element in page.all(f".difference td:nth-child({number})")
            if "absent" not in element.get_attribute("class")
        )
        for number in (1, 2)
    ]
    assert columns == [texts[0], texts[other]]
    page.press("\ue00c")  # Escape
    page.one("article.candidate", "Reply")


def test_the_keyboard_reaches_everything(page: Browser, served: Viewer) -> None:
    page.open(f"{served.address}#/step?s={quote(RUN, safe='')}&l=1")
    page.one("table.episodes")
    page.press("j", "j", "\ue007")  # Enter
    page.until(lambda: "e=2" in hash_of(page))
    page.one("article.candidate")
    page.press("j")
    page.until(lambda: "e=3" in hash_of(page))
    page.press("k")
    page.until(lambda: "e=2" in hash_of(page))
    page.one(".node.selected")
    page.press("\ue014")  # right
    page.until(lambda: "at=1." in hash_of(page))
    page.press("\ue012")  # left
    before = page.until(lambda: re.search(r"at=0\.(\d)", hash_of(page)))
    page.press("\ue015" if before[1] != "3" else "\ue013")  # down, or up
    page.until(lambda: hash_of(page).count(f"at=0.{before[1]}") == 0)
    page.press("x")
    page.one("button.on")
    page.press("\ue00c")
    page.press("?")
    page.one(".help", "Keyboard")
    page.press("?")
    page.press("u")
    page.one("table.episodes")
    page.press("u")
    page.one(".charts")
    page.press("u")
    page.one("h1", "Runs")


def test_a_link_leads_to_the_same_candidate(page: Browser, served: Viewer) -> None:
    tree_of(page, served.address, more="&at=1.2&vs=1.1.3")
    page.one(".difference")
    before = page.text
    address = page.driver.current_url
    page.open("about:blank")
    page.open(address)
    page.one(".difference")
    assert page.text == before


def test_whole_episodes_are_rows_of_the_same_page(page: Browser, served: Viewer) -> None:
    tree_of(page, served.address, "runs/episodes", 2)
    page.until(lambda: len(page.all(".node")) >= 8)
    assert "Compared with the 4 episodes of this task" in page.text
    page.press("\ue015")
    page.until(lambda: "e=3" in hash_of(page))


def test_an_evaluation_has_pass_at_k_a_matrix_and_both_sides(page: Browser, served: Viewer) -> None:
    page.click("a", EVAL)
    page.one(".chart", "pass@k")
    assert len(page.all(".heat td")) == 4
    page.click("table.rows td.num a", " of 2")
    page.until(lambda: len(page.all(".decision")) >= 2)
    page.press("u")
    page.click("a", "A against B")
    page.one(".lead", "paired over 3 tasks")
    page.one(".tabs", "right more often")
    page.click("table.rows td a")
    page.one(".pair", "B: ")
    page.until(lambda: len(page.all(".pair .decision")) >= 4)
    page.press("j")
    page.until(lambda: "task=test%3A1" in hash_of(page))


@pytest.mark.parametrize("name", ["sokoban", "sudoku", "plan_path"])
def test_boards_are_drawn_as_they_are(page: Browser, name: str) -> None:
    """A full prompt shows the board in characters, a compact one its cells: the same drawing."""
    from pettingllms.envs import make

    def board(**arguments: Any) -> Any:
        env = make(name, **arguments)
        env.reset(seed=5)
        agent = env.possible_agents[0]
        drawing = page.run("return boardOf(arguments[0])", env.observe(agent)["text"])
        drawing["cells"] = [[sorted(cell.split()) for cell in row] for row in drawing["cells"]]
        return drawing

    full = board(prompt="full")
    assert full == board(prompt="compact")
    assert any(cell for row in full["cells"] for cell in row)
    way = page.run(
        "return wayOf({kind: 'plan', cells: [['player', '', 'wall'], ['', 'goal', '']]}, arguments[0])",
        "First [U]. #### [R, D, R, U, R]",
    )
    assert way == [[0, 0], [0, 1], [1, 1], [1, 2]]


def test_several_runs_lie_over_each_other(page: Browser) -> None:
    for box in page.all("input[type=checkbox]"):
        box.click()
    page.click("a", "Curves of 2 runs together")
    legend = page.one(".legend").text
    assert "coding" in legend
    assert "episodes" in legend


def test_a_run_is_followed_while_it_is_written(
    chromium: Browser, tmp_path: Path, folder: Path
) -> None:
    run = run_folder(tmp_path / "runs" / "live", steps=1)
    with viewer(cwd=tmp_path) as running:
        chromium.size(*LAPTOP)
        chromium.open(f"{running.address}#/run?s=runs%2Flive")
        chromium.one(".state", "running")
        chromium.until(lambda: len(chromium.all(".steps a")) == 1)
        add_step(run, 2)
        with (run / "trajectories.jsonl").open("ab") as file:
            file.write(lines([episode("half", [["x"]])], step=3)[:80])
        chromium.until(lambda: len(chromium.all(".steps a")) == 2)
        chromium.one(".legend", "0.2")
        chromium.open(f"{running.address}#/step?s=runs%2Flive&l=2")
        chromium.one(".count", "2 of 2")
        with (run / "trajectories.jsonl").open("ab") as file:
            file.write(lines([episode("half", [["x"]])], step=3)[80:])
            file.write(lines([episode("coding:late", [["late"]])], step=2))
        chromium.one(".count", "3 of 3")
        (run / "summary.json").write_text("{}")
        chromium.open(f"{running.address}#/run?s=runs%2Flive")
        chromium.one(".state", "finished")
        assert chromium.complaints() == []


def test_an_exported_file_works_from_disk_without_a_network(
    chromium: Browser, folder: Path, tmp_path: Path
) -> None:
    from pettingllms.cli import view

    target = tmp_path / "run.html"
    assert view.main([str(folder / "runs"), str(folder / "evals"), "--export", str(target)]) == 0
    chromium.size(*LAPTOP)
    chromium.open("about:blank")
    chromium.complaints()
    chromium.requests()
    chromium.offline(True)
    try:
        chromium.open(target.as_uri())
        chromium.click("a", RUN)
        chromium.one(".chart", "Reward by role")
        chromium.click(".steps a")
        chromium.one(".count", "6 of 6")
        chromium.press("/")
        chromium.one("#search").send_keys("no such text anywhere\n")
        chromium.one(".count", "0 of 6")
        chromium.click("form button", "Clear")
        chromium.click("table.episodes a")
        chromium.one("article.candidate", "Reply")
        chromium.press("j")
        chromium.until(lambda: "e=2" in hash_of(chromium))
        chromium.open(target.as_uri() + "#/eval?s=evals%2Fmine")
        chromium.one(".chart", "pass@k")
        chromium.open(target.as_uri() + "#/tree?s=runs%2Fepisodes&l=1&e=1")
        chromium.until(lambda: len(chromium.all(".node")) >= 8)
        assert chromium.complaints() == []
        asked = {url.partition("#")[0] for url in chromium.requests()}
        assert {url for url in asked if not url.startswith("data:")} == {target.as_uri()}
    finally:
        chromium.offline(False)


@pytest.mark.parametrize("exported", [False, True], ids=["served", "exported"])
def test_hostile_texts_do_nothing(chromium: Browser, tmp_path: Path, exported: bool) -> None:
    from pettingllms.cli import view

    run = run_folder(tmp_path / "runs" / "hostile", steps=0)
    rows = [
        episode(text[:300] or "empty", [[text, HOSTILE[0]], ["x"]], prompt=text) for text in HOSTILE
    ]
    (run / "trajectories.jsonl").write_bytes(lines(rows, step=1))
    (run / "metrics.jsonl").write_bytes(b"")
    chromium.size(*LAPTOP)
    chromium.open("about:blank")
    chromium.complaints()
    chromium.requests()

    def looked_at(address: str) -> None:
        chromium.open(f"{address}#/step?s=runs%2Fhostile&l=1")
        chromium.one(".count", f"{len(HOSTILE)} of {len(HOSTILE)}")
        for line, text in enumerate(HOSTILE, 1):
            chromium.open(f"{address}#/tree?s=runs%2Fhostile&l=1&e={line}&at=0.0")
            chromium.one(".paging", f"{line} of {len(HOSTILE)}")
            chromium.one("article.candidate", "Reply")
            shown = chromium.run("return document.querySelector('article .text').textContent")
            readable = max(["", *re.findall(r"[\x20-\x7e]+", text)], key=len)
            assert readable[:200] in shown
            assert not re.search("[\x00-\x08\x1b\u202e\u2066\u2069\ufeff\u200b\ud800]", shown)
            chromium.open(f"{address}#/tree?s=runs%2Fhostile&l=1&e={line}&at=0.0&vs={line}.0.1")
            chromium.one("article.two")
        # What the page is made of has not changed.
        assert chromium.run("return window.pwned") is None
        for selector in ("main script", "iframe", "main img", "base", "main link", "main style"):
            assert chromium.all(selector) == []
        links = chromium.run("return [...document.links].map((each) => each.href)")
        assert [link for link in links if not link.startswith(address)] == []
        assert chromium.complaints() == []
        asked = [url for url in chromium.requests() if not url.startswith("data:")]
        assert [url for url in asked if not url.startswith(address)] == []

    if exported:
        target = tmp_path / "run.html"
        assert view.main([str(run), "--export", str(target)]) == 0
        looked_at(target.as_uri())
    else:
        with viewer(cwd=tmp_path) as running:
            looked_at(running.address)


VIEWS = {
    "list": ("", "table.rows"),
    "run": ("run?s=runs%2Fcoding", ".chart"),
    "runs": ("run?s=runs%2Fcoding&s=runs%2Fepisodes", ".chart"),
    "step": ("step?s=runs%2Fcoding&l=1", "table.episodes"),
    "tree": ("tree?s=runs%2Fcoding&l=1&e=1", "article.candidate"),
    "two": ("tree?s=runs%2Fcoding&l=1&e=1&at=0.0&vs=1.0.1", ".difference"),
    "episodes": ("tree?s=runs%2Fepisodes&l=1&e=2", "article.candidate"),
    "evaluation": ("eval?s=evals%2Fmine", ".heat"),
    "compare": ("compare?a=evals%2Fmine&al=base&b=evals%2Fmine&bl=adapters&task=test%3A0", ".pair"),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_no_serious_fault_of_accessibility(
    page: Browser, served: Viewer, view: str
) -> None:
    place, ready = VIEWS[view]
    page.open(f"{served.address}#/{place}")
    page.one(ready)
    page.shot(view)
    assert page.faults() == []
    page.press("t")
    page.one("[data-theme=dark] body")
    page.shot(f"{view}-dark")
    try:
        assert page.faults() == []
    finally:
        page.press("t")


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_fits_on_a_phone_and_on_a_small_laptop(
    page: Browser, served: Viewer, view: str
) -> None:
    place, ready = VIEWS[view]
    for name, (width, height) in {"phone": PHONE, "laptop": LAPTOP}.items():
        page.size(width, height)
        page.open("about:blank")
        page.open(f"{served.address}#/{place}")
        page.one(ready)
        assert page.run("return document.documentElement.scrollWidth") <= width
        if name == "phone":
            page.shot(f"{view}-phone")
    if view == "tree":  # the tree and the reply at once
        assert page.one("article .text").location["y"] < LAPTOP[1]
        assert page.one(".node.selected").location["y"] < LAPTOP[1]
