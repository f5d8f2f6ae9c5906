"""Deletion of runs: first in the metadata store, then on servers.

Knows: which clients wait for a deletion, which servers were sent one. Does not know: keys (`bucket_map`),
files on disks.

    event                                               action
    DeleteRunRequest for an existing run                delete its description, then its groups
    DeleteRunRequest for an unknown run                 `RunDeleted`
    the last group is deleted                           `RunDeleted`, to all clients that wait
    a server has data of an unknown run                 `DeleteRun`, until the server no longer lists it

The description of a new run is committed before its groups and before any server has a replica. So all data
on servers of this cluster belong to a run with a description or to a deleted run. As long as this controller
leads, it ignores late messages about a deleted run (such as `Create`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from cotswold.replication.controller.cluster_view import ClusterView
from cotswold.wire import DeleteRun, RunDeleted, Send

_REMEMBERED = 10_000


class RunDeletion:
    """Run deletions of a leader."""

    def __init__(self, view: ClusterView, epoch: int, cluster: str) -> None:
        """``cluster``: name of the cluster."""
        self._view, self._epoch, self._cluster = view, epoch, cluster
        self._requests: dict[str, dict[str, None]] = {}
        """Clients that wait for the deletion of each run."""
        self._sent_at: dict[str, float] = {}
        """Time of the last `DeleteRun` to each server."""
        self._removed: OrderedDict[str, None] = OrderedDict()
        """The most recently deleted runs."""

    def is_removed(self, run: str) -> bool:
        """True if the run was deleted or is being deleted."""
        return run in self._removed

    def remove(self, sender: str, run: str) -> list[Send]:
        """Delete a run at a client's request."""
        self._remember(run)
        self._view.remove(run)
        if not self._view.map.has_run(run):
            return [Send(sender, RunDeleted(run))]
        self._requests.setdefault(run, {})[sender] = None
        return []

    def removed(self, run: str) -> list[Send]:
        """Process the end of a deletion: the metadata store has no key of the run."""
        self._remember(run)
        return [Send(sender, RunDeleted(run)) for sender in self._requests.pop(run, {})]

    def _remember(self, run: str) -> None:
        self._removed[run] = None
        if len(self._removed) > _REMEMBERED:
            self._removed.popitem(last=False)

    def on_server_lost(self, server: str) -> None:
        """Forget a server that does not come back."""
        self._sent_at.pop(server, None)

    def deletions_for(self, server: str, runs: Iterable[str], now: float) -> list[Send]:
        """Return the deletions to send to a server that listed these runs."""
        unknown = [run for run in runs if run and not self._view.map.has_run(run)]
        if not unknown:
            return []
        if now - self._sent_at.get(server, float("-inf")) < self._view.control.retry_seconds:
            return []
        self._sent_at[server] = now
        return [Send(server, DeleteRun(self._epoch, run, self._cluster)) for run in unknown]
