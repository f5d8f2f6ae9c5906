"""Which transport carries a message: both ends choose alike, by who they are and by its size.

Knows: shared memory on one host, sockets for short messages between hosts, torch's group for all others. Does
not know: maps, plans.

A message of up to 16 KiB took 12 to 17 us by a socket and 310 to 430 us by Gloo between two network
namespaces, 23 to 25 and 86 to 230 us over loopback (two cores, medians, one way). Long ones travel behind
products by Gloo's own threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotswold.host.ipc.shared_memory_channel import Channel
from cotswold.host.ipc.tcp_channel import MOST_BYTES, MessageStream
from cotswold.mesh.transport.own_connections import MessageTransport
from cotswold.mesh.transport.torch_messages import PointToPoint
from cotswold.mesh.transport.transport import Transport


class Routes:
    """The transports of a rank of a mesh, whose ``members`` are ranks of the job."""

    def __init__(
        self,
        channels: Mapping[int, Channel],
        streams: Mapping[int, MessageStream],
        group: PointToPoint,
        members: Sequence[int],
    ) -> None:
        names = {rank: f"rank {member}" for rank, member in enumerate(members)}
        self._channels, self._streams, self._group = channels, streams, group
        self._memory, self._sockets = MessageTransport(channels, names), MessageTransport(streams, names)

    def transport(self, rank: int, count: int) -> Transport:
        """The transport for messages of ``count`` bytes to and from a rank."""
        if rank in self._channels:
            return self._memory
        if rank in self._streams and count <= MOST_BYTES:
            return self._sockets
        return self._group
