"""`--probe`: what it counts, and what it advises."""

from __future__ import annotations

import pytest

from pettingllms.cli.train import parse
from pettingllms.errors import ConfigError
from pettingllms.evaluation.probe import ReplyShares, advice, probe, report
from pettingllms.policies.loading import load_policies
from pettingllms.trainers.config import ATGRPOConfig, resolve
from tests.graded_env import GradedEnv
from tests.tiny_lm import save_tiny


def test_a_probe_plays_a_first_step_and_counts_replies_by_role_and_temperature(tmp_path):
    policies = load_policies(
        save_tiny(tmp_path), {"writer": "writer", "reader": "reader"}, lora_r=4
    )
    config = resolve(
        ATGRPOConfig(
            env="graded",
            model=str(tmp_path),
            num_generations=4,
            max_completion_length=6,
            scoring_threads=2,
        )
    )
    before = policies.state("writer")
    env = GradedEnv(silent="reader_0")
    shares = probe(config, env, policies, 5, temperatures=(0.7, 2.0))
    assert list(shares) == [0.7, 2.0]
    for roles in shares.values():
        assert list(roles) == ["writer", "reader"]
        assert all(share.readable == 1 for share in roles.values())
        # A quarter for every reply: something was earned, and nothing tells candidates apart.
        assert (roles["reader"].partly, roles["reader"].signal) == (1.0, 0.0)
    assert shares[2.0]["writer"].signal == 1.0
    assert sum(times for _, times in shares[2.0]["writer"].commonest) >= 3
    text = report(shares)
    assert "-> all candidates of `reader` earn the same" in text
    assert all(value.equal(policies.state("writer")[name]) for name, value in before.items())


@pytest.mark.parametrize(
    ("cold", "warm", "said"),
    [
        ((0.05, 0, 0, 0), (0.0, 0, 0, 0), "hardly ever be read"),
        ((1, 0, 0, 0), (1, 0, 0, 0), "no reply of `a` was ever right"),
        ((1, 0.2, 0, 0.5), (1, 0.1, 0, 0.4), "partial rewards have to lead there"),
        ((1, 0.2, 0.1, 0.5), (1, 0.1, 0, 0.1), "at --temperature 0.7"),
        ((1, 0.1, 0.1, 0.5), (1, 0.1, 0.1, 0.45), "can be trained"),
        ((1, 0, 0.97, 0.2), (1, 0, 0.95, 0.2), "harder tasks"),
        ((1, 0, 0.5, 0), (1, 0, 0.5, 0), "earn the same"),
    ],
)
def test_advice_follows_from_what_was_counted(cold, warm, said):
    assert said in advice(
        "a", {0.7: ReplyShares._make((*cold, ())), 1.0: ReplyShares._make((*warm, ()))}
    )


def test_the_number_of_replies_is_64_unless_it_is_given():
    assert parse(["--probe"]).probe == 64
    assert parse(["--probe", "9"]).probe == 9
    with pytest.raises(ConfigError, match="probe must be at least 1, got 0"):
        parse(["--probe", "0"])
