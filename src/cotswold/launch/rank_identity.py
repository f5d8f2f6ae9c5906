"""Where a process stands among the ranks that join: as a launcher says, or a process group that exists.

Knows: worlds, torch's process groups and their stores, what ranks of a group tell each other at the start.
Does not know: beats, facts, how ranks meet.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, not in __all__

from cotswold.errors import LaunchError, RankError
from cotswold.host import Token
from cotswold.host.token import VARIABLE as TOKEN
from cotswold.launch.world import World, launcher_keeps_store

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # documented, not in __all__

_SECRET_BYTES = 32


@dataclass(frozen=True)
class Place:
    """This process as ``rank`` among those that join, which sentences call by ``numbers``.

    They find each other through ``door``, a store or the world that has its address; ``master`` says in words
    where that is. The process of the rank ``keeper`` keeps it, that of none of them if None. ``job`` and
    ``token`` are the same on all of them, and ``job`` on no others.
    """

    rank: int
    numbers: tuple[int, ...]
    door: World | Store
    master: str
    keeper: int | None
    job: str
    token: Token
    parent: int | None = None

    @property
    def size(self) -> int:
        """How many join."""
        return len(self.numbers)

    @property
    def names(self) -> list[str]:
        """What sentences call them before each has told its host: where rank 0 is may be known."""
        first, *others = (f"rank {number}" for number in self.numbers)
        return [f"{first} on {self.door.host}" if isinstance(self.door, World) else first, *others]


def place_in_world(world: World, store: Store | None, token: Token | None) -> Place:
    """As the launcher says. Raises LaunchError without a token."""
    if token is None:
        raise LaunchError(
            "the ranks have no secret in common by which they know each other; set the same on all, as in "
            f"export {TOKEN}=$(openssl rand -hex 32) before the launcher"
        )
    return Place(
        world.rank,
        tuple(range(world.size)),
        world if store is None else store,
        world.master,
        None if world.hosted else 0,
        world.job,
        token,
        world.parent,
    )


def place_in_group(
    group: dist.ProcessGroup | None, store: Store | None, token: Token | None, arrival_seconds: float
) -> Place:
    """As one of a process group, by default the job's; all of its ranks call this.

    Without a token rank 0 of the group draws one and sends it through the group: whoever can read that may
    change what the ranks compute anyway. Raises RankError if not all come within ``arrival_seconds``.
    """
    group = group if group is not None else dist.group.WORLD
    assert group is not None, "there is a default group"
    numbers = tuple(dist.get_process_group_ranks(group))
    drawn = _from_first(secrets.token_bytes(2 * _SECRET_BYTES), group, arrival_seconds)
    job, secret = drawn[:_SECRET_BYTES].hex(), drawn[_SECRET_BYTES:].hex()
    store = group.get_group_store() if store is None else store
    tcp = getattr(store, "_underlying_non_prefix_store", store)
    keeper, master = None, "the process group's store"
    if isinstance(tcp, TCPStore):
        master = f"{tcp.host}:{tcp.port}"
        if 0 in numbers and not launcher_keeps_store(os.environ):
            keeper = numbers.index(0)
    return Place(dist.get_rank(group), numbers, store, master, keeper, job, token or Token(secret))


def _from_first(ours: bytes, group: dist.ProcessGroup, arrival_seconds: float) -> bytes:
    """What rank 0 of a group has, on all of its ranks."""
    device = "cpu" if "cpu" in dist.get_backend_config(group) else f"cuda:{torch.cuda.current_device()}"
    told = torch.frombuffer(bytearray(ours), dtype=torch.uint8).to(device)
    try:
        work = dist.broadcast(told, group=group, group_src=0, async_op=True)
        assert work is not None, "it is asynchronous"
        work.wait(timedelta(seconds=arrival_seconds))
    except RuntimeError as error:
        raise RankError(
            f"not all {group.size()} ranks of the process group have joined within {arrival_seconds:.3g} s "
            f"({' '.join(str(error).split())[:200]}); all must call it"
        ) from error
    return told.cpu().numpy().tobytes()
