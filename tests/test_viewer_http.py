"""What the viewer's server answers, and what it refuses; the exported file; the page's own files."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pettingllms.cli import view
from pettingllms.errors import ConfigError
from pettingllms.viewer.app import ANSWERS
from pettingllms.viewer.export import exported
from pettingllms.viewer.library import Library
from pettingllms.viewer.page import POLICY, assets
from tests.viewed import Viewer, viewer
from tests.viewer_runs import HOSTILE, episode, eval_folder, lines, run_folder

ROOT = Path(__file__).parents[1]
STATIC = ROOT / "pettingllms" / "viewer" / "static"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    folder = tmp_path_factory.mktemp("served")
    run_folder(folder / "runs" / "one", steps=3)
    eval_folder(folder / "evals" / "mine")
    (folder / "secret.txt").write_text("secret")
    with viewer(cwd=folder) as running:
        yield running


def test_runs_and_evals_are_shown_where_nothing_is_named(served: Viewer) -> None:
    sources = served.ask("sources")["sources"]
    assert [(source["name"], source["kind"]) for source in sources] == [
        ("runs/one", "run"),
        ("evals/mine", "eval"),
    ]
    assert sources[0]["step"] == 3
    assert served.ask("labels", source="evals/mine")["labels"] == [
        {"label": team, "episodes": 3, "said": 3, "solved": 3, "share": 1.0}
        for team in ("base", "adapters")
    ]
    assert len(served.ask("facts", source="runs/one", label="2", after=0)["rows"]) == 2
    assert served.ask("search", source="runs/one", label="2", q="PRINT", after=0)["rows"] == [3, 4]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "localhost.evil:1", "0"],
)
def test_only_names_of_this_machine_are_answered(served: Viewer, host: str) -> None:
    for path in ("/", "/api/sources", "/static/js/app.js"):
        status, _, body = served.get(path, host=host)
        assert status == 400, (host, path)
        assert b"runs" not in body


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1"])
def test_every_name_of_this_machine_is_answered(served: Viewer, host: str) -> None:
    assert served.get("/api/sources", host=host)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../../../secret.txt",
        "/static/..%2f..%2f..%2fsecret.txt",
        "/static/%2e%2e/%2e%2e/app.py",
        "//secret.txt",
        "/static//etc/passwd",
        "/static/js",
        "/static/vendor/versions.json",
        "/api/../secret.txt",
        "/app.py",
    ],
)
def test_there_is_no_way_to_other_files(served: Viewer, path: str) -> None:
    status, _, body = served.get(path)
    assert status == 404
    assert b"secret" not in body


@pytest.mark.parametrize(
    ("question", "status"),
    [
        ("episode?source=runs/one&line=99", 404),
        ("episode?source=runs/one&line=x", 400),
        ("episode?source=runs/one&line=-1", 400),
        ("episode?source=runs/one&line=99999999999999999999", 400),
        ("episode?source=../one&line=1", 404),
        ("labels", 404),
        ("labels?source=%00", 404),
        ("nothing", 404),
    ],
)
def test_a_wrong_question_is_an_error_and_no_crash(
    served: Viewer, question: str, status: int
) -> None:
    assert served.get(f"/api/{question}")[0] == status
    assert served.get("/api/sources")[0] == 200


def test_nothing_can_be_changed(served: Viewer) -> None:
    for name in ANSWERS:
        assert served.get(f"/api/{name}?source=runs/one", method="POST")[0] == 405
        assert served.get(f"/api/{name}?source=runs/one", method="DELETE")[0] == 405


def test_every_answer_forbids_foreign_scripts(served: Viewer) -> None:
    for path in ("/", "/api/sources", "/static/js/app.js", "/nothing"):
        _, headers, _ = served.get(path)
        if path != "/nothing":
            assert headers["content-security-policy"] == POLICY
            assert headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY
    assert "default-src 'none'" in POLICY


def test_the_page_has_no_inline_script_or_style() -> None:
    page = assets()["index.html"].decode()
    assert re.findall(r"<script(?![^>]* src=)", page) == []
    assert not re.search(r"<style|\bstyle=|\bon\w+=|javascript:", page)
    named = re.findall(r'(?:src|href)="static/([^"]+)"', page)
    assert sorted(named) == sorted(name for name in assets() if name != "index.html")


@pytest.mark.parametrize("name", sorted(name for name in assets() if name.startswith("js/")))
def test_scripts_make_no_markup_of_text(name: str) -> None:
    text = assets()[name].decode()
    for sink in (
        "innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function",
        "DangerouslySet", "dangerouslySet", "srcdoc", "window.open", "http:", "https:",
    ):  # fmt: skip
        assert sink not in text, sink


def test_the_page_is_small() -> None:
    content = b"".join(content for _, content in sorted(assets().items()))
    assert len(gzip.compress(content)) <= 300_000


@pytest.mark.parametrize(
    "folder", [STATIC / "vendor", ROOT / "tests" / "vendor"], ids=["page", "tests"]
)
def test_vendored_files_are_what_their_list_says(folder: Path) -> None:
    packages = json.loads((folder / "versions.json").read_text())
    listed = {
        name: digest for package in packages.values() for name, digest in package["files"].items()
    }
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "versions.json"
    }
    assert digests == listed
    pinned = (ROOT / ".ci" / "vendor").read_text()
    for name, package in packages.items():
        assert any("LICENSE" in file for file in package["files"]), name
        assert package["archive"] in pinned


# The exported file


def blocks_of(page: str) -> dict[str, Any]:
    blocks = re.findall(
        r'<script type="application/octet-stream" id="([\w-]+)">([^<]*)</script>', page
    )
    return {name: json.loads(gzip.decompress(base64.b64decode(block))) for name, block in blocks}


def test_an_exported_file_holds_what_the_server_answers(tmp_path: Path) -> None:
    run_folder(tmp_path / "runs" / "one", steps=3)
    library = Library([tmp_path / "runs"])
    (source,) = library.sources()
    blocks = blocks_of(exported(library))
    main = blocks.pop("data-main")
    assert main["sources"] == library.listed()["sources"]
    answers = main["answers"]["runs/one"]
    assert answers["metrics"]["rows"] == library.metrics(source, 0)["rows"]
    assert answers["labels"]["labels"] == library.labels(source)["labels"]
    for label in ("1", "2", "3"):
        block = blocks[main["places"]["runs/one"][label]]
        assert block["facts"] == library.facts(source, label, 0)["rows"]
        assert (
            main["lines"]["runs/one"] | dict.fromkeys(block["episodes"], label)
            == main["lines"]["runs/one"]
        )
        for line, row in block["episodes"].items():
            assert row == library.episode(source, int(line))


def test_an_exported_file_is_the_same_twice_and_runs_only_its_own_scripts(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "runs" / "one", steps=0)
    rows = [episode(f"t:{n}", [[text]], prompt=text) for n, text in enumerate(HOSTILE)]
    (run / "trajectories.jsonl").write_bytes(lines(rows, step=1))
    (run / "metrics.jsonl").write_bytes(b"")
    page = exported(Library([tmp_path / "runs"]))
    assert page == exported(Library([tmp_path / "runs"]))
    packed = re.findall(r'id="data-[^"]+">([^<]+)<', page)
    assert {base64.b64decode(block)[4:8] for block in packed} == {bytes(4)}  # no time stamp
    match = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert match is not None
    policy = match[1]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    allowed = {
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    }
    assert set(policy.partition("script-src ")[2].partition(";")[0].split()) == allowed
    assert "connect-src" not in policy  # default-src 'none': no network at all
    assert "pwned" not in page
    for library in ("preact", "htm", "uplot", "prismjs", "diff"):
        assert (STATIC / "vendor" / f"{library}.LICENSE.txt").read_text() in page
    assert not re.search(r'(?:src|href)="(?!data:)', page.partition("<style>")[0])


def test_steps_and_tasks_limit_an_exported_file(tmp_path: Path) -> None:
    run_folder(tmp_path / "runs" / "one", steps=3)
    eval_folder(tmp_path / "runs" / "evaluation")
    library = Library([tmp_path / "runs"])
    blocks = blocks_of(exported(library, steps={"1", "3"}, tasks=1))
    places = blocks["data-main"]["places"]
    assert list(places["runs/one"]) == ["1", "3"]
    assert list(places["runs/evaluation"]) == ["base", "adapters"]
    assert [
        len(blocks[block]["facts"]) for by_team in places.values() for block in by_team.values()
    ] == [1] * 4
    assert len(blocks["data-main"]["answers"]["runs/one"]["metrics"]["rows"]) == 3
    with pytest.raises(ConfigError, match="no run has step 7"):
        exported(library, steps={"1", "7"})


def test_the_command_writes_the_file_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_folder(tmp_path / "runs" / "one")
    target = tmp_path / "run.html"
    assert view.main([str(run), "--export", str(target), "--steps", "2"]) == 0
    assert capsys.readouterr().out == f"{target}: {target.stat().st_size / 1e6:.1f} MB\n"
    assert target.read_text().startswith("<!doctype html>")
    assert view.main([str(run), "--export", str(tmp_path / "no" / "run.html")]) == 2
    assert "choose another file" in capsys.readouterr().err
