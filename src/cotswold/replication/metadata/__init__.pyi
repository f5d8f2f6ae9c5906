from .etcd import EtcdStore as EtcdStore
from .etcd_http import Etcd as Etcd
from .etcd_http import Tls as Tls
from .interface import MetadataStore as MetadataStore
from .interface import OutcomeUnknownError as OutcomeUnknownError
from .location import MetadataLocation as MetadataLocation
from .sqlite import SqliteStore as SqliteStore

__all__ = [
    "Etcd",
    "EtcdStore",
    "MetadataLocation",
    "MetadataStore",
    "OutcomeUnknownError",
    "SqliteStore",
    "Tls",
]
