"""Corpora and their indexes on disk: bad rows, one build for all processes, mapped and equal to memory."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from pettingllms.data import retrieval
from pettingllms.data.retrieval import Index, Passage, open_corpus, open_passages
from pettingllms.errors import DatasetError, UnknownNameError

ROWS = (
    {"id": "0", "contents": '"Eiffel Tower"\nIt stands in Paris.'},
    {"id": "1", "title": "Café", "text": "Ünïcode, \0 and \U0001f600 stay."},
    {"id": "2", "title": "No text"},
    {"id": "3", "text": "  "},
    {"id": "4", "text": 7},
    {"id": "5", "contents": '"A title alone"'},
    {"id": "6", "text": "no title"},
)
PASSAGES = [
    Passage("It stands in Paris.", "Eiffel Tower"),
    Passage("Ünïcode, \0 and \U0001f600 stay.", "Café"),
    Passage("A title alone", "A title alone"),
    Passage("no title"),
]


def written(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def folders(cache):
    return [path for path in cache.iterdir() if path.is_dir()]


def test_rows_without_text_are_counted_with_the_first_number_and_the_rest_is_used(tmp_path, caplog):
    corpus = written(tmp_path / "c.jsonl", ROWS)
    corpus.write_text(corpus.read_text() + "{broken\n")
    with caplog.at_level(logging.WARNING):
        index = open_corpus(corpus, tmp_path / "cache")
    assert [index[n] for n in range(len(index))] == PASSAGES
    assert f"4 passages, 4 without text left out, first at {corpus}:3" in caplog.text
    assert len(folders(tmp_path / "cache")) == 1


def test_a_corpus_without_any_text_says_what_was_looked_for(tmp_path):
    corpus = written(tmp_path / "c.jsonl", [{"body": "x"}, {"text": ""}])
    with pytest.raises(DatasetError, match="none of its 2 rows has text in one of the fields text"):
        open_corpus(corpus, tmp_path / "cache")
    with pytest.raises(DatasetError, match="no passage with a word"):
        open_corpus(written(tmp_path / "d.jsonl", [{"text": "..."}]), tmp_path / "cache")
    assert folders(tmp_path / "cache") == []


def test_a_corpus_that_does_not_exist_is_refused_by_name(tmp_path):
    with pytest.raises(DatasetError, match="there is no such file"):
        open_corpus(tmp_path / "missing.jsonl", tmp_path)
    with pytest.raises(UnknownNameError, match="no data set, hub id"):
        open_corpus("wikipediaa", tmp_path)


def test_a_mapped_index_finds_what_one_in_memory_finds(tmp_path):
    passages = [Passage(f"w{n % 7} w{n % 11} w{n}", f"t{n % 13}") for n in range(500)]
    mapped, held = open_passages("some", passages, tmp_path), Index.of(passages)
    for query in ("w1", "w3 w5", "t4 w2 w2", "w499", "unknown", "w0 w1 w2 w3 w4 w5 w6"):
        assert mapped.search(query, 9) == held.search(query, 9)
        assert mapped.find(query, 9) == held.find(query, 9)
    assert [mapped[n] for n in (0, 3, 499)] == [passages[n] for n in (0, 3, 499)]
    with pytest.raises(IndexError):
        mapped[500]


def test_an_index_is_built_once_and_again_only_where_the_corpus_has_changed(tmp_path, monkeypatch):
    built = []
    build = retrieval._build

    def counting(*arguments):
        built.append(arguments)
        build(*arguments)

    monkeypatch.setattr(retrieval, "_build", counting)
    corpus, cache = written(tmp_path / "c.jsonl", ROWS), tmp_path / "cache"
    for _ in range(3):
        open_corpus(corpus, cache)
    assert len(built) == 1
    written(corpus, (*ROWS, {"text": "one more"}))
    assert len(open_corpus(corpus, cache)) == 5
    assert len(built) == 2


@pytest.mark.slow
def test_of_several_processes_one_builds_and_all_find_the_same(tmp_path):
    corpus = written(tmp_path / "c.jsonl", [{"text": f"word{n} crab"} for n in range(2000)])
    code = (
        "import logging, sys\nfrom pathlib import Path\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s')\n"
        "from pettingllms.data.retrieval import open_corpus\n"
        f"index = open_corpus({str(corpus)!r}, Path({str(tmp_path / 'cache')!r}))\n"
        "print(index.search('word7 crab', 3))"
    )
    command = [sys.executable, "-c", code]
    env = {"PYTHONPATH": ":".join(sys.path)}
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) for _ in range(4)
    ]
    outputs = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert sum("index built" in text for text in outputs) == 1
    assert len({text.strip().rpartition("\n")[2] for text in outputs}) == 1
    assert len(folders(tmp_path / "cache")) == 1


def test_a_build_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def fails(*_):
        raise KeyboardInterrupt

    corpus, cache = written(tmp_path / "c.jsonl", ROWS), tmp_path / "cache"
    monkeypatch.setattr(Index, "save", fails)
    with pytest.raises(KeyboardInterrupt):
        open_corpus(corpus, cache)
    assert folders(cache) == []
    monkeypatch.undo()
    assert len(open_corpus(corpus, cache)) == 4


def test_a_cache_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    corpus = written(tmp_path / "c.jsonl", ROWS)
    with pytest.raises(
        DatasetError, match=r"cannot be kept in .*file.*; give another folder: cache"
    ):
        open_corpus(corpus, tmp_path / "file")
