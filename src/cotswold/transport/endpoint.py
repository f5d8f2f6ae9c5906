"""An endpoint: messages to and from many peers, by name.

Knows: ZeroMQ sockets, authenticated peers, lost peers. Does not know: the meaning of messages, how processes
are started.

An endpoint listens at a Unix socket in a folder of its user and, if it has a host, at a TCP port. When one
peer connects, the other connects back. Messages of a sender arrive in order. Each arrives once or, if the
connection ends, never. Sending never blocks: messages that a peer has not yet read are queued up to a bound,
beyond which the peer is dropped. Only one thread may use an endpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

import zmq

from cotswold.errors import UserError
from cotswold.host import Keyring, Token
from cotswold.host.open_files import raise_descriptor_limit
from cotswold.transport import authentication
from cotswold.transport.address import Address, Mode, this_host
from cotswold.transport.authentication import Authenticator, KeySet
from cotswold.transport.frames import (
    Buffer,
    Header,
    Lost,
    Packed,
    Ready,
    as_bytes,
)
from cotswold.transport.handshake import is_name
from cotswold.transport.incoming import Incoming
from cotswold.transport.listeners import Listeners
from cotswold.transport.peer import LOST_SECONDS, EndpointTraffic, LocalEndpoint
from cotswold.transport.peers import EndpointState, Event, Peers
from cotswold.transport.shared_buffers import MemoryProbe
from cotswold.transport.socket_folder import SocketFolder

_BUSY = 16
"""Number of events after which the endpoint checks for lost peers."""


class Endpoint:
    """Sends and receives for the process called ``name``; use in a ``with`` statement, or `close`.

    Args:
        token: The token or keyring in use. The endpoint listens with the first token, and calls others with
            any token that they know; `rotate` replaces the ring while messages travel.
        name: Name of this process for its peers.
        host: Address of this machine for other hosts; None if all peers are on this host.
        ports: Ports to choose a free one from; empty for any port.
        encrypt: Encrypt TCP traffic between hosts (CURVE), at about a fifth of the speed. Loopback traffic is
            not encrypted, unless ``mode`` says so.
        mode: Authentication of callers over TCP; None to derive it from ``encrypt`` and ``host``.
        lost_seconds: Seconds until a host that acknowledges nothing counts as lost.
        message_bytes: Largest message in bytes; longer ones are refused.
        waiting_bytes: Unread bytes after which a peer is dropped.
        apart: Behave as if no other endpoint were on this host, for measurements and tests: TCP only,
            encrypted if ``encrypt``.

    Raises:
        UserError: If the name is invalid.
    """

    def __init__(
        self,
        token: Token | Keyring,
        name: str,
        *,
        host: str | None = None,
        ports: Sequence[int] = (),
        encrypt: bool = True,
        mode: Mode | None = None,
        lost_seconds: float = LOST_SECONDS,
        message_bytes: int = 1 << 30,
        waiting_bytes: int = 1 << 30,
        apart: bool = False,
    ) -> None:
        if not is_name(name):
            raise UserError(
                f"{name!r} cannot name an endpoint; use up to 64 letters, digits, '.', '-' or '_'"
            )
        self.name = name
        self.key = ""
        """The secret by which this process proves its name to peers that have the pair key (`names`);
        empty for none."""
        self.traffic = EndpointTraffic()
        self._common = common = EndpointState(zmq.Context())
        self.rejections = common.rejections
        """Number of refusals by kind: `strangers` (callers), `malformed` and `oversized` messages, and
        messages in an unsupported `version` of the protocol."""
        self.message_bytes, self.max_unread_bytes = message_bytes, waiting_bytes
        self._lost_seconds = lost_seconds
        self._events, self._readiness, self._read = common.events, common.poller, common.read
        self._busy = 0
        """Events since all sockets were checked, including monitors."""
        self._descriptors: set[int] = set()
        common.context.max_sockets = 8192
        raise_descriptor_limit()
        self._folder = SocketFolder()
        self._probe = MemoryProbe()
        self._keyring = Keyring.of(token)
        ring, challenge = KeySet.of(self._keyring), authentication.new_nonce()
        self._authenticator = Authenticator(common.context, ring, challenge)
        unix = f"ipc://{self._folder.path}/socket"
        secret = encrypt and host is not None and (apart or not _loops(host))
        mode = mode or ("curve" if secret else "hmac")
        incoming = self._incoming = Incoming(common, self.traffic, message_bytes)
        listen, leave = incoming.add, incoming.remove
        incoming.listeners = self._listeners = Listeners(
            common.context, name, unix, host, ports, mode, listen, leave
        )
        incoming.peers = self._peers = Peers(
            common, self._listeners, ring, self._local_endpoint, incoming.read_all
        )
        try:
            self._listeners.open(ring)
        except BaseException:
            self.close()
            raise
        where = f"{this_host()}/{challenge}" if apart else this_host()
        place = where, os.getpid(), challenge, unix, self._listeners.tcp, mode
        self._address = Address(*place, ring.first.fingerprint)

    @property
    def address(self) -> str:
        """The text by which peers connect; not a secret."""
        return str(self._address)

    @property
    def port_address(self) -> str:
        """``HOST:PORT`` for callers of other hosts; raise AssertionError without a port."""
        assert self._address.tcp is not None, "the endpoint has a host"
        return self._address.tcp.removeprefix("tcp://")

    @property
    def peers(self) -> Sequence[str]:
        """Names of peers that are connected or connecting."""
        return tuple(self._peers.of)

    def has(self, peer: str) -> bool:
        """True if a peer is connected or connecting."""
        return peer in self._peers.of

    def fileno(self) -> int:
        """A descriptor that becomes readable when `receive` may have an event, for an external selector.
        Before each wait for it, `has_pending` must have returned False."""
        return self._readiness.fileno()

    def has_pending(self) -> bool:
        """True if `receive` may have an event at once; if False, `fileno` becomes readable when it may.

        Reads what has arrived. The answer is valid until the endpoint is used otherwise.
        """
        if not self._events:
            self._return_blocks()
            self._readiness.attend()
        return bool(self._events) or self._readiness.has_unchecked

    def reserve_name(self, name: str) -> None:
        """From now on, reserve a name for a peer that this endpoint calls."""
        self._peers.reserved.add(name)

    def accept_only_answers_of(self, name: str) -> None:
        """From now on, accept a peer of this name only if it answers a call of this endpoint."""
        self._peers.answer_only_names.add(name)

    def accept_only_answers(self) -> None:
        """From now on, accept only peers that answer a call of this endpoint."""
        self._peers.accepts_only_answers = True

    def require_proof(self, name: str, pair: str) -> None:
        """From now on, require a caller of this name to prove it with the pair key (`names`); an empty key
        removes the requirement. A connected caller that has not proved the name is lost."""
        self._peers.require_proof(name, pair)

    def has_proved(self, name: str, pair: str) -> bool:
        """True if a peer has connected under this name and proved it with the pair key."""
        return self._peers.has_proved(name, pair)

    def version_of(self, peer: str) -> int | None:
        """The protocol version agreed with a peer; None if it has not answered yet. Raises KeyError if it
        is not connected."""
        return self._peers.of[peer].version

    def is_local(self, peer: str) -> bool:
        """True if a peer is on this host; raise KeyError if it is not connected."""
        return self._peers.of[peer].address.is_local

    def connect(self, peer: str, address: str) -> None:
        """Connect to the endpoint called ``peer``, which connects back. A failure arrives as `Lost`.

        If the peer is connected already, even at another address, nothing happens.

        Args:
            peer: Name of the endpoint.
            address: Its `address`.

        Raises:
            ClusterError: If the text is not an address, or if the endpoint is remote and has no port.
        """
        parsed = Address.parsed(address)
        known = self._peers.of.get(peer)
        if known is not None:
            is_its_port = parsed.is_port_only and known.address.tcp == parsed.tcp
            if known.address.is_same(parsed) or is_its_port:
                return
            self._peers.drop(peer, "another process has its name now")
        self._peers.call(peer, parsed)

    def send(self, peer: str, header: Header | Packed, buffers: Sequence[Buffer] = ()) -> bool:
        """Send plain values and contiguous buffers; return at once. The buffers may change afterwards.

        Args:
            peer: Name of the receiver.
            header: Plain values, or their msgpack.
            buffers: Contiguous buffers.

        Returns:
            False if the peer is not connected.

        Raises:
            TypeError: If msgpack cannot encode the header.
            ValueError: If the header is too long.
            UserError: If the message is longer than `message_bytes`.
        """
        found = self._peers.of.get(peer)
        if found is None:
            return False
        views = [as_bytes(one) for one in buffers]
        if sum(one.nbytes for one in views) > self.message_bytes:
            raise UserError(
                f"a message of {sum(one.nbytes for one in views)} bytes to {peer} is too long; send it in "
                f"parts of {self.message_bytes} bytes at most"
            )
        if self._read:  # first: the answer may then use the block that was read last, which is in cache
            self._return_blocks()
        found.send(header, views, self.traffic)
        if found.unread_bytes > self.max_unread_bytes:
            # messages that give blocks back may not have been read yet
            self._incoming.read_all()
            if self.has(peer) and found.unread_bytes > self.max_unread_bytes:
                self._peers.drop(peer, f"it reads nothing: {found.unread_bytes} bytes are queued for it")
                return False
        self._readiness.recheck(found.connection.descriptor)
        return True

    def reserve(self, peer: str, count: int) -> memoryview | None:
        """Return memory of ``count`` bytes that a peer maps; None if it maps none.

        `send` does not copy a first buffer that starts there. Call `release` if it was not sent.
        """
        found = self._peers.of.get(peer)
        return None if found is None else found.reserve(count)

    def release(self, peer: str, memory: memoryview) -> None:
        """Release memory from `reserve`; no effect after it was sent."""
        if peer in self._peers.of:
            self._peers.of[peer].buffer_sender.release_reserved(memory)

    def receive(self, timeout: float | None) -> Event | None:
        """Return the next event, or None after ``timeout`` seconds (None: wait without limit)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._events:
            self._return_blocks()
            self._readiness.attend()
            self._busy += 1
            if self._events and self._busy < _BUSY:
                break
            self._wait(None if deadline is None else deadline - time.monotonic())
            if not self._events and deadline is not None and time.monotonic() >= deadline:
                return None
        return self._events.popleft()

    def rotate(self, ring: Keyring) -> None:
        """Use these tokens from now on; costs nothing if they are in use already.

        If the first token changes, `address` changes too: send it to all who may connect. At a TCP port with
        *curve*, a listener has the keys of one token; `transport.listeners` says which listeners open and
        close. Connections made with a token that is not in the ring any more end: both ends receive `Lost`,
        and may connect again.

        Args:
            ring: The tokens.

        Raises:
            MachineError: If no port is free for a new listener. The old listener stays, and the call may be
                repeated.
        """
        if ring != self._keyring:
            self._keyring, keys = ring, KeySet.of(ring)
            self._authenticator.ring = keys
            self._peers.rotate(keys)
        self._listeners.rotate(self._peers.ring)
        first = self._peers.ring.first
        self._address = replace(self._address, tcp=self._listeners.tcp, fingerprint=first.fingerprint)

    def unread_bytes(self, peer: str) -> int:
        """Bytes sent to a peer that it has not read, as far as known; 0 for a lost peer."""
        found = self._peers.of.get(peer)
        return 0 if found is None else found.unread_bytes

    def _return_blocks(self) -> None:
        """Return blocks of shared memory that nothing here refers to any more to their owners."""
        blocks: dict[str, list[int]] = {}
        while self._read:
            name, number = self._read.popleft()
            blocks.setdefault(name, []).append(number)
        for name, numbers in blocks.items():
            # another process with the same name has other blocks
            peer = self._peers.of.get(name.partition("@")[0])
            if peer is not None and peer.label == name:
                peer.return_blocks(numbers, self.traffic)
                self._readiness.recheck(peer.connection.descriptor)

    def watch(self, descriptor: int) -> None:
        """From now on, `receive` also returns `Ready` when this descriptor is readable."""
        if descriptor not in self._descriptors:
            self._descriptors.add(descriptor)
            self._readiness.add(descriptor, partial(self._on_ready, descriptor))

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`."""
        if descriptor in self._descriptors:
            self._descriptors.discard(descriptor)
            self._readiness.remove(descriptor)

    def drop(self, peer: str, why: str = "it was dropped here") -> None:
        """Disconnect a peer, and notify it; ignore everything it sends from now on. No `Lost` event
        follows."""
        if self.has(peer):
            self._peers.drop(peer, why)
            kept = [one for one in self._events if not (isinstance(one, Lost) and one.peer == peer)]
            self._events.clear()
            self._events.extend(kept)

    def flush(self, timeout: float) -> bool:
        """Wait until all sent messages are handed to the connections; return True if they were, in time."""
        deadline = time.monotonic() + timeout
        while True:
            self._readiness.attend()  # may hand over all messages: then no event follows
            if not any(each.has_unsent for each in self._peers.of.values()):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._wait(left)

    def close(self, linger: float = 1.0) -> None:
        """Disconnect all peers; wait up to ``linger`` seconds for sent messages to leave."""
        if self._common.context.closed:
            return
        self.flush(linger)
        for peer in self._peers.of.values():
            peer.close(linger)
        self._peers.of.clear()
        self._readiness.close()
        self._descriptors.clear()
        self._listeners.close()
        self._common.context.term()
        self._authenticator.join()
        self._probe.close()
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _local_endpoint(self) -> LocalEndpoint:
        """This endpoint's description of itself for the peers that it calls."""
        probe, versions = self._probe.descriptor, self._peers.versions
        return LocalEndpoint(self.name, self._address, versions, probe, self._lost_seconds, self.key)

    def _wait(self, seconds: float | None) -> None:
        """Wait until a descriptor is ready, unless an event is queued; handle what is ready."""
        self._busy = 0
        self._readiness.wait(0.0 if self._events else seconds)

    def _on_ready(self, descriptor: int) -> None:
        self._events.append(Ready(descriptor))


def _loops(host: str) -> bool:
    return host.startswith("127.") or host in ("::1", "localhost")
