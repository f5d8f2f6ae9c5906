"""Ranks that have found each other, agree on what they are to do, and watch over each other.

Knows: torch's process groups, the facts that must be the same everywhere, who watches. Does not know: what
the facts mean, networks, recipes, how the processes were started.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # documented, not in __all__
from torch.nn import functional

from cotswold.errors import LaunchError, RankError
from cotswold.host import Token, token_of
from cotswold.launch.consistency_check import difference, named
from cotswold.launch.join_timeout import Waiting
from cotswold.launch.rank_identity import Place, place_in_group, place_in_world
from cotswold.launch.rendezvous import Meeting, Rendezvous
from cotswold.launch.store_connection import connections_to
from cotswold.launch.watch.failure import peer_lost, sentence_of
from cotswold.launch.watch.monitor import Monitor
from cotswold.launch.watch.role import Role
from cotswold.launch.world import World, launcher_keeps_store, world_of

TIMEOUT_SECONDS = 20.0
"""How long a rank may be silent."""
ARRIVAL_SECONDS = 120.0
"""How long ranks wait for each other at the start: on a busy file system importing torch takes a minute."""
_EXCHANGE_TIMEOUTS = 30
"""An exchange waits this many times the timeout for a rank that lives, but works, evaluates or writes."""
_STALL_TIMEOUTS = 90
"""A rank that does nothing for this many times the timeout, while others wait for it, has hung."""
_WORK_SECONDS = 7 * 86400.0
"""How long a membership's exchange waits: one rank may prepare pictures or write files for hours."""


@dataclass(frozen=True)
class Membership:
    """The place of this process among ranks that have joined; every rank calls the methods in the same order.

    The exchanges have a process group of their own, so another thread may train meanwhile.
    """

    rank: int
    size: int
    hosts: tuple[str, ...]
    _group: dist.ProcessGroup
    _exchanging: Callable[[], AbstractContextManager[None]] = nullcontext

    def gather(self, value: object) -> list[Any]:
        """The values of all ranks, in their order, for every rank; what JSON holds. Nothing is unpickled."""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(self.size)]
        with self._exchanging():
            dist.all_gather(sizes, torch.tensor([len(text)], device="cpu"), group=self._group)
            longest = max(int(size) for size in sizes)
            texts = [torch.empty(longest, dtype=torch.uint8, device="cpu") for _ in range(self.size)]
            dist.all_gather(texts, functional.pad(text, (0, longest - len(text))), group=self._group)
        return [
            json.loads(found[: int(size)].numpy().tobytes()) for found, size in zip(texts, sizes, strict=True)
        ]

    def barrier(self) -> None:
        """Wait until every rank is here."""
        with self._exchanging():
            dist.barrier(group=self._group)


