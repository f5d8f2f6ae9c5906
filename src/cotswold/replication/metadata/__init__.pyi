from .etcd import EtcdState as EtcdState
from .etcd_http import Etcd as Etcd
from .etcd_http import Tls as Tls
from .interface import OutcomeUnknownError as OutcomeUnknownError
from .interface import State as State
from .location import Place as Place
from .sqlite import SqliteState as SqliteState

__all__ = ["Etcd", "EtcdState", "OutcomeUnknownError", "Place", "SqliteState", "State", "Tls"]
