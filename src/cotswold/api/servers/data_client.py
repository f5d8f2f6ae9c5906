"""Batches of data servers for anybody's own loop: `connect_data`, which is `cotswold.data.connect` as well.

Knows: what may be asked for. Does not know: messages, who makes batches. Torch is loaded by whoever connects.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.arguments import check_number, check_text, check_truth, whole
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
    """Batches ``(x, y)`` of the data servers at ``address`` (``HOST:PORT``), for a plain loop or a
    ``DataLoader(dataset, batch_size=None)``.

    A pass is an epoch, the next one each time, in an order of this loop's own, whoever else reads there:
    that of ``StoreDataset(batch_size=..., seed=..., rank=..., world_size=...)``. All loops that draw the same
    ``stream``, a name, share each epoch instead: no sample is handed out twice, and none is lost but those
    that a loop had when it died, and those that an early end leaves out; both are counted. With
    ``at_least_once`` what a dead loop was working at is handed out again, and an epoch is over only once
    every loop has come back for more: two such loops of one thread would wait for each other. Loops share
    ``split``, ``seed`` and ``shuffle``, too.

    ``token`` is the pool's secret, or a path to the file that holds it; the variable COTSWOLD_TOKEN by
    default. ``encrypt`` as the pool has it. ``ports``: the first and the last port at which the pool and its
    servers reach this process; any by default. ``wait_seconds``: for so long a loop waits where no server
    answers, or, in a stream, the pool; then MachineError. Raises UserError for no such address, token or
    batch.
    """
    from cotswold.api.servers.served_dataset import ServedDataset
    from cotswold.data.service.store import View

    batch_size, seed = whole("batch_size", batch_size), whole("seed", seed)
    rank, world_size = whole("rank", rank), whole("world_size", world_size)
    check_number("wait_seconds", wait_seconds)
    for what, value in (("shuffle", shuffle), ("encrypt", encrypt), ("at_least_once", at_least_once)):
        check_truth(what, value)
    check_text("split", split)
    check_text("stream", stream)
    if batch_size < 1:
        raise UserError(f"a batch of {batch_size} samples is none; give 1 or more")
    if not 0 <= rank < world_size:
        raise UserError(f"rank {rank} of {world_size} is none; give 0 <= rank < world_size")
    if stream is not None and world_size > 1:
        raise UserError(
            "whoever shares a stream has no rank: each loop draws what is next; give no stream for parts "
            "of each epoch that ranks have"
        )
    if stream is None and at_least_once:
        raise UserError("an order of its own delivers what its loop asks for; at_least_once is of a stream")
    if not wait_seconds > 0:
        raise UserError(f"a wait of {wait_seconds} s is none; give more than 0")
    if stream == "":
        raise UserError("a stream without a name; give one, or None for an order of this loop's own")
    between = ports_between(ports)
    place = (*split_address(address), secret_of(token), encrypt, between, wait_seconds)
    drawn = None if stream is None else (stream, at_least_once)
    return ServedDataset(place, View(split, seed), batch_size, shuffle, (rank, world_size), drawn)
