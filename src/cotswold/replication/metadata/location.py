"""Location of the controllers' metadata, as passed to processes.

Knows: the fields, the store that they select. Does not know: the contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cotswold.errors import UserError
from cotswold.replication.metadata.etcd import EtcdStore
from cotswold.replication.metadata.etcd_http import Etcd, Tls
from cotswold.replication.metadata.interface import PREFIX_BYTES_MAX, MetadataStore
from cotswold.replication.metadata.sqlite import SqliteStore

TIMEOUT_SECONDS = 0.5
"""Timeout of a member of etcd: when one member leaves a leader's heartbeat unanswered, the leader must
have asked another while it still leads. Members reply within milliseconds."""


@dataclass(frozen=True)
class MetadataLocation:
    """A file on this machine, or an etcd shared by several. Raises UserError for neither or both and for a
    prefix of more than 128 bytes, ClusterError for malformed endpoints."""

    sqlite: str | None = None
    """Path of a database."""
    etcd: Sequence[str] = ()
    """HOST:PORT of its members, for clients."""
    authority: str | None = None
    """File with the certificate of the authority that signed those of the members; connections are then
    encrypted."""
    certificate: str | None = None
    """Certificate of this client, if etcd requires one."""
    key: str | None = None
    """Key of that certificate; None if it is in the same file."""
    prefix: str = "cotswold/"
    """Prefix of every key, so that several clusters can share an etcd."""

    def __post_init__(self) -> None:
        if (self.sqlite is None) == (not self.etcd):
            raise UserError("the controllers' state needs one location: a file or an etcd")
        if self.authority is None and (self.certificate or self.key):
            raise UserError("a certificate for etcd needs that of its authority, too: --etcd-ca")
        if len(self.prefix.encode()) > PREFIX_BYTES_MAX:
            raise UserError(f"--etcd-prefix must have at most {PREFIX_BYTES_MAX} bytes")
        if self.etcd:
            _ = self._etcd  # raises for malformed endpoints

    def open(self) -> MetadataStore:
        """Open the store; raises its errors."""
        return SqliteStore(Path(self.sqlite)) if self.sqlite is not None else EtcdStore(self._etcd)

    @property
    def _etcd(self) -> Etcd:
        tls = None
        if self.authority is not None:
            own = [None if each is None else Path(each) for each in (self.certificate, self.key)]
            tls = Tls(Path(self.authority), *own)
        return Etcd(tuple(self.etcd), tls, self.prefix, TIMEOUT_SECONDS)
