"""Search in passages: the golden table, exactness, ties, and queries of all kinds."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from pettingllms.data.retrieval import MAX_WORDS, Index, Passage, words_of

GOLDEN = json.loads((Path(__file__).parent / "golden/search.json").read_text())
BM25 = next(case for case in GOLDEN["cases"] if case["name"].startswith("BM25"))


def index_of(*texts):
    return Index.of([Passage(text) for text in texts])


def numbers(index, query, k):
    return [hit.number for hit in index.search(query, k)]


@pytest.fixture(scope="module")
def large():
    """Three thousand passages, of words as frequent as their rank says."""
    rng = np.random.default_rng(3)
    rows = np.minimum(rng.zipf(1.3, (3000, 25)), 400)
    return index_of(*(" ".join(f"w{word}" for word in row) for row in rows))


@pytest.mark.parametrize("query", BM25["expected"])
def test_scores_and_order_are_those_of_the_golden_table(query):
    hits = index_of(*BM25["inputs"]["corpus"]).search(query, 3)
    expected = BM25["expected"][query]
    assert [hit.number for hit in hits] == [number for number, _ in expected]
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], abs=1e-6)


def test_the_best_passages_are_those_with_the_greatest_sums_of_their_words(large):
    rng = random.Random(1)
    for _ in range(20):
        words = [f"w{min(400, int(rng.paretovariate(0.5)))}" for _ in range(rng.randint(1, 9))]
        sums = dict.fromkeys(range(3000), 0.0)
        for word in words:
            for hit in large.search(word, 3000):
                sums[hit.number] += hit.score
        order = sorted((n for n in sums if sums[n]), key=lambda n: (-sums[n], n))
        assert numbers(large, " ".join(words), 7) == order[:7]


@pytest.mark.slow
def test_fewer_passages_are_the_beginning_of_more(large):
    rng = random.Random(5)
    for _ in range(60):
        query = " ".join(rng.sample(large[rng.randrange(3000)].text.split(), 6))
        most = numbers(large, query, 40)
        assert [numbers(large, query, k) for k in range(1, 40)] == [most[:k] for k in range(1, 40)]


def test_of_equal_scores_the_lower_number_comes_first():
    index = index_of("x one", "owl friend", "owl friend", "friend owl", "x two")
    assert numbers(index, "friend owl", 2) == [1, 2]
    assert numbers(index, "owl", 5) == [1, 2, 3]


def test_passages_that_share_no_word_are_not_found():
    index = index_of("owl friend crab", "mole number 5")
    assert index.find("crab", 5) == [Passage("owl friend crab")]
    assert index.find("zebra", 5) == index.find("", 5) == index.find("crab", 0) == []


def test_titles_are_searched():
    index = Index.of([Passage("It is tall.", "Eiffel Tower"), Passage("It is short.")])
    assert [passage.title for passage in index.find("tower", 5)] == ["Eiffel Tower"]


@pytest.mark.parametrize(
    ("query", "plain"),
    [
        ('crab" OR (number', "crab or number"),
        ("+crab -number title:x*", "crab number title x"),
        ("(((((crab", "crab"),
        ("crab\\", "crab"),
        ("/.*/ crab~2 ^9", "crab 2 9"),
        ("crab\0number", "crab number"),
        ("\udcffcrab\u202e", "crab"),
        ("CRÁB crab", "cráb crab"),
        ("*", ""),
        ("[crab TO number]", "crab to number"),
    ],
    ids=range(10),
)
def test_a_hostile_query_is_its_words(query, plain):
    index = index_of("owl friend crab", "crab number 42", "or to title x 2 9")
    assert words_of(query) == plain.split()
    assert index.search(query, 5) == index.search(plain, 5)


def test_only_the_first_words_of_a_huge_query_count(large):
    words = " ".join(f"w{n % 400}" for n in range(100_000))
    assert numbers(large, words, 5) == numbers(large, " ".join(words.split()[:MAX_WORDS]), 5)


def test_passages_without_any_word_are_an_index_that_finds_nothing():
    assert index_of("...", "!").find("...", 3) == []
    assert index_of("...", "crab").find("crab", 3) == [Passage("crab")]
