"""Constructors say what they take: one signature, names that are checked, and an identity."""

from __future__ import annotations

import functools
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.envs import ENVIRONMENTS, TextEnv, arguments, load_env, make
from pettingllms.envs.aec import creator_of, takes_anything
from pettingllms.envs.arguments import DECLARED, TextArguments
from pettingllms.envs.boards import BoardArguments, BoardEnv
from pettingllms.envs.team_env import TeamArguments, TeamEnv
from pettingllms.errors import CloneError, ConfigError
from tests import toy_env

SHARED = {"max_turns", "max_cycles", "alpha", "share_team_reward"}
SHARED |= {"render_mode", "split", "show_thinking"}


class Sized(toy_env.raw_env):
    """A toy of a size.

    Args:
        size: how large it is,
            on two lines: with a colon.
        words: what is said.
    """

    def __init__(self, size: int, *, words: Any = ("a",), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size, self.words = size, words


class Fixed(Sized):
    """It takes nothing of its bases."""

    def __init__(self, color: str = "red") -> None:
        super().__init__(3)
        self.color = color


def test_a_signature_has_the_arguments_of_all_bases_but_those_that_a_subclass_passes():
    assert list(inspect.signature(Sized).parameters)[:2] == ["size", "words"]
    assert set(inspect.signature(Sized).parameters) == {"size", "words", *SHARED}
    assert list(inspect.signature(Fixed).parameters) == ["color"]
    assert {"roles", "extra_spaces"} <= set(inspect.signature(TextEnv).parameters)
    assert (Sized(4).size, Sized(size=5).size, Fixed("blue").color) == (4, 5, "blue")


@pytest.mark.parametrize(
    ("shared", "kind"),
    [(TextArguments, TextEnv), (TeamArguments, TeamEnv), (BoardArguments, BoardEnv)],
)
def test_what_editors_know_is_what_the_constructor_takes(shared, kind):
    assert shared.__annotations__.keys() == set(inspect.signature(kind).parameters) - DECLARED


@pytest.mark.parametrize("path", ENVIRONMENTS.own.values(), ids=ENVIRONMENTS.own)
def test_an_environment_documents_each_argument_and_hides_none(path):
    creator = creator_of(path)
    assert not takes_anything(creator)
    assert set(inspect.signature(creator).parameters) > SHARED
    assert [argument.name for argument in arguments.described(creator) if not argument.about] == []
    names = arguments.documented(creator.__doc__).keys() - {"kwargs"}
    assert names <= set(inspect.signature(creator).parameters)


def test_a_misspelt_argument_is_refused_with_the_nearest_and_the_list():
    with pytest.raises(
        ConfigError, match=r"^toy_v0 has no argument 'sizes'; did you mean 'size'\? It"
    ):
        Sized(sizes=4)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"has no argument 'size'; did you mean|known: color"):
        Fixed(size=4)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="has no argument 'roles'"):
        toy_env.env(roles=("a",))


def test_an_argument_that_is_missing_is_pythons_error():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'size'"):
        Sized()  # type: ignore[call-arg]


def test_every_argument_is_described_by_the_docstring_that_has_it():
    described = {argument.name: argument for argument in arguments.described(Sized)}
    assert described["size"].about == "how large it is, on two lines: with a colon."
    assert described["size"].default is inspect.Parameter.empty
    assert (described["words"].default, described["words"].kind) == (("a",), "Any")
    assert described["alpha"].about.startswith("weight of the team reward")


@pytest.mark.parametrize("name", ENVIRONMENTS.own)
def test_the_environments_misspelt_arguments_are_refused(name):
    with pytest.raises(ConfigError, match=f"^{name} has no argument 'alfa'; did you mean 'alpha'"):
        make(name, alfa=1)


@pytest.mark.parametrize(
    ("name", "there", "here", "difference"),
    [
        ("sokoban", {"agents": "single"}, {}, "agents was 'single' there and is 'team'"),
        ("sokoban", {"size": 7}, {}, "size was 7 there and is 6"),
        ("sokoban", {"pushes": (3, 8)}, {}, r"pushes was \(3, 8\)"),
        ("sudoku", {"size": 9}, {"size": 4}, "size was 9 there and is 4"),
        ("plan_path", {"tool": "python"}, {}, "tool was 'python'"),
        ("math", {"reasoners": 2}, {}, "reasoners was 2"),
        ("math", {"topology": "chain"}, {}, "topology"),
        ("coding", {"rewards": "sparse"}, {}, "rewards was 'sparse'"),
        ("coding", {"prompt": "compact"}, {}, "prompt was 'compact'"),
    ],
)
def test_a_snapshot_of_another_configuration_is_refused(name, there, here, difference):
    one, other = make(name, **there), make(name, **here)
    snapshots = [one.snapshot()]
    if name != "coding":  # whose tasks are made by programs that take a second
        one.reset(seed=1)
        snapshots.append(one.snapshot())
    for snapshot in snapshots:
        with pytest.raises(CloneError, match=difference):
            other.restore(pickle.loads(pickle.dumps(snapshot)))
        make(name, **there).restore(snapshot)


def test_a_snapshot_of_before_an_argument_was_added_is_restored():
    one = make("sokoban")
    one.reset(seed=0)
    snapshot = one.snapshot()
    older = snapshot._replace(
        env=tuple(argument for argument in snapshot.env if argument[1] is not None)
    )
    assert len(older.env) < len(snapshot.env)
    for same in (older, snapshot._replace(env=snapshot.env[::-1])):
        other = make("sokoban")
        other.restore(same)
        assert other.observe(other.agent_selection) == one.observe(one.agent_selection)
    # What had another default than None cannot be guessed.
    without = snapshot._replace(
        env=tuple(argument for argument in snapshot.env if argument[0] != "size")
    )
    with pytest.raises(CloneError, match="size was None there and is 6 here"):
        one.restore(without)


def test_where_programs_run_is_no_part_of_a_snapshot():
    one = make("plan_path", tool="python")
    one.reset(seed=1)
    make("plan_path", tool="python", sandbox="docker").restore(one.snapshot())


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_a_comparable_value_is_hashable_equal_to_itself_and_to_its_pickle(value):
    key = arguments.comparable(value)
    hash(key)
    assert key == arguments.comparable(pickle.loads(pickle.dumps(value)))
    assert pickle.loads(pickle.dumps(key)) == key


def test_values_that_mean_the_same_are_equal_and_others_are_not():
    same = arguments.comparable
    assert same([1, (2, 3)]) == same((1, [2, 3]))
    assert same(Path("a/b.jsonl")) == same("a/b.jsonl")
    assert same({"b": 1, "a": {3, 2}}) == same({"a": {2, 3}, "b": 1})
    assert same(object()) == same(object()) == "builtins.object"
    assert same(len) != same(max)
    assert same([1, 2]) != same([2, 1])
    assert same(functools.partial(len)) == "functools.partial"


def test_an_environment_of_a_file_says_what_it_takes_too():
    with pytest.raises(
        ConfigError, match="toy_v0 has no argument 'max_turn'; did you mean 'max_tu"
    ):
        load_env("tests.toy_env:env", max_turn=3)
