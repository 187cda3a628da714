r"""Compares answers with references.

from pettingllms.grading import boxed, grade

boxed(r"... so \boxed{\frac{1}{2}}.")   # "\frac{1}{2}"
grade("1/2", r"\frac{1}{2}").equal      # True
"""

from __future__ import annotations

from pettingllms.grading.answers import Grade, boxed, grade, same

__all__ = ["Grade", "boxed", "grade", "same"]
