"""A rank of a replica other than the first: it computes with the others, and exchanges data with servers
itself.

Knows: two threads, the endpoint, the state machine of a rank. Does not know: what is computed, how ranks
compute together, when to pull and push.

One thread computes as the first rank directs. The other has the endpoint, on which the first rank requests
pulls and pushes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from cotswold import wire as m
from cotswold.paramserver.core.rank import ReplicaRank
from cotswold.processes.worker_thread import WorkerThread
from cotswold.replicas.work import ReplicaEndpoint
from cotswold.transport import Lost, Ready
from cotswold.wire.lifecycle import RankLost, RankReady
from cotswold.wire.messenger import AnyMessage, Messenger, Received


class RankProcess:
    """One rank, from the connection to the first rank until its computation ends."""

    def __init__(self, messenger: Messenger, leader: ReplicaEndpoint) -> None:
        self._messenger, self._leader = messenger, leader
        self._lock = threading.Lock()
        """Guards the state machine."""
        self._machine = ReplicaRank(leader.name)
        self._servers: set[str] = set()
        self._worker_thread = WorkerThread()
        self._is_finished = False
        messenger.endpoint.watch(self._worker_thread.fileno())

    def run(self, compute: Callable[[], object]) -> None:
        """Communicate with servers until ``compute``, which runs in another thread, returns; raises its
        exceptions."""
        self._messenger.endpoint.connect(self._leader.name, self._leader.address)
        self._messenger.send(self._leader.name, RankReady())
        self._worker_thread.submit(lambda: self._compute(compute))
        while not self._is_finished:
            match self._messenger.receive(None):
                case Received(sender, message):
                    self._on_message(sender, message)
                case Ready():
                    self._worker_thread.run_callbacks()
                case Lost(peer, why) if peer in self._servers:
                    self._messenger.send(self._leader.name, RankLost(peer, why))
                case _:  # the first rank closes its endpoint before it releases the others
                    pass
        self._worker_thread.close()

    # --- the computing thread ---

    def take_newer(self, session: int, versions: Mapping[int, int]) -> Mapping[int, object]:
        """The pulled shards of these versions, by number; nothing else refers to them."""
        with self._lock:
            return self._machine.take_newer(session, versions)

    def close_accumulation(self, accumulation: int, numbers: Mapping[int, object]) -> None:
        """An accumulation is closed; ``numbers`` are the values of this rank's shards."""
        with self._lock:
            sends = self._machine.close_accumulation(accumulation, numbers)
        if sends:
            self._worker_thread.call_in_main(lambda: self._deliver(sends))

    def _compute(self, compute: Callable[[], object]) -> None:
        compute()
        self._worker_thread.call_in_main(self._end)

    # --- the endpoint's thread ---

    def _on_message(self, sender: str, message: AnyMessage) -> None:
        if isinstance(message, m.SessionOpened) and sender == self._leader.name:
            self._servers.update(dict(message.servers))
            for name, address in message.servers:
                self._messenger.endpoint.connect(name, address)
        if isinstance(message, m.ToRank):
            with self._lock:
                sends = self._machine.receive(sender, message)
            self._deliver(sends)

    def _deliver(self, sends: Sequence[m.Send]) -> None:
        for each in sends:
            self._messenger.send(each.to, each.message)

    def _end(self) -> None:
        self._is_finished = True
