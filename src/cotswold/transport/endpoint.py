"""An endpoint: messages to and from many peers, by name.

Knows: ZeroMQ sockets, who has proved itself, which peers are lost. Does not know: what messages mean, how
processes are started.

An endpoint listens at a Unix socket in a folder of its user's, and at a TCP port where a host is given. Of
two peers one connects; the other connects back by itself. Messages of one sender come in the order in which
they were sent, each once or, if the connection ends, not at all. Nothing waits: what a peer does not take is
kept within a bound, beyond which the peer is dropped. One thread uses an endpoint.
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
from cotswold.transport.authentication import Doorkeeper, Ring
from cotswold.transport.frames import (
    DATA,
    HELLO,
    MEMORY,
    Buffer,
    Header,
    Lost,
    MalformedError,
    Message,
    Packed,
    Ready,
    flat,
    joined,
    opened,
    parted,
    unpack,
)
from cotswold.transport.handshake import is_name
from cotswold.transport.listener import Came, Listener
from cotswold.transport.listeners import Doors
from cotswold.transport.peer import LOST_SECONDS, Own, Traffic
from cotswold.transport.peers import OLD_TOKEN, Common, Event, Peers
from cotswold.transport.shared_buffers import Probe
from cotswold.transport.socket_folder import SocketFolder
from cotswold.transport.versions import Versions

_BUSY = 16
"""Among so many events at most it is looked whether a peer is lost."""
_BATCH = 64
"""Messages taken in at a time, at most."""


class Endpoint:
    """Where the process called ``name`` sends and receives; use in a ``with`` statement, or `close`.

    ``host`` is the address of this machine at which other hosts reach it, None where all peers are here;
    ``ports`` are those of which it takes one that is free, any without. With ``encrypt`` (CURVE) what
    goes over TCP between hosts is secret, at about a fifth of the speed; on the loopback it is not, unless
    ``mode`` says how callers over TCP prove themselves. A message of more than ``message_bytes`` is
    refused; a peer for which more than ``waiting_bytes`` wait is dropped; so is one whose host acknowledges
    nothing for ``lost_seconds``. An endpoint that is ``apart`` behaves as if it had a host of its own, to
    measure and to test: TCP alone, encrypted if so said.

    Several tokens may be in use at once, a ring, which `rotate` changes while messages travel. The endpoint
    is reached by the first, and calls others by whichever they know.
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
        """The secret by which this process proves its name to whoever was given the key of the pair
        (`names`); empty for none."""
        self.traffic = Traffic()
        self._common = common = Common(zmq.Context())
        self.refused = common.refused
        """How many were refused: callers (`strangers`), messages that are none (`malformed`), `oversized`,
        and what was of a `version` of the protocol that is not spoken here."""
        self.message_bytes, self.most_waiting_bytes = message_bytes, waiting_bytes
        self._lost_seconds = lost_seconds
        self._events, self._readiness, self._read = common.events, common.readiness, common.read
        self._busy = 0
        """Events since all sockets, and not those of messages alone, were looked at."""
        self._watched: set[int] = set()
        common.context.max_sockets = 8192
        raise_descriptor_limit()
        self._folder = SocketFolder()
        self._probe = Probe()
        self._keyring = Keyring.of(token)
        ring, challenge = Ring.of(self._keyring), authentication.new_nonce()
        self._doorkeeper = Doorkeeper(common.context, ring, challenge)
        unix = f"ipc://{self._folder.path}/socket"
        secret = encrypt and host is not None and (apart or not _loops(host))
        mode = mode or ("curve" if secret else "hmac")
        self._doors = Doors(common.context, name, unix, host, ports, mode, self._listen_to, self._leave)
        self._peers = Peers(common, self._doors, ring, self._own, self._take_in)
        try:
            self._doors.open(ring)
        except BaseException:
            self.close()
            raise
        where = f"{this_host()}/{challenge}" if apart else this_host()
        place = where, os.getpid(), challenge, unix, self._doors.tcp, mode
        self._address = Address(*place, ring.first.fingerprint)

    @property
    def address(self) -> str:
        """The text by which peers connect; it is no secret."""
        return str(self._address)

    @property
    def port_address(self) -> str:
        """``HOST:PORT``, where callers of other hosts find it; raises AssertionError without a port."""
        assert self._address.tcp is not None, "it has a host"
        return self._address.tcp.removeprefix("tcp://")

    @property
    def peers(self) -> Sequence[str]:
        """The names of peers that are connected, or being connected."""
        return tuple(self._peers.of)

    def has(self, peer: str) -> bool:
        """Whether a peer is connected, or being connected."""
        return peer in self._peers.of

    def fileno(self) -> int:
        """A descriptor that can be read when `receive` may have something, for a selector of one's own;
        before each wait for it `has_pending` must have said that there is nothing."""
        return self._readiness.fileno()

    def has_pending(self) -> bool:
        """Whether `receive` may have something at once; where not, `fileno` tells when it may.

        It takes in what has come, and holds until the endpoint is used otherwise.
        """
        if not self._events:
            self._give_back()
            self._readiness.attend()
        return bool(self._events) or self._readiness.is_doubtful

    def keep(self, name: str) -> None:
        """From now on nobody comes in under a name but a peer of this name that this endpoint calls."""
        self._peers.kept.add(name)

    def keep_answers_of(self, name: str) -> None:
        """From now on a peer of this name comes in only with the answer to a call of this endpoint."""
        self._peers.answering.add(name)

    def keep_answers(self) -> None:
        """The same for every name: this endpoint calls, and nobody calls it first."""
        self._peers.admits_answers_only = True

    def vouch(self, name: str, pair: str) -> None:
        """From now on a caller has this name only if it proves it by the key of the pair (`names`); an empty
        key ends that. A caller that came in under the name without proof is lost."""
        self._peers.vouch(name, pair)

    def has_proved(self, name: str, pair: str) -> bool:
        """Whether a peer has called under this name, and proved it by the key of the pair."""
        return self._peers.has_proved(name, pair)

    def version_of(self, peer: str) -> int | None:
        """Of the protocol, on which both have settled; None where the peer has not answered yet. Raises
        KeyError for one that is not connected."""
        return self._peers.of[peer].version

    def is_here(self, peer: str) -> bool:
        """Whether a peer is on this host; raises KeyError for one that is not connected."""
        return self._peers.of[peer].address.is_here

    def connect(self, peer: str, address: str) -> None:
        """Connect to the endpoint called ``peer``; it connects back. That it fails is heard as `Lost`.

        Nothing happens where it is connected already, also if it is reached otherwise now. Raises
        ClusterError for a text that is no address, and for an endpoint of another host that has no port.
        """
        parsed = Address.parsed(address)
        known = self._peers.of.get(peer)
        if known is not None:
            is_its_port = parsed.is_port_alone and known.address.tcp == parsed.tcp
            if known.address.is_same(parsed) or is_its_port:
                return
            self._peers.lose(peer, "another process has its name now")
        self._peers.call(peer, parsed)

    def send(self, peer: str, header: Header | Packed, buffers: Sequence[Buffer] = ()) -> bool:
        """Send plain values and contiguous buffers; returns at once, and the buffers may change afterwards.

        False where the peer is not connected (any more). Raises TypeError or ValueError for a header that
        msgpack does not take, UserError for a message that is too long.
        """
        found = self._peers.of.get(peer)
        if found is None:
            return False
        views = [flat(one) for one in buffers]
        if sum(one.nbytes for one in views) > self.message_bytes:
            raise UserError(
                f"a message of {sum(one.nbytes for one in views)} bytes to {peer} is too long; send it in "
                f"parts of {self.message_bytes} bytes at most"
            )
        if self._read:  # before: the answer may then lie in the block that was read last, which is in cache
            self._give_back()
        found.send(header, views, self.traffic)
        if found.waiting_bytes > self.most_waiting_bytes:
            # what it has given back may not have been read yet
            self._take_in()
            if self.has(peer) and found.waiting_bytes > self.most_waiting_bytes:
                self._peers.lose(peer, f"it takes nothing: {found.waiting_bytes} bytes wait for it")
                return False
        self._readiness.doubt(found.connection.descriptor)
        return True

    def receive(self, timeout: float | None) -> Event | None:
        """The next event, within so many seconds (None: however long it takes); None where there is none."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._events:
            self._give_back()
            self._readiness.attend()
            self._busy += 1
            if self._events and self._busy < _BUSY:
                break
            self._wait(None if deadline is None else deadline - time.monotonic())
            if not self._events and deadline is not None and time.monotonic() >= deadline:
                return None
        return self._events.popleft()

    def rotate(self, ring: Keyring) -> None:
        """From now on these tokens are in use; costs nothing where they are already.

        Where the first is another one, `address` is another text: to be told to whoever may connect. At a
        port by *curve* a listener has the keys of one token; which listeners open and close the head of
        `transport.doors` says. Connections made with a token that is not in the ring any more end: both ends
        hear `Lost`, and may connect again. Raises MachineError where no port is free for a new listener;
        the one before then stays, and it may be tried again.
        """
        if ring != self._keyring:
            self._keyring, keys = ring, Ring.of(ring)
            self._doorkeeper.ring = keys
            self._peers.rotate(keys)
        self._doors.rotate(self._peers.ring)
        first = self._peers.ring.first
        self._address = replace(self._address, tcp=self._doors.tcp, fingerprint=first.fingerprint)

    def waiting_bytes(self, peer: str) -> int:
        """Bytes sent to a peer that it has not taken, as far as is known here; 0 for one that is lost."""
        found = self._peers.of.get(peer)
        return 0 if found is None else found.waiting_bytes

    def _give_back(self) -> None:
        """Tell peers which blocks of theirs nothing here refers to any more."""
        blocks: dict[str, list[int]] = {}
        while self._read:
            name, number = self._read.popleft()
            blocks.setdefault(name, []).append(number)
        for name, numbers in blocks.items():
            # a process that took the name meanwhile has lent other blocks
            peer = self._peers.of.get(name.partition("@")[0])
            if peer is not None and peer.label == name:
                peer.give_back(numbers, self.traffic)
                self._readiness.doubt(peer.connection.descriptor)

    def watch(self, descriptor: int) -> None:
        """From now on `receive` also tells, by `Ready`, that this descriptor can be read."""
        if descriptor not in self._watched:
            self._watched.add(descriptor)
            self._readiness.add(descriptor, partial(self._tell_ready, descriptor))

    def unwatch(self, descriptor: int) -> None:
        """The opposite of `watch`."""
        if descriptor in self._watched:
            self._watched.discard(descriptor)
            self._readiness.remove(descriptor)

    def drop(self, peer: str, why: str = "it was dropped here") -> None:
        """Hang up on a peer, which is told; what it sends from now on is not read. No `Lost` is heard."""
        if self.has(peer):
            self._peers.lose(peer, why)
            kept = [one for one in self._events if not (isinstance(one, Lost) and one.peer == peer)]
            self._events.clear()
            self._events.extend(kept)

    def flush(self, timeout: float) -> bool:
        """Wait until all that was sent has been handed to the connections; whether it was, in time."""
        deadline = time.monotonic() + timeout
        while True:
            self._readiness.attend()  # which may hand on all there is: then nothing more comes to wait for
            if not any(each.has_unsent for each in self._peers.of.values()):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._wait(left)

    def close(self, linger: float = 1.0) -> None:
        """Hang up on all, after at most so many seconds in which what was sent leaves."""
        if self._common.context.closed:
            return
        self.flush(linger)
        for peer in self._peers.of.values():
            peer.close(linger)
        self._peers.of.clear()
        self._readiness.close()
        self._watched.clear()
        self._doors.close()
        self._common.context.term()
        self._doorkeeper.join()
        self._probe.close()
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _own(self) -> Own:
        """What it says of itself now."""
        probe, versions = self._probe.descriptor, self._peers.versions
        return Own(self.name, self._address, versions, probe, self._lost_seconds, self.key)

    def _wait(self, seconds: float | None) -> None:
        """Until a descriptor is ready, unless there is something already; what it asks for is done."""
        self._busy = 0
        self._readiness.wait(0.0 if self._events else seconds)

    def _tell_ready(self, descriptor: int) -> None:
        self._events.append(Ready(descriptor))

    def _count_strangers(self, listener: Listener) -> None:
        self.refused["strangers"] += listener.strangers()

    def _listen_to(self, listener: Listener) -> None:
        """A listener opened."""
        self._readiness.add_socket(listener.descriptor, partial(self._hear, listener))
        self._readiness.add_socket(listener.monitor_descriptor, partial(self._count_strangers, listener))

    def _leave(self, listener: Listener) -> None:
        """A listener is to be closed: connections to it end, and what came by them before is taken in."""
        self._take_in()
        self._count_strangers(listener)
        for caller in list(listener.callers.values()):
            if self.has(caller.name):
                self._peers.lose(caller.name, OLD_TOKEN)
        self._readiness.remove(listener.descriptor)
        self._readiness.remove(listener.monitor_descriptor)

    def _hear(self, listener: Listener) -> None:
        """Take in what has come, up to one event."""
        for _ in range(_BATCH):
            if not self._take_in_from(listener):
                return
            if self._events:
                break
        self._readiness.doubt(listener.descriptor)

    def _take_in(self) -> None:
        """Take in what has come, some messages at most."""
        for listener in self._doors.listeners:
            self._readiness.doubt(listener.descriptor)
            for _ in range(_BATCH):
                if not self._take_in_from(listener):
                    break

    def _take_in_from(self, listener: Listener) -> bool:
        """One message; False where there is none."""
        came = listener.take()
        if came is None:
            return False
        try:
            self._take(listener, came)
        except MalformedError as error:
            self.refused["oversized" if error.oversized else "malformed"] += 1
        return True

    def _take(self, listener: Listener, came: Came) -> None:
        """One message to here; raises MalformedError."""
        kind, version, packed = parted(came.first)
        if kind == HELLO:
            self._peers.greet(listener, came, version, packed)
            return
        caller = listener.callers.get(came.number)
        peer = None if caller is None else self._peers.of.get(caller.name)
        if peer is None:  # lost, and does not know
            return
        if kind not in (DATA, MEMORY):
            raise MalformedError("no kind of message")
        if not self._peers.versions.speaks(version):
            self._peers.refuse_version(listener, came.number)
            self._peers.lose_by_version(peer, Versions(version, version))
            return
        size = len(came.first) + sum(one.nbytes for one in came.rest)
        if kind == MEMORY:
            self.traffic.received_bytes += size
            peer.heard_of_memory(*_numbers(unpack(packed)))
        else:
            header, sizes, loan = opened(packed, came.rest, self.message_bytes)
            buffers = joined(sizes, came.rest) if loan is None else peer.borrower.views(loan, sizes)
            self.traffic.received_messages += 1
            self.traffic.received_bytes += size
            if loan is not None:
                self.traffic.received_shared_bytes += sum(sizes)
            self._events.append(Message(peer.name, header, buffers))


def _numbers(said: object) -> tuple[list[int], list[int]]:
    """What a peer says of shared memory; raises MalformedError."""
    if isinstance(said, list) and len(said) == 2 and all(isinstance(one, list) for one in said):
        given_back, dropped = said
        if all(isinstance(one, int) for one in (*given_back, *dropped)):
            return given_back, dropped
    raise MalformedError("no blocks of shared memory")


def _loops(host: str) -> bool:
    return host.startswith("127.") or host in ("::1", "localhost")
