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
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

import zmq

from cotswold.cluster.transport import authentication
from cotswold.cluster.transport.address import Address, Mode, this_host
from cotswold.cluster.transport.authentication import Doorkeeper, Keys
from cotswold.cluster.transport.folder import SocketFolder
from cotswold.cluster.transport.frames import (
    DATA,
    GONE,
    HELLO,
    MEMORY,
    WELCOME,
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
    unpack,
)
from cotswold.cluster.transport.hello import Hello, is_name
from cotswold.cluster.transport.listener import Listener, TakenError
from cotswold.cluster.transport.loans import Probe
from cotswold.cluster.transport.peer import LOST_SECONDS, Peer, Traffic
from cotswold.cluster.transport.readiness import Readiness
from cotswold.errors import ClusterError, MachineError, UserError
from cotswold.host import Token

Event = Message | Lost | Ready
_BUSY = 16
"""Among so many events at most it is looked whether a peer is lost."""
_BATCH = 64
"""Messages taken in at a time, at most."""


class PortsTakenError(MachineError):
    """Others listen at all the ports that were given."""


class Endpoint:
    """Where the process called ``name`` sends and receives; use in a ``with`` statement, or `close`.

    ``host`` is the address of this machine at which other hosts reach it, None where all peers are here;
    ``ports`` are those of which it takes one that is free, any without. With ``encrypt`` (CURVE) what
    goes over TCP between hosts is secret, at about a fifth of the speed; on the loopback it is not, unless
    ``mode`` says how callers over TCP prove themselves. A message of more than ``message_bytes`` is
    refused; a peer for which more than ``waiting_bytes`` wait is dropped; so is one whose host acknowledges
    nothing for ``lost_seconds``. An endpoint that is ``apart`` behaves as if it had a host of its own, to
    measure and to test: TCP alone, encrypted if so said.
    """

    def __init__(
        self,
        token: Token,
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
        self.traffic = Traffic()
        self.refused: Counter[str] = Counter()
        """How many were refused: callers (`strangers`), messages that are none (`malformed`), `oversized`."""
        self.message_bytes, self.most_waiting_bytes = message_bytes, waiting_bytes
        self._lost_seconds = lost_seconds
        self._keys = Keys.of(token)
        self._peers: dict[str, Peer] = {}
        self._names: dict[bytes, str] = {}
        """Who is at the other end of a connection to here, by ZeroMQ's number of it."""
        self._events: deque[Event] = deque()
        self._read: deque[tuple[str, int]] = deque()
        """Blocks of peers' shared memory that nothing here refers to any more."""
        self._busy = 0
        """Events since all sockets, and not those of messages alone, were looked at."""
        self._readiness = Readiness()
        self._watched: set[int] = set()
        self._context = zmq.Context()
        self._context.max_sockets = 8192
        self._folder = SocketFolder()
        self._probe = Probe()
        self._listeners: list[Listener] = []
        challenge = authentication.new_nonce()
        self._doorkeeper = Doorkeeper(self._context, self._keys, challenge)
        try:
            unix = f"ipc://{self._folder.path}/socket"
            self._listen(unix, "hmac")
            secret = encrypt and host is not None and (apart or not _loops(host))
            mode = mode or ("curve" if secret else "hmac")
            tcp = None
            if host is not None:
                tcp = self._listen_at(host, ports, mode)
            where = f"{this_host()}/{challenge}" if apart else this_host()
            self._address = Address(where, os.getpid(), challenge, unix, tcp, mode)
        except BaseException:
            self.close()
            raise

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
        return tuple(self._peers)

    def has(self, peer: str) -> bool:
        """Whether a peer is connected, or being connected."""
        return peer in self._peers

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

    def is_here(self, peer: str) -> bool:
        """Whether a peer is on this host; raises KeyError for one that is not connected."""
        return self._peers[peer].address.is_here

    def connect(self, peer: str, address: str) -> None:
        """Connect to the endpoint called ``peer``; it connects back. That it fails is heard as `Lost`.

        Nothing happens where it is connected already. Raises ClusterError for a text that is no address, and
        for an endpoint of another host that has no port.
        """
        parsed = Address.parsed(address)
        known = self._peers.get(peer)
        if known is not None:
            is_its_port = parsed.is_port_alone and known.address.tcp == parsed.tcp
            if known.address == parsed or is_its_port:
                return
            self._lose(peer, "another process has its name now")
        self._call(peer, parsed)

    def send(self, peer: str, header: Header | Packed, buffers: Sequence[Buffer] = ()) -> bool:
        """Send plain values and contiguous buffers; returns at once, and the buffers may change afterwards.

        False where the peer is not connected (any more). Raises TypeError or ValueError for a header that
        msgpack does not take, UserError for a message that is too long.
        """
        found = self._peers.get(peer)
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
            if peer in self._peers and found.waiting_bytes > self.most_waiting_bytes:
                self._lose(peer, f"it takes nothing: {found.waiting_bytes} bytes wait for it")
                return False
        self._readiness.doubt(found.descriptor)
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

    def waiting_bytes(self, peer: str) -> int:
        """Bytes sent to a peer that it has not taken, as far as is known here; 0 for one that is lost."""
        found = self._peers.get(peer)
        return 0 if found is None else found.waiting_bytes

    def _give_back(self) -> None:
        """Tell peers which blocks of theirs nothing here refers to any more."""
        blocks: dict[str, list[int]] = {}
        while self._read:
            name, number = self._read.popleft()
            blocks.setdefault(name, []).append(number)
        for name, numbers in blocks.items():
            # a process that took the name meanwhile has lent other blocks
            peer = self._peers.get(name.partition("@")[0])
            if peer is not None and peer.label == name:
                peer.give_back(numbers, self.traffic)
                self._readiness.doubt(peer.descriptor)

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
        if peer in self._peers:
            self._lose(peer, why)
            self._events = deque(
                one for one in self._events if not (isinstance(one, Lost) and one.peer == peer)
            )

    def flush(self, timeout: float) -> bool:
        """Wait until all that was sent has been handed to the connections; whether it was, in time."""
        deadline = time.monotonic() + timeout
        while True:
            self._readiness.attend()  # which may hand on all there is: then nothing more comes to wait for
            if not any(each.has_unsent for each in self._peers.values()):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._wait(left)

    def close(self, linger: float = 1.0) -> None:
        """Hang up on all, after at most so many seconds in which what was sent leaves."""
        if self._context.closed:
            return
        self.flush(linger)
        for peer in self._peers.values():
            peer.close(linger)
        self._peers.clear()
        self._readiness.close()
        self._watched.clear()
        for listener in self._listeners:
            listener.close()
        self._context.term()
        self._doorkeeper.join()
        self._probe.close()
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _listen_at(self, host: str, ports: Sequence[int], mode: Mode) -> str:
        """Listen at one of these ports that is free, or at any; what it became."""
        shown = f"[{host}]" if ":" in host else host
        for port in ports or ("*",):
            try:
                return self._listen(f"tcp://{shown}:{port}", mode)
            except TakenError:
                continue
        if len(ports) == 1:
            raise PortsTakenError(
                f"the endpoint {self.name} cannot listen at {host}: its only port, {ports[0]}, is taken; "
                "give a port to each process of a machine, and some more"
            )
        raise PortsTakenError(
            f"the endpoint {self.name} cannot listen at {host}: all of its {len(ports)} ports, {ports[0]} to "
            f"{ports[-1]}, are taken; give a port to each process of a machine, and some more"
        )

    def _listen(self, where: str, mode: Mode) -> str:
        """Listen at an address; what it became."""
        listener = Listener(self._context, self._keys, self.name, where, mode)
        self._listeners.append(listener)
        self._readiness.add_socket(listener.descriptor, partial(self._listen_to, listener))
        self._readiness.add_socket(listener.monitor_descriptor, partial(self._count_strangers, listener))
        return listener.where

    def _call(self, name: str, address: Address) -> None:
        peer = Peer(
            self._context,
            self._keys,
            self.name,
            self._address,
            name,
            address,
            self._probe.descriptor,
            self._read,
            self._lost_seconds,
        )
        self._peers[name] = peer
        self._readiness.add_socket(peer.descriptor, partial(self._hear, peer))
        self._readiness.add_socket(peer.monitor_descriptor, partial(self._look_after, peer))

    def _wait(self, seconds: float | None) -> None:
        """Until a descriptor is ready, unless there is something already; what it asks for is done."""
        self._busy = 0
        self._readiness.wait(0.0 if self._events else seconds)

    def _tell_ready(self, descriptor: int) -> None:
        self._events.append(Ready(descriptor))

    def _hear(self, peer: Peer) -> None:
        """What the process that was called answers; that it takes more."""
        if self._peers.get(peer.name) is not peer:
            return
        while (said := peer.heard()) is not None:
            if said[0] == GONE:
                self._lose(peer.name, "it dropped this process", tell=False)
                return
            if said[0] != WELCOME or len(said) != 3:
                self.refused["malformed"] += 1
            elif not authentication.is_welcome(self._keys, said[1], peer.nonce, peer.name):
                self.refused["strangers"] += 1
                self._lose(peer.name, "another process answers at its address", tell=False)
                return
            else:
                peer.welcomed(shared=said[2] == b"1" and peer.address.is_here)

    def _look_after(self, peer: Peer) -> None:
        """Whether a peer's connection ended."""
        if self._peers.get(peer.name) is peer and (why := peer.why_ended()) is not None:
            self._take_in()  # what it sent before
            if self._peers.get(peer.name) is peer:
                self._lose(peer.name, why)

    def _count_strangers(self, listener: Listener) -> None:
        self.refused["strangers"] += listener.strangers()

    def _listen_to(self, listener: Listener) -> None:
        """Take in what has come, up to one event."""
        for _ in range(_BATCH):
            if not self._take_in_from(listener):
                return
            if self._events:
                break
        self._readiness.doubt(listener.descriptor)

    def _take_in(self) -> None:
        """Take in what has come, some messages at most."""
        for listener in self._listeners:
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
            self._take(listener, *came)
        except MalformedError as error:
            self.refused["oversized" if error.oversized else "malformed"] += 1
        return True

    def _take(self, listener: Listener, number: bytes, first: bytes, rest: Sequence[memoryview]) -> None:
        """One message to here; raises MalformedError."""
        kind, packed = first[:1], memoryview(first)[1:]
        if kind == HELLO:
            self._greet(listener, number, Hello.read(packed))
            return
        peer = self._peers.get(self._names.get(number, ""))
        if peer is None:  # lost, and does not know
            return
        size = len(first) + sum(one.nbytes for one in rest)
        if kind == MEMORY:
            self.traffic.received_bytes += size
            peer.heard_of_memory(*_numbers(unpack(packed)))
        elif kind == DATA:
            header, sizes, loan = opened(packed, rest, self.message_bytes)
            buffers = joined(sizes, rest) if loan is None else peer.borrower.views(loan, sizes)
            self.traffic.received_messages += 1
            self.traffic.received_bytes += size
            if loan is not None:
                self.traffic.received_shared_bytes += sum(sizes)
            self._events.append(Message(peer.name, header, buffers))
        else:
            raise MalformedError("no kind of message")

    def _greet(self, listener: Listener, number: bytes, hello: Hello) -> None:
        """Somebody who knows the token says who it is."""
        name, address = hello.name, hello.address
        shared = address.is_here and Probe.is_mapped(address.process, hello.probe)
        answer = authentication.welcome(self._keys, hello.nonce, self.name)
        listener.tell(number, [WELCOME, answer, b"1" if shared else b"0"])
        if hello.to != self.name:  # it finds out from the answer
            return
        known = self._peers.get(name)
        if known is not None and known.address.is_port_alone:
            known.met(address)
        if known is not None and known.address != address:
            self._lose(name, "another process has its name now")
        self._names[number] = name
        if name not in self._peers:
            try:
                self._call(name, address)
            except ClusterError as error:
                self._events.append(Lost(name, str(error)))

    def _lose(self, name: str, why: str, *, tell: bool = True) -> None:
        """A peer is no more; if it lives after all, it is told."""
        peer = self._peers.pop(name)
        self._readiness.remove(peer.descriptor)
        self._readiness.remove(peer.monitor_descriptor)
        peer.close()
        for number in [one for one, whose in self._names.items() if whose == name]:
            del self._names[number]
            if tell:
                for listener in self._listeners:
                    listener.tell(number, [GONE])
                    self._readiness.doubt(listener.descriptor)
        self._events.append(Lost(name, why))


def _numbers(said: object) -> tuple[list[int], list[int]]:
    """What a peer says of shared memory; raises MalformedError."""
    if isinstance(said, list) and len(said) == 2 and all(isinstance(one, list) for one in said):
        given_back, dropped = said
        if all(isinstance(one, int) for one in (*given_back, *dropped)):
            return given_back, dropped
    raise MalformedError("no blocks of shared memory")


def _loops(host: str) -> bool:
    return host.startswith("127.") or host in ("::1", "localhost")
