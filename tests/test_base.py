"""The AEC kernel: order of play, rewards, ends, seeds, misuse, and exact copies."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.utils import wrappers

from pettingllms.envs import check
from pettingllms.envs.base import Outcome, TextEnv, stream_seed
from pettingllms.errors import (
    CloneError,
    ConfigError,
    DatasetError,
    SandboxUnavailable,
    UnknownNameError,
)
from tests import delegating_env, toy_env

REPLIES = ("5", "3", "higher", "lower", "right", "gibberish", "")


def started(secret=3, **kwargs):
    env = toy_env.env(**kwargs)
    env.reset(seed=1, options={"secret": secret})
    return env


def plain(snapshot):
    """A snapshot's content in a form that compares by value."""
    return check.canonical(snapshot)


# Order of play and observations.


def test_agents_act_in_the_order_of_roles_once_a_turn():
    env = started(max_turns=2)
    seen = []
    for _ in range(4):
        seen.append((env.turn, env.agent_selection))
        env.step("")
    assert seen == [(0, "guesser_0"), (0, "checker_0"), (1, "guesser_0"), (1, "checker_0")]


def test_the_game_names_the_first_agent_and_each_next_one():
    env = delegating_env.env()
    env.reset(seed=1)
    seen = []
    for reply in ("ask.", "1", "12", "12", "ask.", "12", "end"):
        seen.append((env.agent_selection, env.turn, env.observe("helper_0")["turn"]))
        env.step(reply)
    assert seen == [
        ("lead_0", 0, 0),
        ("helper_0", 0, 0),
        ("helper_0", 1, 1),
        ("lead_0", 1, 1),
        ("lead_0", 2, 2),
        ("helper_0", 2, 2),
        ("lead_0", 3, 3),
    ]
    assert [(record.agent, record.turn) for record in env.transcript] == [s[:2] for s in seen]
    assert all(env.terminations.values())
    assert not any(env.truncations.values())


def test_an_episode_is_truncated_when_the_next_agent_has_used_its_turns():
    env = delegating_env.env(max_turns=2)
    env.reset(seed=1)
    for reply in ("ask.", "1"):
        env.step(reply)
        assert not any(env.truncations.values())
    twin = env.clone()
    env.step("1")  # the helper would act for the third time
    assert all(env.truncations.values())
    assert (env.agent_selection, env.turn) == ("helper_0", 2)
    twin.step("12")  # the lead has a turn left
    assert not any(twin.truncations.values())
    twin.step("12")
    assert all(twin.truncations.values())


def test_a_next_agent_that_does_not_exist_is_named_and_costs_no_step():
    class Lost(toy_env.raw_env):
        def _next_agent(self, state, agent):
            return "guesser_0" if agent is None else "cheker_0"

    env = Lost()
    env.reset(seed=1)
    before = plain(env.snapshot())
    with pytest.raises(UnknownNameError, match="no agent 'cheker_0'; did you mean 'checker_0'"):
        env.step("5")
    assert plain(env.snapshot()) == before


def test_agents_of_one_role_are_numbered():
    class Pair(toy_env.raw_env):
        def __init__(self):
            TextEnv.__init__(self, roles=("solver", "judge", "solver"))

    assert Pair().possible_agents == ["solver_0", "judge_0", "solver_1"]


def test_the_second_role_sees_the_message_of_this_turn():
    env = started()
    assert "nothing" in env.observe("checker_0")["text"]
    env.step("7")
    assert env.last()[0] == {"text": "The secret is 3. Said so far: 7.", "turn": 0}


def test_every_agent_can_be_observed_at_any_time_without_effect():
    env = started(max_turns=1)
    while True:
        before = plain(env.snapshot())
        first = [env.observe(agent) for agent in env.possible_agents]
        assert [env.observe(agent) for agent in env.possible_agents] == first
        assert plain(env.snapshot()) == before
        for agent, observation in zip(env.possible_agents, first, strict=True):
            assert observation in env.observation_space(agent)
        if not env.agents:
            break
        env.step(None if env.truncations[env.agent_selection] else "")