@contextmanager
def join(
    world: World | None = None,
    *,
    store: Store | None = None,
    group: dist.ProcessGroup | None = None,
    token: Token | None = None,
    facts: Mapping[str, str] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    arrival_seconds: float = ARRIVAL_SECONDS,
    stall_seconds: float | None = None,
    note: str = "",
) -> Iterator[Membership]:
    """Find the other ranks and watch over each other, for a `with` block that all ranks enter and leave::

        import torch.distributed as dist
        from cotswold import launch, mesh

        dist.init_process_group("gloo")  # started by torchrun, Ray Train or anything else
        with launch.join(facts={"rate": "0.1"}) as ranks:  # all must have the same rate
            model = mesh.partition(net, "1x2")
            for images, labels in batches:
                loss(model(images), labels).backward()
                optimiser.step()
            results = ranks.gather({"rank": ranks.rank})

    Where torch.distributed has a default group, the ranks of ``group`` (by default all of it) find each other
    in its store; neither is changed. Otherwise the block makes a default group (Gloo, and NCCL where there is
    CUDA), and ends it: of the ranks of ``world``, by default what the environment says (`world_of`), at that
    world's address. Either way a ``store`` may be given instead, as all ranks reach it, for this start alone;
    if any process among the ranks keeps it, it is that of rank 0.

    A rank that is silent for ``timeout_seconds``, or fails, ends all others within a few seconds more, each
    with a sentence that names it and has ``note`` at its end, and exit code 75, whatever its main thread
    waits for. A rank that others wait for in `Membership.gather` or `barrier`, and that neither computes,
    reads nor writes for ``stall_seconds`` (by default 90 times as long), counts as dead. An exchange of a
    default group that this makes waits 30 times as long. At the end of the block ranks wait for each other;
    ``sys.exit()`` with success inside is such an end, any other exception a failure.

    All ranks have the same ``token``, by default the one in COTSWOLD_TOKEN: what is not signed with it is not
    believed. Where there is neither, ranks of a group that exists draw one. The environment is only read;
    `settings_of` has what should be in it before torch is imported.

    Raises LaunchError where there is no token, or no world; RankError if a rank does not arrive within
    ``arrival_seconds`` or the store cannot be reached; LaunchError, on every rank, if ``facts`` differ, and
    on one of two processes that claim the same rank.
    """
    deadline, host = time.monotonic() + arrival_seconds, socket.gethostname()
    existing = dist.is_initialized()
    place = _place(world, store, group, token or token_of(os.environ), arrival_seconds)
    me = f"rank {place.numbers[place.rank]} on {host}"
    waiting = Waiting(me, place.master, timeout_seconds, arrival_seconds, deadline)
    rendezvous = Rendezvous(
        place.rank, place.size, host, place.job, place.token, connections_to(place.door, waiting), waiting
    )
    meeting = rendezvous.meet()
    rendezvous.claim(meeting, facts or {})
    role = Role(
        place.rank,
        place.size,
        place.keeper,
        timeout_seconds,
        _STALL_TIMEOUTS * timeout_seconds if stall_seconds is None else stall_seconds,
        "the launcher's store" if launcher_keeps_store(os.environ) else "the ranks' store",
    )
    monitor = Monitor(rendezvous.again(meeting), role, parent=place.parent, note=note)
    monitor.met(place.names, ())  # until all have come, and told where they are
    monitor.start()
    own: dist.ProcessGroup | None = None
    try:
        hosts, disagreement = _meet(place, meeting, rendezvous, monitor)
        if disagreement is None:
            if not existing:
                _make_default_group(meeting.raw, role)
            own = _own_group(place)
            yield Membership(place.rank, place.size, hosts, own, monitor.exchanging)
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:  # the script's own end, with success
            monitor.leave()
        else:
            monitor.fail(sentence_of(error), peer_lost=peer_lost(error))
        raise
    else:
        monitor.leave()
    finally:
        # the block's own code may have ended some or all of them
        if dist.is_initialized() and (own is not None or not existing):
            with suppress(ValueError):
                dist.destroy_process_group(own if existing else None)
    if disagreement is not None:
        raise LaunchError(disagreement)


def _place(
    world: World | None,
    store: Store | None,
    group: dist.ProcessGroup | None,
    token: Token | None,
    arrival_seconds: float,
) -> Place:
    """Where this process stands: in a process group that exists, or as a launcher says."""
    if (store is not None or dist.is_initialized()) and not hasattr(Store, "clone"):
        raise LaunchError(
            f"torch {torch.__version__} cannot connect twice to a store that is there; use a newer one, or "
            "call this where there is no process group yet, without a store"
        )
    if dist.is_initialized():
        if world is not None:
            raise LaunchError(
                "torch.distributed has a process group, which says who the ranks are; leave world out"
            )
        return place_in_group(group, store, token, arrival_seconds)
    world = world or world_of(os.environ)
    if world is None:
        raise LaunchError(
            "this process was started alone, without torchrun, mpirun or srun, and torch.distributed has no "
            "process group; start several, or call torch.distributed.init_process_group before"
        )
    return place_in_world(world, store, token)


def _meet(
    place: Place, meeting: Meeting, rendezvous: Rendezvous, monitor: Monitor
) -> tuple[tuple[str, ...], str | None]:
    """Wait for all ranks; returns their hosts, and in what they differ, which every rank finds alike."""
    waiting = rendezvous.waiting
    while absent := monitor.absent():
        if time.monotonic() > waiting.deadline:
            raise RankError(
                f"{named([place.numbers[rank] for rank in absent])} of {place.size} did not arrive at "
                f"{waiting.master} within {waiting.arrival_seconds:.3g} s; see why, and whether all were "
                "given the same address"
            )
        time.sleep(0.02)
    members = rendezvous.members(meeting)
    hosts = tuple(str(member["host"]) for member in members)
    monitor.met(
        [f"rank {number} on {host}" for number, host in zip(place.numbers, hosts, strict=True)],
        [str(member["process"]) for member in members],
    )
    return hosts, difference([member["facts"] for member in members], hosts, place.numbers)


def _make_default_group(store: Store, role: Role) -> None:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(
        backend,
        store=PrefixStore("gloo", store),
        rank=role.rank,
        world_size=role.size,
        timeout=timedelta(seconds=_EXCHANGE_TIMEOUTS * role.timeout_seconds),
    )


def _own_group(place: Place) -> dist.ProcessGroup:
    """A group for the membership alone, in which ranks may be waited for long."""
    everybody = place.size == dist.get_world_size()
    group: dist.ProcessGroup = dist.new_group(
        list(place.numbers),
        backend="gloo",
        timeout=timedelta(seconds=_WORK_SECONDS),
        use_local_synchronization=not everybody,
    )
    return group
