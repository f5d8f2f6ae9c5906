"""Select the transport of a message by the two ranks and its size, alike at both ends.

Knows: shared memory on one host, sockets for short messages between hosts, torch's group for all others. Does
not know: maps, plans.

A message of up to 16 KiB between two network namespaces took 12 to 17 µs by a socket, 310 to 430 µs by Gloo.
Over loopback it took 23 to 25 and 86 to 230 µs (two cores, medians, one way). Gloo's own threads send long
messages while products are computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotswold.host.ipc.shared_memory_channel import SharedMemoryChannel
from cotswold.host.ipc.tcp_channel import MESSAGE_BYTES_MAX, TcpChannel
from cotswold.mesh.transport.own_connections import MessageTransport
from cotswold.mesh.transport.torch_messages import PointToPoint
from cotswold.mesh.transport.transport import Transport


class Routes:
    """The transports of a rank of a mesh, whose ``members`` are ranks of the job."""

    def __init__(
        self,
        channels: Mapping[int, SharedMemoryChannel],
        streams: Mapping[int, TcpChannel],
        group: PointToPoint,
        members: Sequence[int],
    ) -> None:
        names = {rank: f"rank {member}" for rank, member in enumerate(members)}
        self._channels, self._streams, self._group = channels, streams, group
        self._memory, self._sockets = MessageTransport(channels, names), MessageTransport(streams, names)

    def transport(self, rank: int, count: int) -> Transport:
        """Return the transport for messages of ``count`` bytes to and from a rank."""
        if rank in self._channels:
            return self._memory
        if rank in self._streams and count <= MESSAGE_BYTES_MAX:
            return self._sockets
        return self._group