def test_a_caller_cannot_change_what_is_observed():
    env = started()
    env.observe("guesser_0")["text"] = "changed"
    assert "Guess" in env.observe("guesser_0")["text"]


def test_extra_observations_are_declared_and_filled():
    class Counting(toy_env.raw_env):
        def __init__(self):
            TextEnv.__init__(self, roles=("guesser",), extra_spaces={"said": Discrete(9)})
            self.digits = {}

        def _extras(self, state, agent):
            return {"said": len(state.said)}

    env = Counting()
    env.reset(seed=0)
    observation = env.observe("guesser_0")
    assert observation["said"] == 0
    assert observation in env.observation_space("guesser_0")


# Rewards and infos.


def test_reward_is_alpha_times_team_plus_local_for_the_actor_only():
    env = started(alpha=0.25)
    env.step("3")
    assert env.rewards == {"guesser_0": 0.25 * 1.0 + 0.5, "checker_0": 0.0}
    info = env.infos["guesser_0"]
    assert (info["team_reward"], info["local_reward"], info["turn"]) == (1.0, 0.5, 0)
    assert info["guess"] == 3
    env.step("lower")
    assert env.rewards == {"guesser_0": 0.0, "checker_0": 0.25}


def test_last_gives_the_reward_since_the_agents_own_last_act():
    env = started()
    env.step("3")
    env.step("lower")
    assert env.last()[1] == 1.5
    env.step("4")
    assert env._cumulative_rewards == {"guesser_0": 0.5, "checker_0": 1.0}


def test_success_is_told_to_all_and_is_not_the_end():
    env = started()
    env.step("3")
    assert [info["success"] for info in env.infos.values()] == [True, True]
    assert not any(env.terminations.values())
    env.step("lower")
    env.step("4")
    assert [info["success"] for info in env.infos.values()] == [False, False]


def test_the_environment_may_end_without_success():
    env = started()
    env.step("7")
    env.step("right")
    assert env.terminations == {"guesser_0": True, "checker_0": True}
    assert env.truncations == {"guesser_0": False, "checker_0": False}
    assert env.infos["guesser_0"]["success"] is False


def test_infos_of_earlier_steps_are_not_changed_later():
    env = started()
    env.step("7")
    kept, rewards = env.infos["guesser_0"], env.rewards
    env.step("lower")
    env.step("3")
    assert kept["success"] is False
    assert rewards == {"guesser_0": 0.5, "checker_0": 0.0}


def test_the_transcript_addresses_history_by_turn():
    env = started()
    for reply in ("7", "lower", "?"):
        env.step(reply)
    assert [(r.turn, r.agent, r.reply, r.local, r.parse_error) for r in env.transcript] == [
        (0, "guesser_0", "7", 0.5, None),
        (0, "checker_0", "lower", 0.5, None),
        (1, "guesser_0", "?", 0.0, "not a number from 0 to 9"),
    ]
    assert env.transcript[1].text == "The secret is 3. Said so far: 7."


def test_values_are_made_real_bools_and_floats():
    class Numpy(toy_env.raw_env):
        def _act(self, state, agent, text):
            one: Any = np.float32(1)
            true: Any = np.bool_(True)
            return Outcome(state, team=one, local=one, success=true, done=true)

    env = Numpy()
    env.reset(seed=1)
    env.step("")
    assert type(env.rewards["guesser_0"]) is float
    assert type(env.infos["checker_0"]["success"]) is bool
    assert type(env.terminations["checker_0"]) is bool


# Ends.


@pytest.mark.parametrize("limit", [{"max_turns": 3}, {"max_cycles": 3}, {}])
def test_truncation_comes_when_all_acted_max_turns_times(limit):
    env = started(**limit)
    turns = limit.popitem()[1] if limit else TextEnv.default_turns
    for step in range(2 * turns):
        assert not any(env.truncations.values()), step
        env.step("")
    assert env.truncations == {"guesser_0": True, "checker_0": True}
    assert not any(env.terminations.values())
    assert env.turn == turns


