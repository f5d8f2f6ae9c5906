from .etcd import EtcdState as EtcdState
from .gateway import Etcd as Etcd
from .gateway import Tls as Tls
from .keeping import OutcomeUnknownError as OutcomeUnknownError
from .keeping import State as State
from .place import Place as Place
from .sqlite import SqliteState as SqliteState

__all__ = ["Etcd", "EtcdState", "OutcomeUnknownError", "Place", "SqliteState", "State", "Tls"]
