"""MLPO: a leader learns to use the answers of frozen peers, https://arxiv.org/abs/2507.08960."""

from __future__ import annotations

from pettingllms.trainers.at_grpo import AtGrpo


class Mlpo(AtGrpo):
    """A leader, the role `judge`, learns to use frozen peers; for a team with a judge.

    A = r - mean r     among the K answers of the leader to one prompt
    """

    source = "arXiv 2507.08960"
    settings = {"train_roles": "judge", "scale_rewards": "none"}
