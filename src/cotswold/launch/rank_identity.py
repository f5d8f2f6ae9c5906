"""The place of a process among the ranks that join: given by a launcher, or by an existing process group.

Knows: worlds, torch's process groups and their stores, the secret that ranks of a group share at the start.
Does not know: beats, facts, the rendezvous.
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
from cotswold.launch.world import World, launcher_hosts_store

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # documented, not in __all__

_SECRET_BYTES = 32


@dataclass(frozen=True)
class RankIdentity:
    """This process as ``rank`` among the ranks that join; sentences call them by ``global_ranks``.

    The ranks find each other through ``store_source``: a store, or the world that has its address. ``master``
    describes the location of the store. ``store_rank`` is the rank whose process hosts it, None if no rank
    does. ``job`` and ``token`` are equal on all of these ranks; ``job`` is unique to them.
    """

    rank: int
    global_ranks: tuple[int, ...]
    store_source: World | Store
    master: str
    store_rank: int | None
    job: str
    token: Token
    parent: int | None = None

    @property
    def size(self) -> int:
        """Number of ranks that join."""
        return len(self.global_ranks)

    @property
    def names(self) -> list[str]:
        """Names of the ranks in sentences before they have reported their hosts."""
        first, *others = (f"rank {number}" for number in self.global_ranks)
        return [
            f"{first} on {self.store_source.host}" if isinstance(self.store_source, World) else first,
            *others,
        ]


def identity_from_world(world: World, store: Store | None, token: Token | None) -> RankIdentity:
    """Return the place that the launcher describes; LaunchError without a token."""
    if token is None:
        raise LaunchError(
            "the ranks share no secret with which to authenticate each other; set the same on all, as in "
            f"export {TOKEN}=$(openssl rand -hex 32) before the launcher"
        )
    return RankIdentity(
        world.rank,
        tuple(range(world.size)),
        world if store is None else store,
        world.master,
        None if world.hosted else 0,
        world.job,
        token,
        world.parent,
    )


def identity_from_group(
    group: dist.ProcessGroup | None, store: Store | None, token: Token | None, arrival_seconds: float
) -> RankIdentity:
    """Return the place in a process group, by default the default group; all of its ranks call this.

    Without a token rank 0 of the group draws one and sends it through the group: a reader of the group's
    traffic can change what the ranks compute in any case. Raises RankError if a rank is missing after
    ``arrival_seconds``.
    """
    group = group if group is not None else dist.group.WORLD
    assert group is not None, "there is a default group"
    global_ranks = tuple(dist.get_process_group_ranks(group))
    drawn = _broadcast_from_first(secrets.token_bytes(2 * _SECRET_BYTES), group, arrival_seconds)
    job, secret = drawn[:_SECRET_BYTES].hex(), drawn[_SECRET_BYTES:].hex()
    store = group.get_group_store() if store is None else store
    tcp = getattr(store, "_underlying_non_prefix_store", store)
    store_rank, master = None, "the process group's store"
    if isinstance(tcp, TCPStore):
        master = f"{tcp.host}:{tcp.port}"
        if 0 in global_ranks and not launcher_hosts_store(os.environ):
            store_rank = global_ranks.index(0)
    return RankIdentity(
        dist.get_rank(group), global_ranks, store, master, store_rank, job, token or Token(secret)
    )


def _broadcast_from_first(ours: bytes, group: dist.ProcessGroup, arrival_seconds: float) -> bytes:
    """Broadcast the bytes of rank 0 to all ranks of the group."""
    device = "cpu" if "cpu" in dist.get_backend_config(group) else f"cuda:{torch.cuda.current_device()}"
    told = torch.frombuffer(bytearray(ours), dtype=torch.uint8).to(device)
    try:
        work = dist.broadcast(told, group=group, group_src=0, async_op=True)
        assert work is not None, "it is asynchronous"
        work.wait(timedelta(seconds=arrival_seconds))
    except RuntimeError as error:
        raise RankError(
            f"not all {group.size()} ranks of the process group have joined within {arrival_seconds:.3g} s "
            f"({' '.join(str(error).split())[:200]}); all ranks must call join"
        ) from error
    return told.cpu().numpy().tobytes()
