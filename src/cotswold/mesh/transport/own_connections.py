"""The transport over Cotswold's connections: shared memory to ranks of this host, TCP to those of others.

Knows: how tensors are packed into messages of `host`. Does not know: how bytes travel, maps, plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.host.ipc.tagged_messages import TaggedChannel
from cotswold.mesh.transport.transport import Expected


class MessageTransport:
    """Messages of CPU tensors over one connection per rank; ``names`` has the ranks' names for errors."""

    def __init__(self, connections: Mapping[int, TaggedChannel], names: Mapping[int, str]) -> None:
        self._connections, self._names = connections, names
        self._sent: dict[int, list[int]] = {}
        """Ranks to which messages were sent, by the tag of an open exchange."""
        self._expected: dict[int, dict[int, Expected]] = {}

    def send(self, tag: int, outgoing: Mapping[int, Tensor], expected: Mapping[int, Expected]) -> None:
        """See `Transport`."""
        self._expected[tag] = dict(expected)
        sent = self._sent[tag] = list[int]()
        for source in expected:
            self._connections[source].begin(tag)
        for target, values in outgoing.items():
            count = values.numel() * values.element_size()
            self._connections[target].send(tag, count, partial(_pack, values))
            sent.append(target)

    def receive(self, tag: int, source: int) -> Tensor:
        """See `Transport`."""
        memory = self._connections[source].receive(tag)
        destination = self._expected[tag][source].destination
        wanted = destination.numel() * destination.element_size()
        if memory.nbytes != wanted:
            raise GeometryError(
                f"{self._names[source]} sent {memory.nbytes} bytes, but {wanted} were expected; every rank "
                "must have the same number of images, of the same type"
            )
        return _tensor(memory, destination)

    def release(self, tag: int, source: int) -> None:
        """See `Transport`."""
        self._connections[source].release(tag)
        del self._expected[tag][source]

    def finish(self, tag: int) -> None:
        """See `Transport`; waits while a rank is too far behind."""
        del self._expected[tag]
        for target in self._sent.pop(tag):
            self._connections[target].finish(tag)

    def abandon(self, tag: int) -> None:
        """See `Transport`."""
        for other in {*self._expected.pop(tag, ()), *self._sent.pop(tag, ())}:
            with suppress(OSError):  # the next receive reports a lost rank
                self._connections[other].abandon(tag)


def _pack(values: Tensor, memory: memoryview) -> None:
    if memory.nbytes:
        _tensor(memory, values).copy_(values)


def _tensor(memory: memoryview, like: Tensor) -> Tensor:
    """Return the numbers in memory as a tensor with the type and shape of another."""
    if not memory.nbytes:
        return like.new_empty(like.shape)
    return torch.frombuffer(memory, dtype=like.dtype).view(like.shape)
