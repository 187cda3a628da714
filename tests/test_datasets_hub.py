from __future__ import annotations

import gzip
import json
import socket

import huggingface_hub.constants
import pytest
from huggingface_hub.utils._paths import filter_repo_objects

from pettingllms.data import hub
from pettingllms.data.board_files import LEVEL_FILES
from pettingllms.data.catalog import CATALOG
from pettingllms.data.coding_schemas import TASKS, load_tasks
from pettingllms.data.math import PROBLEMS, load_problems
from pettingllms.data.question_schemas import QUESTIONS
from pettingllms.data.sudoku import PUZZLE_FILES
from pettingllms.errors import DatasetError, UnknownNameError
from tests.datasets_fixtures import rows, write, write_parquet

SUM = {"question": "What is 1 + 1?", "answer": "2"}
OTHER = {"question": "What is 2 + 2?", "answer": "4"}


def questions(count, start=0):
    return [
        {"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(start, start + count)
    ]


def asked(loaded):
    return {problem.question for problem in loaded.records}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of the hub, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    def put(repository, files, revision="main"):
        folder = tmp_path / f"datasets--{repository.replace('/', '--')}"
        for name, records in files.items():
            path = folder / "snapshots" / "a1b2c3" / name
            if name.endswith(".parquet"):
                write_parquet(path, records)
            else:
                write(path, *records)
        (folder / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
        (folder / "refs" / revision).write_text("a1b2c3")

    return put


def test_a_hub_that_never_answers_is_given_up_and_the_cache_is_read(cache, monkeypatch):
    monkeypatch.setattr("pettingllms.data.hub.HUB_SECONDS", 0.5)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        with pytest.raises(DatasetError, match=rf"{url} did not answer in 0\.5 s\. Without a net"):
            load_problems("math500", "test")
        cache("somebody/set", {"test.jsonl": [SUM]})
        assert asked(load_problems("somebody/set", "test")) == {SUM["question"]}


def test_a_name_is_read_from_the_cache_without_a_network(cache):
    cache(
        "openai/gsm8k",
        {
            "main/train-00000-of-00001.parquet": rows("gsm8k"),
            "main/test-00000-of-00001.parquet": [{"question": "5?", "answer": "#### 5"}],
            "socratic/test-00000-of-00001.parquet": [{"question": "no", "answer": "#### 0"}],
        },
    )
    (problem,) = load_problems("gsm8k", "test").records
    assert (problem.question, problem.answers) == ("5?", ("5",))
    assert "openai/gsm8k@a1b2c3" in load_problems("gsm8k").report.source
    assert load_problems("gsm8k").report.kept == 3


def test_the_schema_of_a_name_is_held_to(cache):
    cache("openai/gsm8k", {"main/test-0.parquet": [{"question": "5?", "answer": "5"}]})
    with pytest.raises(
        DatasetError, match=r"gsm8k/main/test-0\.parquet:1: field 'answer' has no '####'"
    ):
        load_problems("gsm8k", "test")


def test_a_published_training_file_can_be_a_test_split_here(cache):
    cache(
        "Hothan/OlympiadBench",
        {"OE_TO_maths_en_COMP/train/0000.parquet": rows("olympiadbench")[:2]},
        "refs/convert/parquet",
    )
    assert len(load_problems("olympiadbench", "test").records) == 2
    with pytest.raises(DatasetError, match="olympiadbench has no split 'train'; it has test"):
        load_problems("olympiadbench", "train")


def test_a_hub_id_needs_a_folder_where_it_has_several_configurations(cache):
    cache("us/two", {"one/test.jsonl": [SUM], "two/test.jsonl": [OTHER], "README.txt": ["#"]})
    with pytest.raises(DatasetError, match="choose us/two:one or us/two:two"):
        load_problems("us/two")
    assert asked(load_problems("us/two:two", "test")) == {OTHER["question"]}
    assert asked(load_problems("us/two@main:one", "test")) == {SUM["question"]}
    assert asked(load_problems("us/two:two/test.jsonl")) == {OTHER["question"]}
    with pytest.raises(DatasetError, match=r"no files of rows \(.*\) in three;"):
        load_problems("us/two:three")


def test_a_hub_id_is_read_in_the_schema_that_its_rows_show(cache):
    cache("us/apps", {"train.jsonl": rows("apps"), "data/test-0.parquet": rows("apps")})
    assert len(load_tasks("us/apps", "test").records) == 4


@pytest.mark.parametrize("source", ["gsm8k", "us/nothing"])
def test_without_network_and_cache_the_error_says_what_to_do(cache, source):
    with pytest.raises(DatasetError, match=r"cannot download .* Without a network: fetch it"):
        load_problems(source)


def test_files_that_have_moved_are_named(cache):
    cache("openai/gsm8k", {"elsewhere/test.jsonl": [SUM]})
    with pytest.raises(DatasetError, match=r"has no file like main/train-\*\.parquet"):
        load_problems("gsm8k")


def test_a_name_goes_before_a_folder_and_a_path_before_an_id(tmp_path, monkeypatch, cache):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "us" / "mine" / "test.jsonl", SUM)
    assert asked(load_problems("us/mine")) == {SUM["question"]}
    write(tmp_path / "gsm8k" / "test.jsonl", SUM)
    with pytest.raises(DatasetError, match="cannot download gsm8k"):
        load_problems("gsm8k")
    assert asked(load_problems("./gsm8k")) == {SUM["question"]}
    with pytest.raises(UnknownNameError, match="no data set, hub id"):
        load_problems("nothing")


def test_fetch_writes_the_files_by_split_so_that_the_folder_reads_like_the_name(cache, tmp_path):
    cache("Maxwell-Jia/AIME_2024", {"aime_2024_problems.parquet": [
        {**row, "Answer": str(row["Answer"])} for row in rows("aime24")
    ]})  # fmt: skip
    out = tmp_path / "out"
    (file,) = hub.fetch("aime24", out)
    assert file == out / "test" / "test-aime_2024_problems.parquet"
    assert load_problems(out, "test").records == load_problems("aime24", "test").records
    assert [path.name for path in hub.fetch("aime24", None)] == ["aime_2024_problems.parquet"]


def test_fetched_files_of_one_name_in_several_folders_all_stay(cache, tmp_path):
    subjects = {
        f"{subject}/{split}-00000-of-00001.parquet": [
            {"problem": f"A {split} problem of {subject}?", "solution": r"\boxed{1}"}
        ]
        for subject in ("algebra", "geometry")
        for split in ("train", "test")
    }
    cache("EleutherAI/hendrycks_math", subjects)
    out = tmp_path / "out"
    files = hub.fetch("hendrycks_math", out)
    assert len({*files}) == 4
    assert files[0] == out / "train" / "train-algebra-train-00000-of-00001.parquet"
    for split in ("train", "test"):
        assert asked(load_problems(out, split)) == {
            f"A {split} problem of {subject}?" for subject in ("algebra", "geometry")
        }


def test_a_fetched_file_is_of_the_split_that_it_was_fetched_for_whatever_its_own_name_says(
    cache, tmp_path
):
    names = {
        f"musique/{name}.jsonl": [
            {"id": f"{name}_0", "question": f"Who of {name}?", "golden_answers": [name]}
        ]
        for name in ("train", "dev")
    }
    entry = CATALOG["musique"]
    cache(entry.repository, names)
    out = tmp_path / "out"
    files = hub.fetch("musique", out)
    assert [str(file.relative_to(out)) for file in files] == [
        "train/train-musique-train.jsonl",
        "test/test-musique-dev.jsonl",
    ]
    here = hub.local(out, (".jsonl",))
    assert [file.split for file in here.files] == ["test", "train"]


def test_a_hub_ids_files_are_downloaded_compressed_or_in_capitals_too(tmp_path, monkeypatch):
    files = {
        "a.jsonl": SUM,
        "b.jsonl.gz": OTHER,
        "sub/c.json.gz": questions(1, 7)[0],
        "D.JSONL": questions(1, 8)[0],
        "image.png.gz": {},
        "README.md": {},
    }

    def download(repository, *, allow_patterns, **_):
        for name in filter_repo_objects(files, allow_patterns=allow_patterns):
            path = tmp_path / "a1b2c3" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            line = json.dumps(files[name]).encode()
            path.write_bytes(gzip.compress(line) if name.endswith(".gz") else line)
        return str(tmp_path / "a1b2c3")

    monkeypatch.setattr("pettingllms.data.hub.hub_answers", lambda: True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert asked(load_problems("us/set:sub")) == {"What is 7 + 1?"}
    assert asked(load_problems("us/set:b.jsonl.gz")) == {OTHER["question"]}
    assert len(asked(load_problems("us/set"))) == 4
    assert not any(tmp_path.rglob("image.png.gz"))


def test_every_entry_of_the_catalogue_can_be_read_somewhere():
    kinds = {kind.name: kind for kind in (TASKS, PROBLEMS, QUESTIONS, PUZZLE_FILES, LEVEL_FILES)}
    for name, entry in CATALOG.items():
        assert entry.schema in kinds[entry.kind].schemas, name
        assert entry.page.startswith("https://")
        assert set(entry.files) <= {"train", "val", "test"}
        assert entry.about
        assert entry.rows
