"""Runs of which nothing is to be left: in the state, then with servers.

Knows: who asked, which servers were told. Does not know: keys (`map`), what is on disks.

    what happens                                        what follows
    Remove, of a run that is there                      its description, then its groups are deleted
    Remove, of one of which nothing is there            `Removed`
    the last group is deleted                           `Removed`, to all who asked
    a server has something of a run that is not there   `Forget`, until it says no more that it has

Of a run that is being made its description is there before any group is, and before any server has a copy:
so whatever a server of this cluster has is of a run that is there, or of one that was removed. Whatever is
said of a run that was removed (a late `Create`) counts for nothing, as long as this controller leads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from cotswold.replication.controller.cluster_view import Board
from cotswold.wire import Forget, Removed, Send

_REMEMBERED = 10_000


class Forgetting:
    """That of a leader."""

    def __init__(self, board: Board, epoch: int, cluster: str) -> None:
        """``cluster``: its name."""
        self._board, self._epoch, self._cluster = board, epoch, cluster
        self._asked: dict[str, dict[str, None]] = {}
        """Who wants to hear of each run."""
        self._said: dict[str, float] = {}
        """When a server was told to forget something."""
        self._removed: OrderedDict[str, None] = OrderedDict()
        """Runs that were removed, the last of them."""

    def is_removed(self, run: str) -> bool:
        """Whether it was, or is being removed."""
        return run in self._removed

    def remove(self, sender: str, run: str) -> list[Send]:
        """Somebody wants a run removed."""
        self._remember(run)
        self._board.remove(run)
        if not self._board.map.has_run(run):
            return [Send(sender, Removed(run))]
        self._asked.setdefault(run, {})[sender] = None
        return []

    def removed(self, run: str) -> list[Send]:
        """Nothing is left of it in the state."""
        self._remember(run)
        return [Send(sender, Removed(run)) for sender in self._asked.pop(run, {})]

    def _remember(self, run: str) -> None:
        self._removed[run] = None
        if len(self._removed) > _REMEMBERED:
            self._removed.popitem(last=False)

    def ended(self, server: str) -> None:
        """It does not come back."""
        self._said.pop(server, None)

    def forgets(self, server: str, runs: Iterable[str], now: float) -> list[Send]:
        """What a server is to forget of what it has."""
        unknown = [run for run in runs if run and not self._board.map.has_run(run)]
        if not unknown:
            return []
        if now - self._said.get(server, float("-inf")) < self._board.control.retry_seconds:
            return []
        self._said[server] = now
        return [Send(server, Forget(self._epoch, run, self._cluster)) for run in unknown]
