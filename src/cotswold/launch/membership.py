"""Membership of ranks that have found each other, agree on the same facts, and monitor each other.

Knows: torch's process groups, facts that must be equal on all ranks, the monitor. Does not know: the facts'
meaning, networks, recipes, how the processes were started.
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
from cotswold.launch.consistency_check import first_difference, format_ranks
from cotswold.launch.rank_identity import RankIdentity, identity_from_group, identity_from_world
from cotswold.launch.rendezvous import Rendezvous, Session
from cotswold.launch.startup import StartupDeadline
from cotswold.launch.store_connection import connections_to
from cotswold.launch.watch.failure import describe_error, is_peer_lost
from cotswold.launch.watch.monitor import Monitor
from cotswold.launch.watch.role import Role
from cotswold.launch.world import World, launcher_hosts_store, world_of

TIMEOUT_SECONDS = 20.0
"""Seconds of silence after which a rank counts as dead."""
ARRIVAL_SECONDS = 120.0
"""Seconds that ranks wait for each other at the start.

On a busy file system importing torch takes a minute.
"""
_EXCHANGE_TIMEOUTS = 30
"""Timeout of an exchange as a multiple of the silence timeout: a live rank may compute, evaluate or write."""
_STALL_TIMEOUTS = 90
"""Multiple of the timeout after which an idle rank counts as hung while others wait for it."""
_WORK_SECONDS = 7 * 86400.0
"""Timeout of an exchange of the membership: one rank may prepare samples or write files for hours."""


@dataclass(frozen=True)
class Membership:
    """This process's membership in a group of ranks.

    Every rank calls the methods in the same order. The exchanges use a separate process group, so another
    thread may train at the same time.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of ranks.
        hosts: Host name of each rank.
    """

    rank: int
    size: int
    hosts: tuple[str, ...]
    _group: dist.ProcessGroup
    _mark_exchange: Callable[[], AbstractContextManager[None]] = nullcontext

    def gather(self, value: object) -> list[Any]:
        """Gather a JSON-serialisable value from every rank.

        Args:
            value: This rank's value. It is sent as JSON; nothing is unpickled.

        Returns:
            The values of all ranks, in rank order, on every rank.
        """
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(self.size)]
        with self._mark_exchange():
            dist.all_gather(sizes, torch.tensor([len(text)], device="cpu"), group=self._group)
            longest = max(int(size) for size in sizes)
            texts = [torch.empty(longest, dtype=torch.uint8, device="cpu") for _ in range(self.size)]
            dist.all_gather(texts, functional.pad(text, (0, longest - len(text))), group=self._group)
        return [
            json.loads(found[: int(size)].numpy().tobytes()) for found, size in zip(texts, sizes, strict=True)
        ]

    def barrier(self) -> None:
        """Wait until every rank has called this method."""
        with self._mark_exchange():
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
    """Find the other ranks and monitor each other, for a `with` block that all ranks enter and leave::

        import torch.distributed as dist
        from cotswold import launch, mesh

        dist.init_process_group("gloo")  # started by torchrun, Ray Train or anything else
        with launch.join(facts={"rate": "0.1"}) as ranks:  # all must have the same rate
            model = mesh.partition(net, "1x2")
            for images, labels in batches:
                loss(model(images), labels).backward()
                optimiser.step()
            results = ranks.gather({"rank": ranks.rank})

    If torch.distributed has a default group, the ranks of ``group`` find each other in its store; the group
    and the store stay unchanged. Otherwise the block creates a default group (Gloo, and NCCL if CUDA is
    available) and destroys it at the end.

    If a rank fails, or is silent for ``timeout_seconds``, all others end within a few seconds, regardless of
    what their main threads wait for. Each prints a sentence that names the failed rank, and exits with code
    75. At the end of the block the ranks wait for each other. ``sys.exit()`` with success inside the block
    counts as its end; any other exception is a failure.

    The environment is only read; `settings_of` lists what it should contain before torch is imported.

    Args:
        world: The ranks of the job and their address, if there is no default group (default: `world_of` the
            environment).
        store: A torch store that all ranks reach, for this start only (default: the group's, or one at the
            world's address). If one of the ranks hosts it, that rank must be rank 0.
        group: The process group whose ranks join (default: all ranks).
        token: The secret that all ranks share (default: COTSWOLD_TOKEN). Messages that are not signed with it
            are ignored. Without one, the ranks of an existing group draw a token.
        facts: Names and values that must be equal on all ranks.
        timeout_seconds: Seconds of silence after which a rank counts as dead. Exchanges of a default group
            created here time out after 30 times as long.
        arrival_seconds: Seconds that ranks wait for each other at the start.
        stall_seconds: Seconds after which a rank counts as dead if it neither computes nor does I/O while
            others wait for it in `Membership.gather` or `barrier` (default: 90 times ``timeout_seconds``).
        note: Text appended to the sentence that a rank prints when it ends because of another.

    Yields:
        The membership of this process.

    Raises:
        LaunchError: There is no token or no world. Also on every rank if ``facts`` differ, and on one of two
            processes that claim the same rank.
        RankError: A rank does not arrive in time, or the store cannot be reached.
    """
    deadline, host = time.monotonic() + arrival_seconds, socket.gethostname()
    existing = dist.is_initialized()
    identity = _find_identity(world, store, group, token or token_of(os.environ), arrival_seconds)
    own_name = f"rank {identity.global_ranks[identity.rank]} on {host}"
    startup = StartupDeadline(own_name, identity.master, timeout_seconds, arrival_seconds, deadline)
    rendezvous = Rendezvous(
        identity.rank,
        identity.size,
        host,
        identity.job,
        identity.token,
        connections_to(identity.store_source, startup),
        startup,
    )
    session = rendezvous.open_session()
    rendezvous.claim_rank(session, facts or {})
    role = Role(
        identity.rank,
        identity.size,
        identity.store_rank,
        timeout_seconds,
        _STALL_TIMEOUTS * timeout_seconds if stall_seconds is None else stall_seconds,
        "the launcher's store" if launcher_hosts_store(os.environ) else "the ranks' store",
    )
    monitor = Monitor(rendezvous.reconnect(session), role, parent=identity.parent, note=note)
    monitor.set_members(identity.names, ())  # until all ranks have arrived and reported their hosts
    monitor.start()
    own: dist.ProcessGroup | None = None
    try:
        hosts, disagreement = _wait_for_members(identity, session, rendezvous, monitor)
        if disagreement is None:
            if not existing:
                _make_default_group(session.raw, role)
            own = _create_membership_group(identity)
            yield Membership(identity.rank, identity.size, hosts, own, monitor.mark_exchange)
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:  # the script's own exit, with success
            monitor.leave()
        else:
            monitor.fail(describe_error(error), peer_lost=is_peer_lost(error))
        raise
    else:
        monitor.leave()
    finally:
        # The block's own code may have destroyed some or all groups.
        if dist.is_initialized() and (own is not None or not existing):
            with suppress(ValueError):
                dist.destroy_process_group(own if existing else None)
    if disagreement is not None:
        raise LaunchError(disagreement)


def _find_identity(
    world: World | None,
    store: Store | None,
    group: dist.ProcessGroup | None,
    token: Token | None,
    arrival_seconds: float,
) -> RankIdentity:
    """Return this process's identity: in an existing process group, or as a launcher describes it."""
    if (store is not None or dist.is_initialized()) and not hasattr(Store, "clone"):
        raise LaunchError(
            f"torch {torch.__version__} cannot open a second connection to an existing store; use a newer "
            "torch, or call join without a store before a process group exists"
        )
    if dist.is_initialized():
        if world is not None:
            raise LaunchError(
                "torch.distributed already has a process group, which defines the ranks; leave world out"
            )
        return identity_from_group(group, store, token, arrival_seconds)
    world = world or world_of(os.environ)
    if world is None:
        raise LaunchError(
            "this process was started alone, without torchrun, mpirun or srun, and torch.distributed has no "
            "process group; start several processes, or call torch.distributed.init_process_group first"
        )
    return identity_from_world(world, store, token)


def _wait_for_members(
    identity: RankIdentity, session: Session, rendezvous: Rendezvous, monitor: Monitor
) -> tuple[tuple[str, ...], str | None]:
    """Wait for all ranks; return their hosts, and the disagreement, which every rank finds alike."""
    startup = rendezvous.startup
    while absent := monitor.absent_ranks():
        if time.monotonic() > startup.deadline:
            raise RankError(
                f"{format_ranks([identity.global_ranks[rank] for rank in absent])} of {identity.size} did "
                f"not arrive at {startup.master} within {startup.arrival_seconds:.3g} s; check their logs, "
                "and whether all ranks use the same address"
            )
        time.sleep(0.02)
    members = rendezvous.read_members(session)
    hosts = tuple(str(member["host"]) for member in members)
    monitor.set_members(
        [f"rank {number} on {host}" for number, host in zip(identity.global_ranks, hosts, strict=True)],
        [str(member["process"]) for member in members],
    )
    return hosts, first_difference([member["facts"] for member in members], hosts, identity.global_ranks)


def _make_default_group(store: Store, role: Role) -> None:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(
        backend,
        store=PrefixStore("gloo", store),
        rank=role.rank,
        world_size=role.size,
        timeout=timedelta(seconds=_EXCHANGE_TIMEOUTS * role.timeout_seconds),
    )


def _create_membership_group(identity: RankIdentity) -> dist.ProcessGroup:
    """Create a process group for the membership alone, with a long timeout."""
    everybody = identity.size == dist.get_world_size()
    group: dist.ProcessGroup = dist.new_group(
        list(identity.global_ranks),
        backend="gloo",
        timeout=timedelta(seconds=_WORK_SECONDS),
        use_local_synchronization=not everybody,
    )
    return group
