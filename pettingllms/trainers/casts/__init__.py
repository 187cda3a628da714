"""Casts: who plays which role in a step, and which policies learn from it.

| name | a step | arguments |
|---|---|---|
| `all` | everybody keeps the role and learns | |
| `alternate` | one policy learns, the next one after `steps` steps (MARFT, arXiv 2504.16129) | `steps` (1) |
| `swap` | two policies change places every `steps` steps (CORY, arXiv 2410.06101) | `steps` (5) |

A cast is a pure function of the step, so that a resumed run needs nothing to be in the right place.
A cast of one's own is a subclass of `pettingllms.trainers.casts.base.Cast`, given as `--cast my_package.my_module:MyCast`.
"""

from __future__ import annotations

from pettingllms.registry import Registry

CASTS = Registry(
    "cast",
    {
        "all": "pettingllms.trainers.casts.base:Cast",
        "alternate": "pettingllms.trainers.casts.alternate:Alternate",
        "swap": "pettingllms.trainers.casts.swap:SwapPlaces",
    },
)
