"""Ranks that have found each other, agree on what they are to do, and watch over each other.

Knows: torch's process group, the token and the facts that must be the same everywhere. Does not know: what
the facts mean, networks, recipes, how the processes were started.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # documented, not in __all__
from torch.nn import functional

from cotswold.errors import LaunchError, RankError
from cotswold.host import Token, interface_to, token_of
from cotswold.host.token import VARIABLE as TOKEN
from cotswold.launch.facts import difference, named
from cotswold.launch.failure import peer_lost, sentence_of
from cotswold.launch.heartbeat import Role
from cotswold.launch.monitor import Monitor
from cotswold.launch.rendezvous import INTERFACE, Meeting, Rendezvous
from cotswold.launch.world import World

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
    world: World,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    arrival_seconds: float = ARRIVAL_SECONDS,
    stall_seconds: float | None = None,
    token: Token | None = None,
    facts: Mapping[str, str],
) -> Iterator[Membership]:
    """Find the other ranks, compare ``facts`` with theirs, set up torch.distributed; for a `with` block.

    Inside, torch.distributed has its default group (Gloo); a rank that is silent for ``timeout_seconds``, or
    fails, ends all others within a few seconds more, each with a sentence that names it. An exchange waits 30
    times as long for a rank that lives; a rank that others wait for and that neither computes, reads nor
    writes for ``stall_seconds`` (by default 90 times as long) counts as dead. At the end of the block ranks
    wait for each other.

    All ranks have the same ``token``, by default the one in COTSWOLD_TOKEN: what is not signed with it is not
    believed. Raises LaunchError where there is none; RankError if a rank does not arrive within
    ``arrival_seconds`` or the store cannot be reached; LaunchError, on every rank, if facts differ, and on
    one of two processes that claim the same rank.
    """
    token = token or token_of(os.environ)
    if token is None:
        raise LaunchError(
            "the ranks have no secret in common by which they know each other; set the same on all, as in "
            f"export {TOKEN}=$(openssl rand -hex 32) before the launcher"
        )
    rendezvous = Rendezvous(
        world,
        socket.gethostname(),
        token,
        timeout_seconds,
        arrival_seconds,
        time.monotonic() + arrival_seconds,
    )
    with _interface(world):
        meeting = rendezvous.meet()
        rendezvous.claim(meeting, facts)
        role = Role(
            world.rank,
            world.size,
            keeper=None if world.hosted else 0,
            timeout_seconds=timeout_seconds,
            stall_seconds=_STALL_TIMEOUTS * timeout_seconds if stall_seconds is None else stall_seconds,
        )
        monitor = Monitor(rendezvous.again(meeting), role, parent=world.parent)
        # until all have come, and told where they are
        names = [f"rank 0 on {world.host}", *(f"rank {each}" for each in range(1, world.size))]
        monitor.met(names, [""] * world.size)
        monitor.start()
        try:
            hosts, disagreement = _meet(meeting, rendezvous, monitor)
            if disagreement is None:
                group = _group(meeting.raw, world, timeout_seconds)
                yield Membership(world.rank, world.size, hosts, group, monitor.exchanging)
        except BaseException as error:
            monitor.fail(sentence_of(error), peer_lost=peer_lost(error))
            raise
        else:
            monitor.leave()
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        if disagreement is not None:
            raise LaunchError(disagreement)


@contextmanager
def _interface(world: World) -> Iterator[None]:
    """Tell Gloo the network interface, unless the user has."""
    name = interface_to(world.host, several_hosts=world.local_size < world.size)
    if INTERFACE in os.environ or name is None:
        yield
        return
    os.environ[INTERFACE] = name
    try:
        yield
    finally:
        os.environ.pop(INTERFACE, None)


def _meet(meeting: Meeting, rendezvous: Rendezvous, monitor: Monitor) -> tuple[tuple[str, ...], str | None]:
    """Wait for all ranks; returns their hosts, and in what they differ, which every rank finds alike."""
    world = rendezvous.world
    while absent := monitor.absent():
        if time.monotonic() > rendezvous.deadline:
            raise RankError(
                f"{named(absent)} of {world.size} did not arrive at {world.master} within "
                f"{rendezvous.arrival_seconds:.3g} s; see why, and whether all were given the same address"
            )
        time.sleep(0.02)
    members = rendezvous.members(meeting)
    hosts = tuple(str(member["host"]) for member in members)
    monitor.met(
        [f"rank {rank} on {host}" for rank, host in enumerate(hosts)],
        [str(member["process"]) for member in members],
    )
    return hosts, difference([member["facts"] for member in members], hosts)


def _group(store: Store, world: World, timeout_seconds: float) -> dist.ProcessGroup:
    """Sets up the default group; returns one for memberships alone, in which ranks may be waited for long."""
    timeout = timedelta(seconds=_EXCHANGE_TIMEOUTS * timeout_seconds)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(
        backend, store=PrefixStore("gloo", store), rank=world.rank, world_size=world.size, timeout=timeout
    )
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=_WORK_SECONDS))
    return group
