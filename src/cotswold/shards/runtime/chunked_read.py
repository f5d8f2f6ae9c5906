"""Read of a vector from its servers, a group of shards at a time.

Knows: the servers of shards, unanswered requests. Does not know: sockets, the type of the request.

Each server receives the next request after its previous reply. So no message is long, and servers answer
other clients in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cotswold import wire as m
from cotswold.errors import MachineError
from cotswold.shards.runtime.arithmetic import Array

GROUP_BYTES = 64 << 20
"""Maximum bytes per message, unless one shard has more."""
RequestFunction = Callable[[tuple[int, ...]], m.Message]
"""Returns the message that requests these shards of a server."""


def shard_groups(shards: Sequence[m.Shard], item_bytes: int) -> dict[str, list[tuple[int, ...]]]:
    """Return the numbers of each server's shards, in groups of one message each."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for server in {one.server for one in shards}:
        groups: list[list[int]] = []
        left = 0
        for one in sorted((one for one in shards if one.server == server), key=lambda one: one.number):
            shard_bytes = (one.stop - one.start) * item_bytes
            left -= shard_bytes
            if left < 0:
                groups.append([])
                left = GROUP_BYTES - shard_bytes
            groups[-1].append(one.number)
        found[server] = [tuple(group) for group in groups]
    return found


class ChunkedRead:
    """The vector ``name`` of ``size`` numbers; ``vector`` is complete once no server owes a shard."""

    def __init__(
        self, shards: Sequence[m.Shard], name: str, dtype: str, size: int, request: RequestFunction
    ) -> None:
        self.name, self._request = name, request
        self.vector: Array = np.empty(size, dtype)
        self.versions: dict[int, int] = {}
        """Version of each shard, if the replies contain it."""
        self._shards = {one.number: one for one in shards}
        self._missing = shard_groups(shards, self.vector.itemsize)

    @property
    def owing(self) -> list[str]:
        """Servers with missing shards."""
        return sorted(self._missing)

    def requests(self) -> list[m.Send]:
        """Return the current request to each server: the first one, and repetitions."""
        return [m.Send(server, self._request(groups[0])) for server, groups in sorted(self._missing.items())]

    def on_message(self, message: object) -> list[m.Send]:
        """Handle a reply and return the next request. Raise MachineError if a server cannot send the
        vector."""
        if not isinstance(message, m.Pulled | m.FrozenPart) or message.name != self.name:
            return []
        groups = self._missing.get(message.server)
        if groups is None:
            return []
        if message.error is not None:
            raise MachineError(f"{message.server} cannot send the vector {self.name}: {message.error}")
        if message.shards != groups[0]:
            return []
        for number, buffer in zip(message.shards, message.buffers, strict=True):
            assert isinstance(buffer, bytes | bytearray | memoryview)
            shard = self._shards[number]
            self.vector[shard.start : shard.stop] = np.frombuffer(buffer, self.vector.dtype)
        if isinstance(message, m.FrozenPart):
            self.versions.update(zip(message.shards, message.versions, strict=True))
        del groups[0]
        if not groups:
            del self._missing[message.server]
            return []
        return [m.Send(message.server, self._request(groups[0]))]
