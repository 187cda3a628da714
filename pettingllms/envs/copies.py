"""Exact copies of an episode in microseconds: what tree rollouts need and PettingZoo lacks."""

from __future__ import annotations

from typing import Any, Self

from pettingllms.envs import episode
from pettingllms.envs.episode import Snapshot


class Copies:
    """Gives an environment `snapshot`, `restore` and `clone`; also `copy.copy` and `deepcopy`."""

    _shown: dict[str, str]

    def snapshot(self) -> Snapshot:
        """The whole episode as a small picklable value; later steps do not change it."""
        return episode.take(self.__dict__, self._identity())

    def restore(self, snapshot: Snapshot) -> None:
        """Continues from `snapshot`, on any instance made with the same arguments.

        Raises:
            CloneError: the snapshot is of another environment, configuration or version.
        """
        episode.put_back(snapshot, self.__dict__, self._identity())
        self._shown = {}

    def clone(self) -> Self:
        """An independent copy at the same point of the same episode.

        Spaces and whatever else a subclass keeps (data, a sandbox) are shared with it.
        """
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.restore(self.snapshot())
        return twin

    __copy__ = clone

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()

    def _identity(self) -> tuple[Any, ...]:
        """What must agree between a snapshot and the environment it is restored into."""
        raise NotImplementedError
