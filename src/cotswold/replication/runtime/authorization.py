"""Authorization of messages to a controller.

Knows: the names of servers and supervisors, the limits of names and descriptions in the metadata store. Does
not know: the effect of a message (`replication.controller`), proofs of names (`transport`).

A client with the token may create buckets, delete runs, drain servers and request the status. The exit of a
server is reported by its supervisor: the coordinator of a run, or the supervisor of the server's host.

A supervisor gives each server process its own key. The server sends the key with each `Heartbeat`, the host
supervisor with `ServerExited`. The metadata store has the digest of each key, for as long as the server is
known:

    message                                              action of a controller
    Heartbeat, of a name with a stored key               accept it if the keys match
    Heartbeat, of an unknown name                        bind the name to the key
    Heartbeat, with the key of its name                  accept it
    Heartbeat, with another key than the known one,      reject it, unless the name was silent for a minute
      which is not stored yet
    other messages of servers                            accept them on a connection that has sent the key
    ServerExited of a supervisor, with the name's key    accept it
    ServerExited of a supervisor, with another key       reject it
    ServerExited of a supervisor, of an unknown name     accept it, but not in the first seconds, in which a
                                                         live server reports; the supervisor repeats it
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping

from cotswold.replication.controller.bucket_map import MAX_DESCRIPTION_CHARS
from cotswold.replication.controller.messages import SUPERVISOR_PREFIX, FromServers
from cotswold.replication.metadata.interface import (
    KEY_BYTES_MAX,
    OPERATIONS_MAX,
    PREFIX_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
)
from cotswold.replication.run_description import Description
from cotswold.transport.address import Address
from cotswold.wire import (
    COORDINATOR,
    Assigned,
    Create,
    DiskStateReply,
    FenceReply,
    Heartbeat,
    LearnerCaughtUp,
    PeerUnreachable,
    PrimaryUnreachable,
    ServerExited,
)
from cotswold.wire.names import is_run, run_of

_SERVER = "server-"
_MAX_TEXT_CHARS = 1024
"""Maximum length of any text except a description: names, addresses and reasons."""
_BUCKETS = 1 << 17
"""Maximum number of buckets of a run."""
_OVERHEAD_BYTES = 16
"""Bytes of a key around a name: `replication.controller.bucket_map`."""
_NAME_BYTES = KEY_BYTES_MAX - PREFIX_BYTES_MAX - _OVERHEAD_BYTES
"""Maximum bytes of the names of runs and buckets, which are parts of keys."""
_DESCRIPTION_BYTES = TRANSACTION_BYTES_MAX - 2 * (OPERATIONS_MAX + 1) * KEY_BYTES_MAX
"""Maximum bytes of the values of one transaction, which names each key twice and compares the leader."""


_SILENT_SECONDS = 60.0
"""Seconds of silence after which a name may get another key."""
_FIRST_SECONDS = 2.0
"""Seconds in which every live server has reported to a new controller."""
_NAMES = 1 << 12
"""Maximum number of names that a controller remembers; it forgets the one silent for longest."""


class Authorization:
    """Decides which messages one controller accepts; ``now`` is its start.

    ``stored_keys`` returns the stored digests of keys (`digest_of`), by server.
    """

    def __init__(self, now: float, stored_keys: Callable[[], Mapping[str, str]] = dict) -> None:
        self._started_at, self._stored_keys = now, stored_keys
        self._speaking: dict[str, str] = {}
        """Digests of the keys that servers have sent on their current connections."""
        self._keys: OrderedDict[str, tuple[str, float]] = OrderedDict()
        """Key of each server and time of its last heartbeat, in the order of these times."""

    def rejection_reason(self, sender: str, message: FromServers, now: float) -> str:
        """Return the reason to reject a message: that of `rejection_reason`, or a missing proof; empty to
        accept it."""
        if found := rejection_reason(sender, message):
            return found
        match message:
            case Heartbeat(server, key=key):
                if not self._binds(server, key, now):
                    self._speaking.pop(server, None)
                    return "strangers"
                self._speaking[server] = digest_of(key)
                return ""
            case (
                Assigned()
                | FenceReply()
                | DiskStateReply()
                | LearnerCaughtUp()
                | PeerUnreachable()
                | PrimaryUnreachable()
            ):
                said = self._speaking.get(sender)
                return "" if said is not None and self._stored_keys().get(sender, said) == said else "early"
            case ServerExited(server, key=key) if sender != COORDINATOR:
                return self._exit_rejection(server, key, now)
            case _:
                return ""

    def on_lost(self, peer: str) -> None:
        """Record the end of a connection: the next process with this name must send the key first."""
        self._speaking.pop(peer, None)

    def key_of(self, server: str) -> str:
        """Return the key of a server if it matches the stored one; empty otherwise."""
        key, _ = self._keys.get(server, ("", 0.0))
        return key if key and self._is_written(server, key) else ""

    def is_silent(self, server: str, now: float) -> bool:
        """True if a server may have exited: it has been silent for a minute."""
        _, heard = self._keys.get(server, ("", float("-inf")))
        return now - heard >= _SILENT_SECONDS

    def is_impostor(self, heartbeat: Heartbeat) -> bool:
        """True if a process uses the name of a server with a stored key, but has another key."""
        return self._is_written(heartbeat.server, heartbeat.key) is False

    def _is_written(self, server: str, key: str) -> bool | None:
        """True if the key matches the stored one; None if none is stored."""
        digest = self._stored_keys().get(server)
        return None if digest is None else _is_equal(digest, digest_of(key))

    def _binds(self, server: str, key: str, now: float) -> bool:
        bound, heard = self._keys.get(server, (key, now))
        is_written = self._is_written(server, key)
        is_known = now - heard < _SILENT_SECONDS
        if is_written is False or (is_written is None and is_known and not _is_equal(bound, key)):
            return False
        self._keys[server] = key, now
        self._keys.move_to_end(server)
        if len(self._keys) > _NAMES:
            self._keys.popitem(last=False)
        return True

    def _exit_rejection(self, server: str, key: str, now: float) -> str:
        if (is_written := self._is_written(server, key)) is not None:
            return "" if is_written else "strangers"
        if server not in self._keys:
            return "early" if now - self._started_at < _FIRST_SECONDS else ""
        bound, _ = self._keys[server]
        return "" if bound and _is_equal(bound, key) else "strangers"


def digest_of(key: str) -> str:
    """Return the digest of a key, which does not reveal the key."""
    return hashlib.sha256(key.encode()).hexdigest()


def _is_equal(one: str, other: str) -> bool:
    """Compare two keys in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def rejection_reason(sender: str, message: FromServers) -> str:
    """Return the reason under which a message is rejected and counted; empty to accept it."""
    texts = [
        value for name, value in vars(message).items() if isinstance(value, str) and name != "description"
    ]
    if any(len(each) > _MAX_TEXT_CHARS for each in texts):
        return "oversized"
    match message:
        case Heartbeat(server, _, address, peer_address=peer_address):
            if sender != server or not sender.startswith(_SERVER):
                return "strangers"
            are_reached = all(map(Address.is_reachable, (address, peer_address or address)))
            return "" if are_reached else "malformed"
        case ServerExited(server):
            return "" if _supervises(sender, server) else "strangers"
        case Create():
            return _invalid_run(message)
        case _:
            return ""


def _supervises(sender: str, server: str) -> bool:
    """True if the sender started the server's process."""
    if sender == COORDINATOR:
        return True
    _, _, host = sender.removeprefix(SUPERVISOR_PREFIX).partition(
        "/"
    )  # before it: the part that tells hosts apart
    return sender.startswith(SUPERVISOR_PREFIX) and bool(host) and server.startswith(f"{_SERVER}{host}-")


def _invalid_run(wanted: Create) -> str:
    if len(wanted.description) > MAX_DESCRIPTION_CHARS or len(wanted.buckets) > _BUCKETS:
        return "oversized"
    try:
        names = (wanted.run, *wanted.buckets)
        is_long = any(len(each.encode()) > _NAME_BYTES for each in names)
        if is_long or len(wanted.description.encode()) > _DESCRIPTION_BYTES:
            return "oversized"
        described = Description.of(wanted.description)
    except ValueError:
        return "malformed"
    if not is_run(wanted.run):
        return "malformed"
    are_its_own = all(run_of(each) == wanted.run for each in wanted.buckets)
    are_once = len(set(wanted.buckets)) == len(wanted.buckets)
    return "" if are_its_own and are_once and described.run == wanted.run else "malformed"