def test_an_end_at_the_last_step_is_a_termination():
    env = started(max_turns=1)
    env.step("3")
    env.step("right")
    assert all(env.terminations.values())
    assert not any(env.truncations.values())


def test_finished_agents_leave_one_by_one_and_terminal_rewards_reach_them():
    env = started(max_turns=1)
    env.step("3")
    env.step("lower")
    left = []
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        left.append((agent, reward, terminated, truncated))
        env.step(None)
    assert left == [("guesser_0", 1.5, False, True), ("checker_0", 1.0, False, True)]
    assert env.agents == []
    assert env.infos == {}


# Seeds.


def test_the_seed_decides_all_later_episodes():
    streams = []
    for _ in range(2):
        env = toy_env.env()
        env.reset(seed=7)
        seeds = [env.task_seed]
        for _ in range(4):
            env.reset()
            seeds.append(env.task_seed)
        streams.append(seeds)
    assert streams[0] == streams[1] == [stream_seed(7, k) for k in range(5)]
    assert len(set(streams[0])) == 5


def test_stream_seeds_are_the_same_on_every_machine():
    assert [stream_seed(3, k) for k in range(3)] == [3, 29016303001976, 13329867892659]


def test_an_episode_can_be_played_again_from_its_task_seed():
    env = toy_env.env()
    env.reset(seed=1)
    env.reset()
    before = env.observe("checker_0")
    env.reset(seed=env.task_seed)
    assert env.observe("checker_0") == before


def test_without_a_seed_ever_given_streams_differ():
    seeds = []
    for _ in range(3):
        env = toy_env.env()
        env.reset()
        seeds.append(env.task_seed)
    assert len(set(seeds)) == 3


def test_splits_and_seeds_have_generators_of_their_own():
    drawn = {
        (split, seed): toy_env.env(split=split)._random(seed).random()
        for split in ("train", "val", "test")
        for seed in range(3)
    }
    assert len(set(drawn.values())) == 9
    assert drawn["train", 0] == random.Random("toy_v0/train/0").random()


@pytest.mark.parametrize("seed", [np.int64(3), np.uint8(3), True])
def test_integers_of_other_types_are_seeds(seed):
    env = toy_env.env()
    env.reset(seed=seed)
    assert type(env.task_seed) is int


def test_bad_seeds_are_refused_and_leave_the_episode_alone():
    env = started()
    env.step("7")
    before = plain(env.snapshot())
    with pytest.raises(ConfigError, match="not be negative, got -1"):
        env.reset(seed=-1)
    with pytest.raises(TypeError):
        env.reset(seed=1.5)
    assert plain(env.snapshot()) == before


def test_a_reset_that_fails_leaves_the_episode_alone():
    class Empty(toy_env.raw_env):
        def _start(self, seed, options):
            if seed != 1:
                raise DatasetError("no such row")
            return super()._start(seed, options)

    env = Empty()
    env.reset(seed=1)
    env.step("7")
    before = plain(env.snapshot())
    with pytest.raises(DatasetError):
        env.reset(seed=2)
    with pytest.raises(DatasetError):
        env.reset()
    assert plain(env.snapshot()) == before


def test_a_reset_option_that_does_not_exist_is_refused_with_the_nearest():
    env = toy_env.env()
    env.reset(seed=0, options={"secret": 4, "options": 1})
    before = plain(env.snapshot())
    with pytest.raises(ConfigError, match="toy_v0 has no reset option 'sekret'; did you mean 'sec"):
        env.reset(seed=0, options={"sekret": 5})
    assert plain(env.snapshot()) == before


# Replies.


def test_an_unreadable_reply_changes_no_state():
    env = started()
    before = env.observe("checker_0")
    env.step("\ud800[[[")
    assert env.infos["guesser_0"]["parse_error"] == "not a number from 0 to 9"
    assert env.observe("checker_0") == before


