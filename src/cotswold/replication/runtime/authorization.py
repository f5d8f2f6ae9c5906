"""What a controller need not hear: what is said by somebody who may not, or cannot be so.

Knows: how servers and their supervisors are called, how long names and descriptions are, so that the
state takes them. Does not know: what follows from a message (`replication.controller`), who proved what
(`transport`).

Whoever has the token may ask for buckets, have them removed, drain servers and look. That a server's process
has ended its supervisor says: the coordinator of a run, or the station of the server's host.

A supervisor gives each server a key of its own when it starts the process. The server says the key with each
`Here`, and a station with `Ended`. The controllers' state has the digest of each key, for as long as anything
is known of the server:

    what is said                                         what a controller does
    Here, of a name whose key is written down            hears it if that is the key
    Here, of a name that is not known                    binds the name to the key
    Here, with the key of its name                       hears it
    Here, with another key than is known, and not        refuses it, unless the name was silent for a minute
      written down
    what else servers say                                hears it on a connection that has said the key
    Ended by a station, with the key of the name         hears it
    Ended by a station, with another key                 refuses it
    Ended by a station, of a name that is not known      hears it, but not in its first seconds, in which a
                                                         server that lives says so; a station repeats it
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping

from cotswold.replication.controller.bucket_map import DESCRIPTION_LETTERS
from cotswold.replication.controller.leader import STATION, FromServers
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
    Caught,
    Create,
    Ended,
    Fenced,
    FoundSaved,
    Here,
    Silent,
    TakeOver,
)
from cotswold.wire.names import is_run, run_of

_SERVER = "server-"
_TEXT_LETTERS = 1024
"""Of any text but a description: of names, addresses and reasons."""
_BUCKETS = 1 << 17
"""Of a run."""
_AROUND_BYTES = 16
"""Of a key, around a name: `replication.controller.bucket_map`."""
_NAME_BYTES = KEY_BYTES_MAX - PREFIX_BYTES_MAX - _AROUND_BYTES
"""Of runs and buckets, of which keys are made."""
_DESCRIPTION_BYTES = TRANSACTION_BYTES_MAX - 2 * (OPERATIONS_MAX + 1) * KEY_BYTES_MAX
"""Of what is put in one transaction, which names each key twice, and compares who leads."""


_SILENT_SECONDS = 60.0
"""Silence after which a name may have another key."""
_FIRST_SECONDS = 2.0
"""Time in which each living server has spoken to a controller that has just begun."""
_NAMES = 1 << 12
"""Bound on the names that a controller remembers; it forgets the one heard longest ago."""


class Entitled:
    """Decides who may say what to one controller, which began at ``now``.

    ``written`` returns the digests of keys (`digest_of`) that are written down, by server.
    """

    def __init__(self, now: float, written: Callable[[], Mapping[str, str]] = dict) -> None:
        self._began, self._written = now, written
        self._speaking: dict[str, str] = {}
        """Digests of the keys that servers have said on the connections that they have now."""
        self._keys: OrderedDict[str, tuple[str, float]] = OrderedDict()
        """Key of each server and time when it was heard last, in the order of these times."""

    def wrong(self, sender: str, message: FromServers, now: float) -> str:
        """Return the reason to refuse a message: that of `wrong`, or a missing proof; empty to hear it."""
        if found := wrong(sender, message):
            return found
        match message:
            case Here(server, key=key):
                if not self._binds(server, key, now):
                    self._speaking.pop(server, None)
                    return "strangers"
                self._speaking[server] = digest_of(key)
                return ""
            case Assigned() | Fenced() | FoundSaved() | Caught() | Silent() | TakeOver():
                said = self._speaking.get(sender)
                return "" if said is not None and self._written().get(sender, said) == said else "early"
            case Ended(server, key=key) if sender != COORDINATOR:
                return self._wrong_end(server, key, now)
            case _:
                return ""

    def lost(self, peer: str) -> None:
        """The connection of a peer has ended: who has its name next must say the key first."""
        self._speaking.pop(peer, None)

    def key_of(self, server: str) -> str:
        """The key of a server, if it is the one that is written down; empty otherwise."""
        key, _ = self._keys.get(server, ("", 0.0))
        return key if key and self._is_written(server, key) else ""

    def is_silent(self, server: str, now: float) -> bool:
        """Whether nothing has been heard of a server for so long that it may have ended."""
        _, heard = self._keys.get(server, ("", float("-inf")))
        return now - heard >= _SILENT_SECONDS

    def is_impostor(self, here: Here) -> bool:
        """Whether somebody says the name of a server whose key is written down, and another key."""
        return self._is_written(here.server, here.key) is False

    def _is_written(self, server: str, key: str) -> bool | None:
        """Whether this is the key that is written down; None if none is."""
        digest = self._written().get(server)
        return None if digest is None else _is_same(digest, digest_of(key))

    def _binds(self, server: str, key: str, now: float) -> bool:
        bound, heard = self._keys.get(server, (key, now))
        is_written = self._is_written(server, key)
        is_known = now - heard < _SILENT_SECONDS
        if is_written is False or (is_written is None and is_known and not _is_same(bound, key)):
            return False
        self._keys[server] = key, now
        self._keys.move_to_end(server)
        if len(self._keys) > _NAMES:
            self._keys.popitem(last=False)
        return True

    def _wrong_end(self, server: str, key: str, now: float) -> str:
        if (is_written := self._is_written(server, key)) is not None:
            return "" if is_written else "strangers"
        if server not in self._keys:
            return "early" if now - self._began < _FIRST_SECONDS else ""
        bound, _ = self._keys[server]
        return "" if bound and _is_same(bound, key) else "strangers"


def digest_of(key: str) -> str:
    """What is written down of a key, from which nobody can tell the key."""
    return hashlib.sha256(key.encode()).hexdigest()


def _is_same(one: str, other: str) -> bool:
    """Compare two keys in a time that tells nothing about them."""
    return hmac.compare_digest(one.encode(), other.encode())


def wrong(sender: str, message: FromServers) -> str:
    """As what a message is refused and counted; empty for one that is to be heard."""
    texts = [
        value for name, value in vars(message).items() if isinstance(value, str) and name != "description"
    ]
    if any(len(each) > _TEXT_LETTERS for each in texts):
        return "oversized"
    match message:
        case Here(server, _, address, peer_address=peer_address):
            if sender != server or not sender.startswith(_SERVER):
                return "strangers"
            are_reached = all(map(Address.is_reached, (address, peer_address or address)))
            return "" if are_reached else "malformed"
        case Ended(server):
            return "" if _supervises(sender, server) else "strangers"
        case Create():
            return _wrong_run(message)
        case _:
            return ""


def _supervises(sender: str, server: str) -> bool:
    """Whether a process started another."""
    if sender == COORDINATOR:
        return True
    _, _, host = sender.removeprefix(STATION).partition("/")  # before it what tells hosts of a name apart
    return sender.startswith(STATION) and bool(host) and server.startswith(f"{_SERVER}{host}-")


def _wrong_run(wanted: Create) -> str:
    if len(wanted.description) > DESCRIPTION_LETTERS or len(wanted.buckets) > _BUCKETS:
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
