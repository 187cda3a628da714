"""The processes of one learner: all have their place at the same time, or none has.

A placement group holds the places, so that a learner whose processes only take long to start is
distinguished from one that has no room.
"""

from __future__ import annotations

import contextlib
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pettingllms.distributed.heart import check
from pettingllms.distributed.pools import Share
from pettingllms.errors import WorkersLost

LEAST_CPUS = 0.001
"""Of a place that may have none: Ray holds no empty ones."""


class Ranks:
    """Actors that are given the same jobs, one beside the other.

    Args:
        kind: class of the actors. `ready` prepares one; where there are several, the first one has
            an `address`, and all `join` there.
        share: of one process, and how many there are.
        arguments: of the class.
    """

    def __init__(self, kind: type, share: Share, *arguments: Any) -> None:
        resources = {"CPU": max(share.cpus, LEAST_CPUS), "GPU": share.gpus or 0.0}
        place = {name: amount for name, amount in resources.items() if amount}
        # PACK puts the ranks on one node where there is room, since they exchange every gradient.
        self._places = placement_group([place] * share.ranks, strategy="PACK")
        maker: Any = ray.remote(**share.options)(kind)
        self._actors = [
            maker.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._places, rank)
            ).remote(*arguments)
            for rank in range(share.ranks)
        ]

    def placed(self, seconds: int) -> bool:
        """Returns whether all get a place within `seconds`, a whole number: Ray drops fractions."""
        return bool(self._places.wait(seconds))

    def do(self, method: str, *arguments: Any) -> list[Any]:
        """References to what each returns."""
        return [getattr(actor, method).remote(*arguments) for actor in self._actors]

    def join(self) -> list[Any]:
        """Has them meet; references to what `join` returns."""
        if len(self._actors) == 1:
            return []
        place, count = self._actors[0].address.remote(), len(self._actors)
        return [actor.join.remote(place, rank, count) for rank, actor in enumerate(self._actors)]

    def kill(self) -> None:
        """Ends all of them."""
        for actor in self._actors:
            ray.kill(actor)
        with contextlib.suppress(WorkersLost):
            check()  # a head that is dead would be waited for
            remove_placement_group(self._places)