def test_an_over_long_reply_is_a_counted_parse_error():
    env = started()
    env.step("3")
    env.step("x" * 1_000_001)
    info = env.infos["checker_0"]
    assert "1000001 characters" in info["parse_error"]
    assert (info["team_reward"], info["local_reward"], info["success"]) == (0.0, 0.0, True)
    assert env.agent_selection == "guesser_0"
    assert env.turn == 1


@pytest.mark.parametrize("action", [3, None, b"5", ["5"]])
def test_a_live_agents_action_must_be_text(action):
    env = started()
    with pytest.raises(TypeError, match="must be a str"):
        env.step(action)
    assert env.agent_selection == "guesser_0"


def test_a_failing_sandbox_costs_no_step():
    class Broken(toy_env.raw_env):
        def _act(self, state, agent, text):
            raise SandboxUnavailable("no worker")

    env = Broken()
    env.reset(seed=1)
    before = plain(env.snapshot())
    with pytest.raises(SandboxUnavailable):
        env.step("5")
    assert plain(env.snapshot()) == before


# Misuse.


@pytest.mark.parametrize(
    "use",
    [
        lambda env: env.step("5"),
        lambda env: env.last(),
        lambda env: env.observe("guesser_0"),
        lambda env: list(env.agent_iter()),
        lambda env: env.num_agents,
        lambda env: env.rewards,
        lambda env: env.render(),
    ],
)
def test_use_before_reset_is_refused(use):
    with pytest.raises(AttributeError, match=r"call reset\(\) first"):
        use(toy_env.env(render_mode="ansi"))


def test_a_misspelt_attribute_is_named():
    with pytest.raises(AttributeError, match="'raw_env' object has no attribute 'agent'"):
        toy_env.env().agent  # noqa: B018 - the access is the test


def test_step_after_the_end_is_refused():
    env = started(max_turns=1)
    env.step("")
    env.step("")
    with pytest.raises(ValueError, match="only valid action is None"):
        env.step("5")
    env.step(None)
    env.step(None)
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.step(None)


@pytest.mark.parametrize("method", ["observe", "observation_space", "action_space"])
def test_an_unknown_agent_is_named_with_the_nearest(method):
    with pytest.raises(UnknownNameError, match="did you mean 'guesser_0'"):
        getattr(started(), method)("gueser_0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_turns": 0}, "at least 1, got 0"),
        ({"max_turns": 2, "max_cycles": 3}, "mean the same"),
        ({"alpha": float("nan")}, "alpha must be a finite number"),
        ({"split": "validation"}, "split must be one of train, val, test, got 'validation'"),
        ({"render_mode": "rgb_array"}, "render_mode must be one of ansi, human"),
    ],
)
def test_unusable_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        toy_env.env(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"roles": ()}, "at least one role"),
        ({"roles": ("tool_user",)}, "letters a-z, got 'tool_user'"),
        ({"roles": ("a",), "extra_spaces": {"action_mask": Discrete(2)}}, "reserved keys"),
    ],
)
def test_unusable_declarations_are_refused(arguments, message):
    class Declared(toy_env.raw_env):
        def __init__(self):
            TextEnv.__init__(self, **arguments)

    with pytest.raises(ConfigError, match=message):
        Declared()


def test_both_names_of_the_turn_limit_may_agree():
    assert toy_env.env(max_turns=3, max_cycles=3).max_turns == 3


@pytest.mark.parametrize(
    "method",
    [
        lambda env: env._start(0, {}),
        lambda env: env._text(None, "a"),
        lambda env: env._act(None, "a", ""),
        lambda env: env._view(None),
        lambda env: env._extras(None, "a"),
    ],
)
def test_what_a_subclass_must_write_is_not_implemented(method):
    class Empty(TextEnv):
        metadata = toy_env.raw_env.metadata

    with pytest.raises(NotImplementedError):
        method(Empty(roles=("a",)))


