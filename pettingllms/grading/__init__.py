r"""Compares answers with references: `grade("1/2", r"\frac{1}{2}").equal`, and `boxed` finds one in a text."""

from __future__ import annotations

from pettingllms.grading.answers import grade, same
from pettingllms.grading.notation import boxed
from pettingllms.grading.symbolic import Grade

__all__ = ["Grade", "boxed", "grade", "same"]
