"""Where controllers keep their state, as processes are told.

Knows: the fields, which state they mean. Does not know: what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cotswold.errors import UserError
from cotswold.replication.metadata.etcd import EtcdState
from cotswold.replication.metadata.etcd_http import Etcd, Tls
from cotswold.replication.metadata.interface import PREFIX_BYTES_MAX, State
from cotswold.replication.metadata.sqlite import SqliteState

TIMEOUT_SECONDS = 0.5
"""For which a member of etcd is waited for before the next is asked: a leader whose beat one member leaves
unanswered must have asked another while it still leads. Members answer in some milliseconds."""


@dataclass(frozen=True)
class Place:
    """A file of this machine, or an etcd that several reach; raises UserError for neither or both, and
    for a prefix of more than 128 bytes, ClusterError for endpoints that are none."""

    sqlite: str | None = None
    """The path of a database."""
    etcd: Sequence[str] = ()
    """HOST:PORT of its members, for clients."""
    authority: str | None = None
    """The file with the certificate of who signed those of the members; connections are encrypted then."""
    certificate: str | None = None
    """Of this client, where etcd asks for one."""
    key: str | None = None
    """To that certificate; None where it is in the same file."""
    prefix: str = "cotswold/"
    """Before every key, so that several clusters can share an etcd."""

    def __post_init__(self) -> None:
        if (self.sqlite is None) == (not self.etcd):
            raise UserError("the controllers' state is in one place: a file, or an etcd")
        if self.authority is None and (self.certificate or self.key):
            raise UserError("a certificate for etcd needs that of its authority, too (--etcd-ca)")
        if len(self.prefix.encode()) > PREFIX_BYTES_MAX:
            raise UserError(
                f"the prefix of keys in etcd has {PREFIX_BYTES_MAX} bytes at most (--etcd-prefix)"
            )
        if self.etcd:
            _ = self._etcd  # raises for endpoints that are none

    def opened(self) -> State:
        """The state; raises what it raises."""
        return SqliteState(Path(self.sqlite)) if self.sqlite is not None else EtcdState(self._etcd)

    @property
    def _etcd(self) -> Etcd:
        tls = None
        if self.authority is not None:
            own = [None if each is None else Path(each) for each in (self.certificate, self.key)]
            tls = Tls(Path(self.authority), *own)
        return Etcd(tuple(self.etcd), tls, self.prefix, TIMEOUT_SECONDS)