# Rendering.


def test_ansi_returns_the_view():
    env = started(render_mode="ansi")
    env.step("7")
    assert env.render() == "secret 3: 7"


def test_human_writes_the_view_to_stdout(capsys):
    env = started(render_mode="human")
    assert env.render() is None
    assert capsys.readouterr().out == "secret 3: \n"
    env.close()


def test_render_without_a_mode_warns_as_pettingzoo_does():
    with pytest.warns(UserWarning, match="without specifying any render mode"):
        assert started().render() is None


# Exact copies.

COPIES = {
    "clone": lambda env: env.clone(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda env: pickle.loads(pickle.dumps(env)),
    "snapshot": lambda env: restored(toy_env.env(), env.snapshot()),
    "pickled snapshot": lambda env: restored(
        toy_env.env(), pickle.loads(pickle.dumps(env.snapshot()))
    ),
}


def restored(env, snapshot):
    env.restore(snapshot)
    return env


def act(env, reply):
    finished = env.terminations[env.agent_selection] or env.truncations[env.agent_selection]
    env.step(None if finished else reply)


@pytest.mark.parametrize("way", COPIES)
@settings(max_examples=30, deadline=None)
@given(
    before=st.lists(st.sampled_from(REPLIES), max_size=10),
    after=st.lists(st.sampled_from(REPLIES), min_size=10, max_size=10),
)
def test_copies_play_on_exactly_and_apart(way, before, after):
    env = started()
    for reply in before:
        if env.agents:
            act(env, reply)
    point = check.view(env)
    twin = COPIES[way](env)
    assert check.difference([check.view(twin)], [point]) is None
    twin_views = check.continued(twin, iter(after * 2))
    assert check.difference([check.view(env)], [point]) is None
    assert check.difference(check.continued(env, iter(after * 2)), twin_views) is None
    env.reset()
    twin.reset()
    assert env.task_seed == twin.task_seed


def test_a_copy_before_reset_has_not_been_reset_either():
    fresh = toy_env.env()
    used = started()
    used.restore(fresh.snapshot())
    for env in (used, fresh.clone(), pickle.loads(pickle.dumps(fresh))):
        with pytest.raises(AttributeError, match=r"call reset\(\) first"):
            env.step("5")
        env.reset(seed=4)
        assert env.task_seed == 4


def test_a_snapshot_can_be_restored_many_times():
    env = started()
    env.step("7")
    snapshot = env.snapshot()
    content = plain(snapshot)
    for reply in ("lower", "right", "higher"):
        env.restore(snapshot)
        env.infos["guesser_0"]["scribble"] = True
        env.agents.append("ghost_0")
        env.agents.remove("ghost_0")
        env.step(reply)
        assert plain(snapshot) == content


def test_clones_work_inside_a_loop_over_agents():
    env = started()
    for agent in env.agent_iter(3):
        branches = [env.clone() for _ in range(3)]
        for branch, reply in zip(branches, ("1", "2", "higher"), strict=True):
            for _ in branch.agent_iter(1):
                branch.step(reply)
        assert env.agent_selection == agent
        env.restore(branches[2].snapshot())
    assert len(env.transcript) == 3


def test_copies_through_pettingzoos_wrappers():
    wrapped = wrappers.BaseWrapper(toy_env.env())
    wrapped.reset(seed=1)
    wrapped.step("7")
    snapshot = wrapped.snapshot()
    wrapped.step("lower")
    wrapped.restore(snapshot)
    assert wrapped.agent_selection == "checker_0"
    twin = copy.deepcopy(wrapped)
    twin.step("lower")
    assert (wrapped.agent_selection, twin.agent_selection) == ("checker_0", "guesser_0")


def test_clones_share_what_does_not_change():
    env = started()
    env.handle = object()
    twin = env.clone()
    assert twin.handle is env.handle
    assert twin.action_space("guesser_0") is env.action_space("guesser_0")


@pytest.mark.parametrize(
    ("there", "here", "difference"),
    [
        ({"max_turns": 2}, {"max_cycles": 3}, "max_turns was 2 there and is 3 here"),
        ({"alpha": 0.5}, {}, "alpha was 0.5 there and is 1.0 here"),
        ({"split": "val"}, {}, "split was 'val' there and is 'train' here"),
    ],
)
def test_a_snapshot_of_another_configuration_is_refused(there, here, difference):
    snapshot = started(**there).snapshot()
    env = started(**here)
    before = plain(env.snapshot())
    with pytest.raises(CloneError, match=f"{difference}; make the environment with the same arg"):
        env.restore(pickle.loads(pickle.dumps(snapshot)))
    assert plain(env.snapshot()) == before


def test_a_snapshot_of_another_environment_or_format_is_refused():
    class Other(toy_env.raw_env):
        metadata = {**toy_env.raw_env.metadata, "name": "other_v0"}  # noqa: RUF012

    snapshot = started().snapshot()
    with pytest.raises(CloneError, match="environment was 'toy_v0' there and is 'other_v0' here"):
        Other().restore(snapshot)
    with pytest.raises(CloneError, match="format was 0 there"):
        toy_env.env().restore(snapshot._replace(version=0))


def test_a_snapshot_fits_where_only_what_does_not_matter_differs():
    snapshot = started(max_turns=3).snapshot()
    other = toy_env.env(max_cycles=3, alpha=1, render_mode="ansi")
    other.restore(snapshot)
    assert other.observe("checker_0")["text"].startswith("The secret is 3")


def test_a_snapshot_is_small():
    env = started()
    for reply in ("7", "lower", "5", "lower"):
        env.step(reply)
    assert len(pickle.dumps(env.snapshot())) < 2000


def test_branch_gives_what_clone_and_step_give_and_leaves_the_original_alone():
    env = toy_env.env()
    env.reset(seed=3)
    replies = ["1", "2", "not a number", "x" * 1_000_001]
    before = env.snapshot()
    singles = []
    for reply in replies:
        twin = env.clone()
        twin.step(reply)
        singles.append(twin)
    branches = env.branch(replies)
    assert [branch.snapshot() for branch in branches] == [single.snapshot() for single in singles]
    assert len({id(branch) for branch in branches}) == len(replies)
    assert env.snapshot() == before


@pytest.mark.parametrize(
    ("name", "value"),
    [("_state", lambda self: 1), ("turn", 3), ("max_turns", 2), ("_record", None), ("rewards", {})],
)
def test_a_class_that_takes_a_name_of_the_kernel_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=rf"^Mine\.{name} is a name that TextEnv sets itself"):
        type("Mine", (toy_env.raw_env,), {name: value})
    with pytest.raises(ConfigError, match=rf"^Mine\.{name} "):
        type("Mine", (type("Mixin", (), {name: value}), toy_env.raw_env), {})


@pytest.mark.parametrize("name", ["turn", "transcript", "rewards", "_shown", "task_seed", "infos"])
def test_an_attribute_that_reset_would_overwrite_is_refused_by_name(name):
    env = toy_env.raw_env()
    setattr(env, name, "mine")
    with pytest.raises(ConfigError, match=rf"^raw_env\.{name} is a name that TextEnv sets itself"):
        env.reset(seed=0)


def test_an_attribute_that_the_constructor_would_overwrite_is_refused_and_others_stay():
    class Before(toy_env.raw_env):
        def __init__(self, **kwargs):
            self.alpha = 0.5
            super().__init__(**kwargs)

    class Notes(toy_env.raw_env):
        def __init__(self, **kwargs):
            self.notes = {"mine": 1}
            super().__init__(**kwargs)

    with pytest.raises(ConfigError, match=r"^Before\.alpha is a name"):
        Before()
    env = Notes()
    env.clone().reset(seed=1)
    env.reset(seed=0)
    env.step("reply")
    assert env.clone().notes == env.notes == {"mine": 1}
