"""iGRPO: the best of K drafts goes into the prompt of the second turn, https://arxiv.org/abs/2602.09000."""

from __future__ import annotations

from pettingllms.trainers.at_grpo import AtGrpo


class Igrpo(AtGrpo):
    """The best of K drafts goes into the prompt of the second turn, and only that turn is trained.

        A = (r - mean r) / (std r + epsilon)     among the K refinements of the best draft

    For a single agent with two turns.
    """

    source = "arXiv 2602.09000"
    settings = {"branch": "best", "train_turns": "1"}
