from __future__ import annotations

import pytest

from pettingllms.errors import ConfigError, UnknownNameError
from pettingllms.names import parse_policies, trained_policies

ROLES = ("coder", "tester")
PLAYERS = {"coder": "a", "tester": "b", "judge": "b"}


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


# Which policies learn


@pytest.mark.parametrize(
    ("roles", "policies"),
    [
        (None, ("a", "b")),
        ("coder", ("a",)),
        ("tester,judge", ("b",)),
        ("judge, coder ,tester", ("a", "b")),
    ],
)
def test_the_policies_of_the_trained_roles_learn(roles, policies):
    assert trained_policies(roles, PLAYERS) == policies


def test_a_frozen_role_cannot_share_a_policy_that_learns():
    with pytest.raises(
        ConfigError, match="'judge' is not in train_roles but shares the policy 'b'"
    ):
        trained_policies("tester", PLAYERS)


@pytest.mark.parametrize("roles", ["codr", "coder,codr", ""])
def test_an_unknown_trained_role_is_refused(roles):
    with pytest.raises(ConfigError, match=r"unknown role '(codr)?'"):
        trained_policies(roles, PLAYERS)


def test_base_is_a_policy_that_is_never_trained():
    assert parse_policies("base", ROLES) == {"coder": "base", "tester": "base"}
    assert trained_policies(None, parse_policies("coder=a,tester=base", ROLES)) == ("a",)
    with pytest.raises(
        ConfigError, match="nothing to train: coder, tester played by the unmodified base"
    ):
        trained_policies(None, parse_policies("base", ROLES))
    with pytest.raises(
        ConfigError, match="nothing to train: tester played by the unmodified base model"
    ):
        trained_policies("tester", parse_policies("coder=a,tester=base", ROLES))
