"""Published question sets are read by schema, from rows as their publishers write them, without a network."""

from __future__ import annotations

import json

import pytest

from pettingllms.cli.data import main as data
from pettingllms.data.catalog import CATALOG
from pettingllms.data.question_schemas import load_questions
from pettingllms.data.retrieval import Passage
from pettingllms.envs import search_v0
from pettingllms.errors import DatasetError
from tests.datasets_fixtures import write

PAGES = (Passage("Arles is a city. It is big.", "Arles"), Passage("Bonn lies in Arles.", "Bonn"))
HOTPOT = {
    "question": "In which city lies Bonn?",
    "answer": "Arles",
    "type": "bridge",
    "supporting_facts": {"title": ["Arles", "Bonn", "Arles"], "sent_id": [0, 0, 1]},
    "context": {
        "title": ["Arles", "Bonn"],
        "sentences": [["Arles is a city.", " It is big."], ["Bonn lies in Arles."]],
    },
}
PUBLISHED = {
    "hotpot_qa": {"id": "5a7a", **HOTPOT},
    "hotpot_qa, original": {
        "_id": "5a7a",
        **HOTPOT,
        "supporting_facts": [["Arles", 0], ["Bonn", 0]],
        "context": [
            ["Arles", ["Arles is a city.", " It is big."]],
            ["Bonn", ["Bonn lies in Arles."]],
        ],
    },
    "hotpot_qa, 2wiki on the hub": {
        "_id": "5a7a",
        **HOTPOT,
        "supporting_facts": json.dumps([["Arles", 0], ["Bonn", 0]]),
        "context": json.dumps(
            [["Arles", ["Arles is a city.", " It is big."]], ["Bonn", ["Bonn lies in Arles."]]]
        ),
    },
    "golden_answers, flashrag": {
        "id": "5a7a",
        "question": "In which city lies Bonn?",
        "golden_answers": ["Arles"],
        "metadata": {
            "type": "bridge",
            "supporting_facts": HOTPOT["supporting_facts"],
            "context": HOTPOT["context"],
        },
    },
}
PLAIN = {
    "golden_answers": {"id": "q1", "question": "who?", "golden_answers": ["Ann", "Ann", "Eva", "the"]},
    "golden_answers, search_r1": {
        "id": "q1", "question": "who?", "golden_answers": ["Ann", "Eva"], "data_source": "nq",
    },
    "nq_open": {"question": "who?", "answer": ["Ann", "Eva"]},
    "trivia_qa": {
        "question": "who?", "question_id": "q1", "answer": {"value": "Ann", "aliases": ["Ann", "Eva"]},
    },
    "popqa": {"id": "q1", "question": "who?", "possible_answers": '["Ann", "Eva"]', "s_pop": 3},
    "questions": {"id": "q1", "question": "who?", "accepted": ["Ann", "Eva"]},
}  # fmt: skip


def written(folder, *rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("row", PUBLISHED.values(), ids=PUBLISHED)
def test_sets_with_passages_name_those_that_a_question_takes(tmp_path, row):
    (question,) = load_questions(written(tmp_path, row)).records
    assert question.answers == ("Arles",)
    assert question.gold == ("Arles", "Bonn")
    assert question.context == PAGES
    assert (question.id, question.difficulty) == ("5a7a", "bridge")


def test_musique_counts_look_ups_and_leaves_out_what_nobody_can_answer(tmp_path):
    paragraphs = [
        {
            "idx": 0,
            "title": "Arles",
            "paragraph_text": "Arles is a city. It is big.",
            "is_supporting": True,
        },
        {
            "idx": 1,
            "title": "Bonn",
            "paragraph_text": "Bonn lies in Arles.",
            "is_supporting": False,
        },
    ]
    row = {"id": "2hop__1_2", "question": "who?", "answer": "Arles", "answer_aliases": ["Aa"]}
    rows = [
        {**row, "paragraphs": paragraphs, "answerable": answerable} for answerable in (True, False)
    ]
    rows[1]["id"] = "2hop__3_4"
    loaded = load_questions(written(tmp_path, *rows))
    (question,) = loaded.records
    assert question.answers == ("Arles", "Aa")
    assert question.gold == ("Arles",)
    assert question.context == PAGES
    assert question.difficulty == "2 hops"
    assert "answerable" in str(loaded.report)


@pytest.mark.parametrize("row", PLAIN.values(), ids=PLAIN)
def test_sets_without_passages_have_their_accepted_answers(tmp_path, row):
    (question,) = load_questions(written(tmp_path, row)).records
    assert (question.text, question.answers, question.gold) == ("who?", ("Ann", "Eva"), ())


def test_bamboogle_is_read(tmp_path):
    (question,) = load_questions(written(tmp_path, {"Question": "who?", "Answer": "Ann"})).records
    assert (question.text, question.answers) == ("who?", ("Ann",))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"question": "who?", "golden_answers": ["the", "!"]}, "no answer with a word that counts"),
        ({"question": "who?", "golden_answers": ["\u200b"]}, "no answer with a word that counts"),
        ({"question": " ", "golden_answers": ["Ann"]}, "is blank"),
        ({"question": "who?", "golden_answers": 7}, "must be an answer or a list of answers"),
        ({"question": "who?", "golden_answers": [None]}, "must hold text"),
        ({**HOTPOT, "context": 3}, "must be titles and their sentences"),
        ({**HOTPOT, "supporting_facts": "[[]]"}, "must be titles and sentences"),
        ({"question": "who?", "answer": "Arles", "paragraphs": ["A"]}, "must be a list of objects"),
        ({"question": "who?", "answer": "Arles", "paragraphs": ""}, "must be a list of objects"),
    ],
    ids=range(9),
)
def test_a_row_of_which_nothing_can_be_made_is_named_with_its_number(tmp_path, row, why):
    fine: dict = {"question": "Who?", "golden_answers": ["Ann"]}
    if "supporting_facts" in row:
        fine = {**HOTPOT, "id": "x"}
    elif "paragraphs" in row:
        fine = {**row, "paragraphs": []}
    loaded = load_questions(written(tmp_path, fine, row), skip_bad=True)
    assert len(loaded.records) == 1
    (refusal,) = loaded.report.refusals
    assert refusal.row == 2
    assert why in str(refusal)


