"""Connections between the ranks of a group: shared memory on one host, TCP to other hosts.

Knows: which ranks are on this host, addresses exchanged through the group, the run's token. Does not know:
the messages. Linux only. On other systems, and to and from a rank with ``COTSWOLD_SHARED_MEMORY=0`` or
``COTSWOLD_SOCKETS=0``, there is no such connection, and torch's group carries the messages.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from socket import socket

import torch
import torch.distributed as dist
from torch import Tensor

from cotswold.host.ipc.listener import Listener, TcpListener, call, call_tcp
from cotswold.host.ipc.shared_memory import is_supported
from cotswold.host.ipc.shared_memory_channel import SharedMemoryChannel
from cotswold.host.ipc.tcp_channel import TcpChannel
from cotswold.host.network import address_for_peers
from cotswold.host.token import Token, is_signed, sign

SWITCH = "COTSWOLD_SHARED_MEMORY"
SOCKETS_SWITCH = "COTSWOLD_SOCKETS"
CALL_SECONDS, ANSWER_SECONDS = 5.0, 10.0
"""Seconds that ranks of several hosts try to reach each other before they fall back to torch's group."""
Gather = Callable[[Tensor], list[Tensor]]
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES = (Path("/proc/self/ns/net"), Path("/proc/self/ns/user"))
_FIELD_BYTES = 64


def channels_of(
    gather: Gather, timeout: timedelta | None, members: Sequence[int], rank: int
) -> dict[int, SharedMemoryChannel]:
    """Connect member ``rank`` of a group to the members on this host; all members call this together.

    ``gather`` gathers tensors of equal shape from all members; ``members`` are their ranks in the job, for
    error messages. Returns channels by member. Raises TimeoutError if a member does not connect within
    ``timeout``, ConnectionResetError if one has exited.
    """
    here = _this_host()
    with closing(Listener(len(members))) if here else nullcontext() as listener:
        mine = (here, b"", b"") if listener is None else (here, listener.address, listener.secret)
        told = _gather_fields(gather, *mine)
        if listener is None:
            return {}
        seconds = max(1, int(_seconds(timeout)))
        near = {other: f"rank {members[other]}" for other, each in enumerate(told) if each[0] == here}
        near.pop(rank)
        found: dict[int, socket] = {}
        for other in (each for each in near if each < rank):
            _, address, secret = told[other]
            found[other] = call(address, secret, rank, near[other], seconds)
        found |= listener.accept_all({other: name for other, name in near.items() if other > rank}, seconds)
    return {other: SharedMemoryChannel(found[other], near[other], seconds) for other in sorted(found)}


@dataclass(frozen=True)
class _Peer:
    """Another member of a group: its name in errors, its listener's address and secret."""

    name: str
    address: bytes
    secret: bytes


def streams_of(
    gather: Gather,
    timeout: timedelta | None,
    members: Sequence[int],
    rank: int,
    near: Sequence[int],
    token: Token | None,
) -> dict[int, TcpChannel]:
    """Connect member ``rank`` of a group to the members that are not ``near``; a collective call.

    Ranks that cannot reach each other (a firewall, no address) get no stream, on both sides. With a ``token``
    only its holders can connect; without one, every reader of the group's messages can.
    """
    host = address_for_peers(os.environ)
    key = b"" if token is None else token.derive("messages of a mesh")
    with ExitStack() as stack:
        listener = None
        if os.environ.get(SOCKETS_SWITCH) != "0" and host is not None:
            try:
                listener = stack.enter_context(closing(TcpListener(host, key, len(members))))
            except OSError:  # it is no address of this host
                listener = None
        where = (b"", b"") if listener is None else (listener.address, listener.secret)
        told = _gather_fields(gather, sign(key, *where), *where)
        peers = {
            other: _Peer(f"rank {members[other]}", address, secret)
            for other, (signature, address, secret) in enumerate(told)
            if listener and address and is_signed(key, signature, address, secret)
        }
        for other in (rank, *near):
            peers.pop(other, None)
        found = {} if listener is None else _connect_peers(listener, key, rank, peers)
    reached = torch.zeros(len(members), dtype=torch.uint8, device="cpu")
    reached[list(found)] = 1
    both = [bool(each[rank]) for each in gather(reached)]
    for other in [each for each in found if not both[each]]:
        found.pop(other).close()
    return {other: TcpChannel(found[other], peers[other].name, _seconds(timeout)) for other in sorted(found)}


def _connect_peers(
    listener: TcpListener, key: bytes, rank: int, peers: dict[int, _Peer]
) -> dict[int, socket]:
    """Sockets to those peers that could be reached, or reached this rank."""
    found: dict[int, socket] = {}
    for other in (each for each in peers if each < rank):
        peer = peers[other]
        try:
            found[other] = call_tcp(peer.address, key, peer.secret, rank, CALL_SECONDS)
        except OSError:  # a further attempt would most likely time out as well
            break
    callers = {other: peer.name for other, peer in peers.items() if other > rank}
    return found | listener.accept_ready(callers, ANSWER_SECONDS)


def _seconds(timeout: timedelta | None) -> float:
    return (dist.default_pg_timeout if timeout is None else timeout).total_seconds()


def _gather_fields(gather: Gather, *fields: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Gather three fields of every member, at most `_FIELD_BYTES` each; nothing is unpickled."""
    packed = b"".join(one.ljust(_FIELD_BYTES, b"\0") for one in fields)
    found = []
    for each in gather(torch.frombuffer(bytearray(packed), dtype=torch.uint8)):
        text = bytes(each.tolist())
        one, two, three = (
            text[at : at + _FIELD_BYTES].rstrip(b"\0") for at in range(0, len(text), _FIELD_BYTES)
        )
        found.append((one, two, three))
    return found


def has_shared_memory() -> bool:
    """True if ranks of this host exchange messages through shared memory."""
    return bool(_this_host())


def _this_host() -> bytes:
    """Identity of the host: processes with equal identities can map each other's memory.

    Empty if shared memory is not available.
    """
    if os.environ.get(SWITCH) == "0" or not is_supported():
        return b""
    try:
        # Each network namespace counts as a host, because its sockets have separate addresses.
        spaces = [str(path.readlink()) for path in _NAMESPACES]
        words = " ".join([_BOOT.read_text().strip(), *spaces, str(os.geteuid())])
    except OSError:
        return b""
    return hashlib.sha256(words.encode()).hexdigest().encode()
