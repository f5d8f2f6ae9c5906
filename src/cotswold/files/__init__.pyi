from .durable import PARTIAL as PARTIAL
from .durable import DiskRemedy as DiskRemedy
from .durable import create_file as create_file
from .durable import disk_errors as disk_errors
from .durable import durable_file as durable_file
from .durable import is_full as is_full
from .durable import replace_file as replace_file
from .durable import replacing as replacing
from .durable import sync_folder as sync_folder
from .durable import write_all as write_all
from .durable import writing_whole as writing_whole
from .home_directory import expanded as expanded
from .home_directory import home as home
from .lock import DirectoryLock as DirectoryLock
from .lock import Holder as Holder
from .lock import holder_of as holder_of
from .safe_open import open_file as open_file
from .safe_open import open_reading as open_reading
from .safe_open import read_bytes as read_bytes
from .safe_open import real_folder as real_folder
from .untrusted_json import MalformedError as MalformedError
from .untrusted_json import parse_object as parse_object
from .untrusted_json import read_object as read_object
from .untrusted_json import take as take

__all__ = [
    "PARTIAL",
    "DirectoryLock",
    "DiskRemedy",
    "Holder",
    "MalformedError",
    "create_file",
    "disk_errors",
    "durable_file",
    "expanded",
    "holder_of",
    "home",
    "is_full",
    "open_file",
    "open_reading",
    "parse_object",
    "read_bytes",
    "read_object",
    "real_folder",
    "replace_file",
    "replacing",
    "sync_folder",
    "take",
    "write_all",
    "writing_whole",
]
