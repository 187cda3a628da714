"""Constant answers: how far they get on every environment, and that no reward scheme pays them well."""

from __future__ import annotations

import json

import pytest

from benchmarks.constant_answers import blind_baseline
from pettingllms.cli.evaluate import main as evaluate
from pettingllms.envs import ENVIRONMENTS, make
from pettingllms.envs.base import next_agent
from pettingllms.errors import ConfigError, UnknownNameError
from pettingllms.evaluation.folder import read_trajectories

EMBEDDED = {
    "plan_path": {"height": 6, "width": 6, "moves": (6, 36)},
    "sokoban": {},
    "sudoku": {},
}
BOUND = {"plan_path": 0.15, "sokoban": 0.2, "sudoku": 0.05}
"""Most that constants may solve of the tasks that the embedded model plays."""
SCHEMES = [(game, scheme) for game in EMBEDDED for scheme in ("paper", "sparse")]
SCHEMES.append(("sokoban", "gym"))
boards = pytest.mark.parametrize("name", EMBEDDED)


@pytest.mark.slow
@boards
def test_constant_answers_seldom_solve_a_board(name):
    env = make(name, split="test", **EMBEDDED[name])
    assert blind_baseline(env, episodes=200)[0].success <= BOUND[name]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("plan_path", 0.8), ("sokoban", 0.2), ("sudoku", 0.7)])
def test_the_same_answers_solve_most_boards_where_refused_parts_are_skipped(name, least):
    env = make(name, split="test", refused="skip", **EMBEDDED[name])
    assert blind_baseline(env, episodes=200)[0].success >= least


@pytest.mark.parametrize("name", ENVIRONMENTS.own)
def test_every_environment_has_constants_that_it_can_read(name):
    env = make(name, split="test")
    for baseline in blind_baseline(env, episodes=2):
        assert baseline.returns.keys() == {
            agent.removesuffix("_0") for agent in env.possible_agents
        }
        acted, read = set(), set()
        for seed in range(4):
            env.reset(seed=seed)
            while (agent := next_agent(env)) is not None and not env.turn:
                env.step(baseline.answers[0])
                acted.add(agent)
                read |= {agent} if env.infos[agent]["parse_error"] is None else set()
        # Or the team would fail for the form of its replies alone.
        assert read == acted


def unread(env, seed):
    """A search team that reads nothing: the question is the query, the last word found the answer."""
    env.reset(seed=seed)
    question = env._state.question.text
    replies = {"verifier_0": "no", "searcher_0": question}
    while not any((*env.terminations.values(), *env.truncations.values())):
        passages = [p.text for s in env._state.searches for p in s.found]
        last = passages[0].split()[-1] if passages else "nothing"
        env.step(replies.get(env.agent_selection, last))
    return env.infos["answerer_0"]["success"]


@pytest.mark.slow
def test_neither_constants_nor_a_team_that_reads_nothing_answer_questions_of_several_look_ups():
    env = make("search", split="test")
    assert blind_baseline(env, episodes=300)[0].success <= 0.02
    compact = make("search", split="test", prompt="compact")
    assert sum(unread(compact, seed) for seed in range(300)) <= 6
    # Where one look-up is enough, the same team answers: it is the chain that has to be read.
    alone = make("search", split="test", prompt="compact", hops=(1, 1))
    assert sum(unread(alone, seed) for seed in range(300)) >= 100


def test_the_best_comes_first_and_the_sums_are_those_of_the_episodes():
    env = make("sokoban", agents="single", split="test")
    baselines = blind_baseline(env, [["[]"], ["[R]", "[DRDRDR]"], ["nothing"]], episodes=50)
    assert [baseline.success for baseline in baselines] == sorted(
        (e.success for e in baselines), reverse=True
    )
    by_text = {baseline.answers[0]: baseline for baseline in baselines}
    assert by_text["[]"].returns == {"planner": 0.0}
    assert by_text["nothing"].returns["planner"] == pytest.approx(-0.1 * env.max_turns)


def test_what_cannot_be_played_is_refused():
    env = make("sokoban")
    with pytest.raises(ConfigError, match="episodes must be at least 1, got 0"):
        blind_baseline(env, episodes=0)
    with pytest.raises(ConfigError, match="at least one text"):
        blind_baseline(env, [[]])
    env.metadata = {**env.metadata, "name": "sokobann_v0"}
    with pytest.raises(UnknownNameError, match="did you mean 'sokoban'"):
        blind_baseline(env)


def said_by_the_base(name, tasks, folder):
    """What the embedded base replies in each game: pairs of a task seed and its replies."""
    arguments = {**EMBEDDED[name], "prompt": "compact"}
    command = ["--env", name, "--model", "embedded", "--env-args", json.dumps(arguments)]
    assert evaluate([*command, "--tasks", str(tasks), "--out", str(folder)]) == 0
    (played,) = read_trajectories(folder).values()
    return [
        (trajectory.task.seed, [group.chosen.completion.text for group in trajectory.groups])
        for trajectory in played
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
@boards
def test_no_scheme_pays_constants_more_than_the_embedded_base(name, tmp_path):
    games = said_by_the_base(name, 48, tmp_path / "base")
    assert len(games) == 48
    for scheme in (scheme for game, scheme in SCHEMES if game == name):
        env = make(name, split="test", rewards=scheme, prompt="compact", **EMBEDDED[name])
        returns = dict.fromkeys(("tool", "planner"), 0.0)
        for seed, replies in games:
            env.reset(seed=seed)
            for reply in replies:
                agent = env.agent_selection
                env.step(reply)
                returns[agent.removesuffix("_0")] += env.rewards[agent] / len(games)
        for blind in blind_baseline(env, episodes=len(games)):
            assert blind.returns["planner"] < returns["planner"], (scheme, blind.answers)
            assert sum(blind.returns.values()) < sum(returns.values()), (scheme, blind.answers)
