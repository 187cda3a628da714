from __future__ import annotations

import json

import pytest

from pettingllms.errors import ConfigError, UnknownNameError
from pettingllms.policies.mapping import parse_policies

ROLES = ("coder", "tester")


def test_shared_gives_every_role_the_same_policy():
    assert parse_policies("shared", ROLES) == {"coder": "shared", "tester": "shared"}


def test_per_role_names_policies_after_roles():
    assert parse_policies("per-role", ROLES) == {"coder": "coder", "tester": "tester"}


def test_pairs_keep_the_order_of_the_roles():
    assert list(parse_policies("tester=b, coder=a", ROLES).items()) == [
        ("coder", "a"),
        ("tester", "b"),
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.yaml", "coder: a\ntester: b\n"),
        ("p.yml", "{coder: a, tester: b}"),
        ("p.json", json.dumps({"tester": "b", "coder": "a"})),
    ],
)
def test_a_file_holds_the_same_mapping(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert parse_policies(str(tmp_path / name), ROLES) == {"coder": "a", "tester": "b"}


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ("per_role", ConfigError, "did you mean 'per-role'"),
        ("codre=a,tester=b", UnknownNameError, "did you mean 'coder'"),
        ("coder=a", ConfigError, "no policy for 'tester'"),
        ("coder=a,coder=b,tester=c", ConfigError, "'coder' is named twice"),
        ("coder=a,tester", ConfigError, "'tester' is not role=policy"),
        ("coder=,tester=b", ConfigError, "'coder=' is not role=policy"),
        ("coder=a.b,tester=b", ConfigError, "'a.b' must start with a letter"),
        ("coder=../a,tester=b", ConfigError, "'../a' must start with a letter"),
        ("coder=1,tester=b", ConfigError, "'1' must start with a letter"),
    ],
)
def test_a_wrong_spelling_says_what_to_write(spec, error, words):
    with pytest.raises(error, match=words):
        parse_policies(spec, ROLES)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("p.yaml", "- coder\n", "must map role names to policy names"),
        ("p.yaml", "coder: 3\ntester: b", "must map role names to policy names"),
        ("p.json", "{", "cannot be parsed"),
        ("p.yaml", "a: [", "cannot be parsed"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        parse_policies(str(tmp_path / name), ROLES)
    assert name in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read"):
        parse_policies("nowhere.yaml", ROLES)
