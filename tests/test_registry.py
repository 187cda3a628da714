"""Every registered environment exists, is found by its names, and keeps its promises.

The tests run over `ENVIRONMENTS`: a new line there is tested without a change here, except for
replies that the environment understands, which make `check_env` reach further.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import pickle
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test.api_test import api_test
from pettingzoo.test.max_cycles_test import max_cycles_test
from pettingzoo.test.render_test import render_test
from pettingzoo.test.seed_test import seed_test
from pettingzoo.test.state_test import test_state as check_state
from pettingzoo.test.state_test import test_state_space as check_state_space
from pettingzoo.utils.conversions import aec_to_parallel, turn_based_aec_to_parallel

from pettingllms.envs import ENVIRONMENTS, TextEnv, check_env, load_env, make
from pettingllms.envs.aec import MOVED
from pettingllms.envs.base import next_agent
from pettingllms.errors import ConfigError, UnknownNameError

REPLIES = {
    "coding": (
        "```python\nprint(1)\n```",
        "```python\nimport sys\nprint(sum(map(int, sys.stdin.read().split())))\n```",
        "```python\nwhile\n```",
        "```input\n1 2\n```\n```output\n3\n```",
        "```input\n[[1, 2]]\n```\n```output\n3\n```",
    ),
    "sokoban": ("[R, U, L, D]", "#### up up left", "[ D d3 R d4 ]", "DRDR"),
    "sudoku": (
        "[[1, 2, 3]]",
        "[ a1=2 b3=4 ]",
        "[[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,3,2,1]]",
        "[a1=9]",
    ),
    "math": (
        "```python\nprint(1)\n```",
        "\\boxed{1}",
        "```python\n1 / 0\n```",
        "so \\boxed{\\frac{1}{2}}",
    ),
    "search": (
        "<verify>no</verify>",
        "<search>owl7 old boss</search>",
        "<verify>yes</verify>",
        "<answer>owl7</answer>",
    ),
    "debugging": (
        "```python\nprint(1)\n```\n```debug\nDoes it print two for 1?\n```",
        "```input\n1 2\n```",
        "```report\nIt prints one.\n```",
        "```python\nprint(2)\n```",
    ),
    "signal": (
        "<say>dax</say>",
        "perhaps <say> Wug </say>",
        "<open>red</open>",
        "<say>dax</say><open>blue</open>",
        "<open>dax</open>",
    ),
    "crew": (
        "<call>clerk: Anna</call>",
        "<call>vet: Anna and Karl</call>",
        "<result>Anna works for Karl</result>",
        "<answer>Karl</answer>",
        "<call>baker: Anna</call>",
    ),
    "duet": ("red", " Blue. ", "red blue", "dax"),
    "read": ("Karl lives in Rome.", "Rome", "Paris.", "It is Rome or Paris"),
    "nested search": (
        "<task>the old boss of owl7</task>",
        "<search>owl7 old boss</search>",
        "<result>crab2</result>",
        "<answer>crab2</answer>",
    ),
    "plan_path": ("#### [R, D]", "[U, U, L]", "left, perhaps? [LEFT]", "#### D D", "[]", "[b2]"),
}

# PettingZoo's tests were written for arrays; with text these three cannot be avoided.
TEXT_WARNINGS = (
    "ignore:Observation is not a NumPy array:UserWarning",
    "ignore:Observation space for each agent probably should be:UserWarning",
    "ignore:Action space for each agent probably should be:UserWarning",
)
COUNTED = {
    **ENVIRONMENTS.own,
    **{name: f"benchmarks.environments.{name}_v0:env" for name in MOVED},
    "toy": "tests.toy_env:env",
}
DECIDED = {
    ENVIRONMENTS.own["search"],
    *(f"benchmarks.environments.{name}_v0:env" for name in ("crew", "debugging")),
}
"""Environments that decide who acts."""
CALLING = {"nested search": "tests.calling_envs:search"}
FACTORIES = {**COUNTED, **CALLING, "delegating": "tests.delegating_env:env"}
environments = pytest.mark.parametrize("name", ENVIRONMENTS.own)
factories = pytest.mark.parametrize("path", FACTORIES.values(), ids=FACTORIES)


def factory(path):
    return lambda **kwargs: load_env(path, **kwargs)


# The table.


@environments
def test_an_entry_point_can_be_imported(name):
    module_name, attribute = ENVIRONMENTS.own[name].split(":")
    module = importlib.import_module(module_name)
    assert callable(getattr(module, attribute))
    assert issubclass(module.raw_env, TextEnv)
    assert module.raw_env.metadata["name"] == module_name.rpartition(".")[2]


@environments
def test_an_environment_is_found_by_all_its_names(name):
    versioned = make(name).metadata["name"]
    ids = [name, versioned, versioned.replace("_v", "-v"), f"pettingllms/{name}"]
    ids.append(f"pettingllms/{versioned.replace('_v', '-v')}")
    kinds = {type(load_env(env_id)) for env_id in ids}
    kinds |= {type(pettingzoo.make("aec", env_id)) for env_id in ids[3:]}
    assert kinds == {type(make(name))}


@environments
def test_arguments_reach_an_environment(name):
    assert make(name, max_turns=3, split="test").split == "test"
    env = pettingzoo.make("aec", f"pettingllms/{name}", max_cycles=3)
    assert isinstance(env, TextEnv)
    assert env.max_turns == 3


@environments
def test_an_unusable_argument_is_refused(name):
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        make(name, split="trainn")


def test_a_misspelt_name_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'coding'"):
        make("codingg")


def test_importing_the_package_imports_no_environment_and_nothing_heavy():
    code = (
        "import sys, pettingllms.envs as envs\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "heavy = loaded & {'torch', 'transformers', 'trl', 'peft', 'vllm', 'ray', 'datasets'}\n"
        "made = {path.split(':')[0] for path in envs.ENVIRONMENTS.own.values()} & set(sys.modules)\n"
        "sys.exit(f'{heavy} {made}' if heavy or made else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# The contract: PettingZoo's tests, then ours.


@factories
@pytest.mark.filterwarnings(*TEXT_WARNINGS)
def test_pettingzoos_api_test(path):
    api_test(load_env(path), num_cycles=20)


@factories
def test_pettingzoos_seed_test(path):
    seed_test(factory(path), num_cycles=20)


@factories
def test_pettingzoos_render_test(path):
    render_test(factory(path))


@factories
def test_pettingzoos_max_cycles_test_where_an_environment_is_parallelizable(path):
    module = importlib.import_module(path.partition(":")[0])
    assert module.raw_env.metadata["is_parallelizable"] == hasattr(module, "parallel_env")
    if hasattr(module, "parallel_env"):
        max_cycles_test(module)


@factories
def test_an_environment_is_not_parallel_but_can_be_driven_in_parallel_turn_by_turn(path):
    with pytest.raises(AssertionError, match="is_parallelizable"):
        aec_to_parallel(load_env(path))
    env: Any = load_env(path, max_turns=1)
    parallel = turn_based_aec_to_parallel(env)
    parallel.reset(seed=1)
    first = env.agent_selection
    parallel.step(dict.fromkeys(env.agents, "12"))
    assert [(record.agent, record.reply) for record in env.transcript] == [(first, "12")]


@factories
@pytest.mark.filterwarnings(*TEXT_WARNINGS, "ignore:State:UserWarning")
def test_pettingzoos_state_test(path):
    env = load_env(path)
    check_state_space(env)
    check_state(env, num_cycles=5)


@pytest.mark.parametrize("path", COUNTED.values(), ids=COUNTED)
def test_unreadable_replies_are_truncated_after_max_cycles(path):
    env = load_env(path, max_cycles=3)
    env.reset(seed=0)
    order: list[str] = []
    while not any((*env.terminations.values(), *env.truncations.values())):
        order.append(env.agent_selection)
        env.step("")
    assert all(env.truncations.values())
    # Who acts may depend on the replies; then some agents never do.
    assert set(Counter(order).values()) == {3}
    assert path in DECIDED or [*dict.fromkeys(order)] == env.possible_agents


@pytest.mark.slow
@pytest.mark.parametrize("name", FACTORIES)
def test_check_env_passes(name, caplog):
    check_env(
        name if name in ENVIRONMENTS else FACTORIES[name],
        episodes=2,
        replies=REPLIES.get(name, ("5", "3", "right")),
    )
    assert caplog.records == []


# Whatever the arguments.

SHARED: dict[str, Sequence[Any]] = {
    "max_turns": (1, 2, 3, 5),
    "alpha": (0.0, 0.5, 2.0),
    "split": ("train", "val", "test"),
    "rewards": ("sparse",),
    "show_thinking": (True,),
    "share_team_reward": (True,),
}
STEPS = ((2, 2), (2, 6), (5, 6))
BOARD: dict[str, Sequence[Any]] = {
    "agents": ("single", "team"),
    "tool": ("python",),
    "refused": ("skip",),
}
LEGAL: dict[str, dict[str, Sequence[Any]]] = {
    "coding": {"steps": STEPS, "agents": ("single",), "families": (["words"], ["arithmetic"])},
    "crew": {"call_price": (0, 0.3), "workers": (2, 4), "lookups": ((0, 0), (1, 2), (2, 2))},
    "debugging": {"steps": STEPS},
    "duet": {
        "rho": (0, 0.5, 1.0),
        "q": (0.0, 1.0),
        "mass": (2, 3),
        "inputs": (2, 64),
        "answers": (2, 16),
    },
    "math": {
        "depth": ((1, 1), (2, 5)),
        "largest": (9, 999),
        "reasoners": (2, 3),
        "tools": (0, 2),
        "judge": (True,),
        "topology": ("chain",),
    },
    "plan_path": {
        **BOARD,
        "height": (2, 6, 26),
        "width": (3, 6),
        "walls": (0.0, 0.4, 0.6),
        "moves": ((1, 2), (5, 40), (9, 9)),
    },
    "read": {"sentences": (2, 6), "rewards": ("sparse",)},
    "search": {
        "hops": ((2, 2), (2, 3), (3, 3)),
        "topology": ("chain", "single", "nested"),
        "top": (1, 20),
    },
    "signal": {"goals": (2, 16), "words": (1, 16), "length": (1, 4), "agents": ("single",)},
    "sokoban": {**BOARD, "size": (5, 6, 7), "boxes": (1, 2), "pushes": ((1, 3), (4, None))},
    "sudoku": {**BOARD, "size": (4, 6, 9), "clues": ((6, 20), (20, 40)), "difficulty": ("naked",)},
}


def drawn(name: str, rng: random.Random) -> TextEnv:
    """An environment with arguments of which it refuses none."""
    legal = {**SHARED, **LEGAL[name]}
    while True:
        chosen = rng.sample(list(legal), rng.randint(1, 5))
        arguments = {argument: rng.choice(legal[argument]) for argument in chosen}
        with contextlib.suppress(ConfigError):  # it may refuse them together, at once
            return make(name, **arguments)


def pickled(env: Any) -> Any:
    """A copy by way of bytes, at the same point of the same episode."""
    twin = pickle.loads(pickle.dumps(env))
    assert twin.snapshot() == env.snapshot()
    return twin


@pytest.mark.slow
@environments
def test_every_seed_can_be_played_and_pickled_at_every_point_whatever_the_arguments(name):
    rng = random.Random(name)
    for draw in range(10):
        env = pickled(drawn(name, rng))
        for seed in range(40):  # 400 seeds of each environment
            env.reset(seed=seed + 1000 * draw)
        env = pickled(env)
        if draw > 3:  # episodes cost more than resets
            continue
        replies = itertools.cycle(rng.sample(REPLIES[name], len(REPLIES[name])))
        while next_agent(env) is not None:
            reply, twin = next(replies), pickled(env)
            for copy in (env, twin):
                copy.step(reply)
            assert twin.snapshot() == env.snapshot()
        pickled(env).reset(seed=1)


@pytest.mark.parametrize(
    ("name", "arguments", "seed"),
    [
        ("sudoku", {"size": 6, "difficulty": "search"}, 5),
        (
            "plan_path",
            {"height": 6, "width": 6, "walls": 0.5, "moves": (12, 20), "split": "test"},
            1,
        ),
    ],
)
def test_a_rare_level_is_found(name, arguments, seed):
    env = make(name, **arguments)
    env.reset(seed=seed)
    first = env._state.level
    env.reset(seed=0)
    assert env._state.level != first


def test_a_seed_for_which_no_level_is_found_has_that_of_task_0(monkeypatch, caplog):
    env = make("plan_path")
    dealt = env._generated

    def generated(seed):
        if seed:
            raise ConfigError("none was found")
        return dealt(seed)

    monkeypatch.setattr(env, "_generated", generated)
    env.reset(seed=5)
    assert env._state.level == dealt(0)
    assert "task 5 has the level of task 0: none was found" in caplog.text
