"""Client of data servers for user-defined training loops: `connect_data`, also `cotswold.data.connect`.

Knows: the arguments. Does not know: messages, the making of batches. Torch is imported on connecting.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.arguments import as_integer, check_number, check_text, check_truth
from cotswold.api.servers.parameter_client import ports_between, secret_of, split_address
from cotswold.errors import UserError

if TYPE_CHECKING:
    from cotswold.api.servers.served_dataset import ServedDataset
    from cotswold.host import Token


def connect_data(
    address: str,
    token: str | Path | Token | None = None,
    *,
    batch_size: int = 32,
    split: str = "train",
    stream: str | None = None,
    at_least_once: bool = False,
    seed: int = 0,
    shuffle: bool = True,
    rank: int = 0,
    world_size: int = 1,
    encrypt: bool = True,
    ports: tuple[int, int] | None = None,
    wait_seconds: float = 30.0,
) -> ServedDataset:
    """Connect to data servers, for batches ``(x, y)`` in a plain loop or a DataLoader with
    ``batch_size=None``.

    A pass is an epoch; each pass is the next one. Without ``stream``, this loop has its own order,
    independent of other loops: that of ``StoreDataset(batch_size=..., seed=..., rank=..., world_size=...)``.

    Loops with the same ``stream`` share each epoch: each sample goes to one of them. Samples are lost only if
    a loop dies while it has them or an epoch ends early; both are counted. With ``at_least_once``, the
    samples of a dead loop are handed out again, and an epoch ends only after every loop has asked for more.
    Two such loops in one thread would therefore deadlock.

    Args:
        address: ``HOST:PORT`` of the pool of data servers.
        token: The pool's secret, or the path of a file with it. [variable COTSWOLD_TOKEN]
        batch_size: Samples in a batch.
        split: Name of the split; the same in all loops of a stream.
        stream: Name of the stream of loops that share each epoch. [none]
        at_least_once: Hand out the samples of a dead loop again; only with ``stream``.
        seed: Seed of shuffling and augmentation; the same in all loops of a stream.
        shuffle: Shuffle each epoch; the same in all loops of a stream.
        rank: Number of this process, for parts of each epoch without ``stream``.
        world_size: Number of processes.
        encrypt: Encrypt messages between hosts; must be the same as in the pool.
        ports: First and last port at which the pool and its servers reach this process. [any]
        wait_seconds: Timeout for an answer of any server (in a stream: of the pool), after which a loop
            raises MachineError.

    Returns:
        A dataset of batches: ``x`` float32 (sample, channel, y, x), ``y`` int64 (sample,) or float32
        (sample, target).

    Raises:
        UserError: if an argument is invalid.
    """
    from cotswold.api.servers.served_dataset import ServedDataset
    from cotswold.data.loading.served_store import DatasetView

    batch_size, seed = as_integer("batch_size", batch_size), as_integer("seed", seed)
    rank, world_size = as_integer("rank", rank), as_integer("world_size", world_size)
    check_number("wait_seconds", wait_seconds)
    for what, value in (("shuffle", shuffle), ("encrypt", encrypt), ("at_least_once", at_least_once)):
        check_truth(what, value)
    check_text("split", split)
    check_text("stream", stream)
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1, got {batch_size}")
    if not 0 <= rank < world_size:
        raise UserError(f"rank must satisfy 0 <= rank < world_size, got rank {rank} of {world_size}")
    if stream is not None and world_size > 1:
        raise UserError(
            "loops of a stream have no ranks, because each draws the next samples; omit stream to give "
            "each rank a part of each epoch"
        )
    if stream is None and at_least_once:
        raise UserError(
            "at_least_once needs a stream; without one, each loop receives every sample it asks for"
        )
    if not wait_seconds > 0:
        raise UserError(f"wait_seconds must be above 0, got {wait_seconds}")
    if stream == "":
        raise UserError("stream must not be empty; give a name, or None for an order of this loop alone")
    between = ports_between(ports)
    place = (*split_address(address), secret_of(token), encrypt, between, wait_seconds)
    drawn = None if stream is None else (stream, at_least_once)
    return ServedDataset(place, DatasetView(split, seed), batch_size, shuffle, (rank, world_size), drawn)
