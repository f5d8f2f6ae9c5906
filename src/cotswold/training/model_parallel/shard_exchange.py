"""The exchange of shards between ranks: their parts are assembled before a push, and distributed after a
pull.

Knows: the part of a shard on each rank, the ranks' process group. Does not know: when, servers, the meaning
of the values.

All ranks call the methods in the same order. A shard on a single rank is not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np
import torch
import torch.distributed as dist

from cotswold.shards.runtime.arithmetic import Array, raw
from cotswold.training.model_parallel.shards import ShardParts


class ShardExchange:
    """One rank's side of the exchange."""

    def __init__(self, shards: Mapping[int, ShardParts], rank: int, wire: dist.ProcessGroup) -> None:
        self._shards, self._rank, self._wire = dict(sorted(shards.items())), rank, wire

    def gather(self, own: Array) -> dict[int, memoryview]:
        """Return the whole shards that this rank pushes, by number, from the ranks' vectors ``own``.

        A shard on this rank alone is a view of its vector.
        """
        sends: dict[int, list[Array]] = {}
        waited: dict[int, list[int]] = {}
        for number, parts in self._shards.items():
            if parts.is_whole:
                continue
            if parts.rank == self._rank:
                for rank in parts.pieces.keys() - {self._rank}:
                    waited.setdefault(rank, []).append(number)
            elif self._rank in parts.pieces:
                piece = parts.pieces[self._rank]
                sends.setdefault(parts.rank, []).append(own[piece.start : piece.stop])
        sizes = {rank: [self._size_of(number, rank) for number in of] for rank, of in waited.items()}
        came = self._exchange(sends, sizes, own)
        found = {}
        for number, parts in self._shards.items():
            if parts.rank != self._rank:
                continue
            mine = parts.pieces.get(self._rank)
            if mine is not None and mine.stop - mine.start == prod(parts.shape):
                found[number] = raw(own[mine.start : mine.stop])
                continue
            whole = np.empty(parts.shape, own.dtype)
            for rank, piece in parts.pieces.items():
                row = own[piece.start : piece.stop] if rank == self._rank else came[rank].pop(0)
                whole[piece.box_in_shard.slices] = row.reshape(piece.box_in_shard.shape)
            found[number] = raw(whole.reshape(-1))
        return found

    def scattered(self, pulled: Mapping[int, object], own: Array) -> Iterator[slice]:
        """Write pulled shards into the ranks' vectors; yield the range of each part on this rank.

        ``pulled`` names the same shards on all ranks; each rank has the values of those that it pulls.
        """
        numbers = sorted(pulled)
        wholes = {
            number: _numbers_of(pulled[number], own).reshape(self._shards[number].shape)
            for number in numbers
            if self._shards[number].rank == self._rank
        }
        sends: dict[int, list[Array]] = {}
        waited: dict[int, list[int]] = {}
        for number in numbers:
            parts = self._shards[number]
            for rank, piece in sorted(parts.pieces.items()):
                if parts.rank == self._rank != rank:
                    sends.setdefault(rank, []).append(wholes[number][piece.box_in_shard.slices].reshape(-1))
                elif rank == self._rank != parts.rank:
                    waited.setdefault(parts.rank, []).append(number)
        sizes = {rank: [self._size_of(number, self._rank) for number in of] for rank, of in waited.items()}
        came = self._exchange(sends, sizes, own)
        for number in numbers:
            parts = self._shards[number]
            mine = parts.pieces.get(self._rank)
            if mine is None:
                continue
            place = slice(mine.start, mine.stop)
            if parts.rank == self._rank:
                own[place].reshape(mine.box_in_shard.shape)[...] = wholes[number][mine.box_in_shard.slices]
            else:
                own[place] = came[parts.rank].pop(0)
            yield place

    def is_true_on_all(self, holds: bool) -> bool:
        """Return True if ``holds`` is true on every rank."""
        found = torch.tensor([int(holds)], dtype=torch.int64)
        dist.all_reduce(found, dist.ReduceOp.MIN, group=self._wire)
        return bool(found.item())

    def _size_of(self, number: int, rank: int) -> int:
        piece = self._shards[number].pieces[rank]
        return piece.stop - piece.start

    def _exchange(
        self, sends: Mapping[int, Sequence[Array]], sizes: Mapping[int, Sequence[int]], like: Array
    ) -> dict[int, list[Array]]:
        """Exchange rows with other ranks, one message per pair; return the received rows by rank."""
        rows = {rank: np.empty(sum(each), like.dtype) for rank, each in sizes.items()}
        packed = {rank: np.concatenate(each) for rank, each in sends.items()}
        waits = [dist.irecv(torch.from_numpy(row), rank, group=self._wire) for rank, row in rows.items()]
        waits += [dist.isend(torch.from_numpy(row), rank, group=self._wire) for rank, row in packed.items()]
        for each in waits:
            assert each is not None, "this rank is in the group"
            each.wait()
        return {rank: np.split(row, np.cumsum(sizes[rank])[:-1]) for rank, row in rows.items()}


def _numbers_of(buffer: object, like: Array) -> Array:
    assert isinstance(buffer, bytes | bytearray | memoryview)
    found: Array = np.frombuffer(buffer, like.dtype)
    return found