TITLES = {"title": ["Arles"]}
MUSIQUE: dict = {"question": "who?", "answer": "Ann", "paragraphs": []}


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (MUSIQUE | {"answer_aliases": "Eva"}, "answer_aliases"),
        (MUSIQUE | {"answer_aliases": 5}, "answer_aliases"),
        ({"question": "who?", "answer": {"value": "Ann", "aliases": "Eva"}}, "answer.aliases"),
        ({"question": "who?", "answer": {"value": "Ann", "aliases": 5}}, "answer.aliases"),
        (HOTPOT | {"supporting_facts": ["Arles", "Bonn"]}, "supporting_facts"),
        (HOTPOT | {"context": {"title": "AB", "sentences": [["a"], ["b"]]}}, "context.title"),
        (HOTPOT | {"context": {"title": 5, "sentences": [["a"]]}}, "context.title"),
        (HOTPOT | {"context": TITLES | {"sentences": "a"}}, "context"),
        (HOTPOT | {"context": TITLES | {"sentences": []}}, "context"),
        (HOTPOT | {"context": ["AB", "CD"]}, "context"),
    ],
    ids=range(10),
)
def test_no_text_is_read_as_a_list_of_its_letters_and_no_list_is_cut(tmp_path, row, field):
    with pytest.raises(DatasetError, match=f"jsonl:1: field '{field}' "):
        load_questions(written(tmp_path, row))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(
    "fields", ['"answer": %s', '"accepted": ["a", %s]', '"golden_answers": [%s]']
)
def test_what_is_no_finite_number_is_no_answer(tmp_path, number, fields):
    lines = [f'{{"question": "who {n}?", {fields % n}}}' for n in ("7", number)]
    file = write(tmp_path / "a.jsonl", *lines)
    loaded = load_questions(file)
    assert [(r.row, r.fits) for r in loaded.report.refusals] == [(2, True)]
    assert "which is no answer" in str(loaded.report)


@pytest.mark.parametrize("answer", [["Ann"], {"value": "Ann"}], ids=["nq_open", "trivia_qa"])
def test_a_row_without_the_answer_of_its_schema_is_named(tmp_path, answer):
    rows = [{"question": "who?", "answer": answer}, {"question": "where?"}]
    with pytest.raises(DatasetError, match=r"jsonl:2: field 'answer' "):
        load_questions(written(tmp_path, *rows))


@pytest.mark.parametrize(
    "name", [name for name, entry in CATALOG.items() if entry.kind == "search"]
)
def test_the_catalog_knows_the_sets_by_name(name, capsys):
    assert data(["show", name]) == 0
    assert "question, golden_answers" in capsys.readouterr().out


@pytest.mark.parametrize("row", [*PUBLISHED.values(), *PLAIN.values()], ids=[*PUBLISHED, *PLAIN])
def test_the_kind_of_a_published_set_is_recognized(tmp_path, row, capsys):
    data(["check", str(written(tmp_path, row))])
    assert "kind search: " in capsys.readouterr().out


@pytest.mark.parametrize("corpus", [None, "pooled", "own"])
def test_the_passages_of_a_set_can_be_searched(tmp_path, corpus):
    other = {
        **HOTPOT,
        "id": "other",
        "question": "another",
        "context": {"title": ["C"], "sentences": [["C in Bonn."]]},
    }
    source = written(tmp_path, PUBLISHED["hotpot_qa"], other)
    env = search_v0.env(dataset=source, corpus=corpus, cache=tmp_path, topology="single", top=3)
    env.reset(seed=0)
    env.step("<search>bonn</search>")
    titles = {passage.title for passage in env._state.searches[0].found}
    assert titles == ({"Bonn"} if corpus == "own" else {"Bonn", "C"})
    assert env.infos["solver_0"]["recall"] == 0.5
    env.step("<search>what is big</search>")
    env.step("<answer>The A!</answer>")
    assert env.infos["solver_0"]["recall"] == 1.0
    assert not env.infos["solver_0"][
        "success"
    ]  # "a" is an article: no answer with a word that counts
    assert env.num_tasks == 2


def test_where_the_corpus_lacks_a_named_passage_one_with_the_answer_counts(tmp_path):
    (tmp_path / "c.jsonl").write_text(
        json.dumps({"title": "City of A", "text": "Ann lives in Arles"})
    )
    row = {"question": "where?", "answer": "Arles", "gold": ["Arles"]}
    env = search_v0.env(
        dataset=written(tmp_path, row),
        corpus=tmp_path / "c.jsonl",
        cache=tmp_path,
        topology="single",
    )
    env.reset(seed=0)
    env.step("<search>ann</search>")
    assert env.infos["solver_0"]["team_reward"] == 1.0


def test_a_set_with_a_bad_row_is_refused_where_the_environment_is_made(tmp_path):
    source = written(tmp_path, {"question": "who?", "golden_answers": 7})
    with pytest.raises(DatasetError, match=r"rows.jsonl:1: field 'golden_answers' must be"):
        search_v0.env(dataset=source, corpus="own")
