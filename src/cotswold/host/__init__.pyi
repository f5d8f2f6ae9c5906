from .core_pinning import assign_cores as assign_cores
from .core_pinning import claimed_cores as claimed_cores
from .core_pinning import pin_to as pin_to
from .core_pinning import pinned_to as pinned_to
from .cores import granted_cores as granted_cores
from .cores import wait_settings as wait_settings
from .descriptors import is_readable as is_readable
from .descriptors import wake_pipe as wake_pipe
from .fork_server import ForkServer as ForkServer
from .ipc.listener import Listener as Listener
from .ipc.listener import TcpListener as TcpListener
from .ipc.shared_memory import MemoryBlock as MemoryBlock
from .ipc.shared_memory_channel import SharedMemoryChannel as SharedMemoryChannel
from .ipc.tcp_channel import TcpChannel as TcpChannel
from .keyring import Keyring as Keyring
from .keyring import KeyringFile as KeyringFile
from .memory import available_bytes as available_bytes
from .memory import keep_freed_memory as keep_freed_memory
from .memory import require_memory as require_memory
from .network import address_for_peers as address_for_peers
from .network import address_towards as address_towards
from .network import interface_to as interface_to
from .network import listener_at as listener_at
from .network import server_address as server_address
from .processes import Call as Call
from .processes import Process as Process
from .processes import Processes as Processes
from .processes import exit_text as exit_text
from .ranks import ALONE as ALONE
from .ranks import Ranks as Ranks
from .ranks import raise_on_all as raise_on_all
from .self_fork import inherited as inherited
from .token import Token as Token
from .token import cluster_token_of as cluster_token_of
from .token import is_signed as is_signed
from .token import read_token as read_token
from .token import sign as sign
from .token import token_of as token_of

__all__ = [
    "ALONE",
    "Call",
    "ForkServer",
    "Keyring",
    "KeyringFile",
    "Listener",
    "MemoryBlock",
    "Process",
    "Processes",
    "Ranks",
    "SharedMemoryChannel",
    "TcpChannel",
    "TcpListener",
    "Token",
    "address_for_peers",
    "address_towards",
    "assign_cores",
    "available_bytes",
    "claimed_cores",
    "cluster_token_of",
    "exit_text",
    "granted_cores",
    "inherited",
    "interface_to",
    "is_readable",
    "is_signed",
    "keep_freed_memory",
    "listener_at",
    "pin_to",
    "pinned_to",
    "raise_on_all",
    "read_token",
    "require_memory",
    "server_address",
    "sign",
    "token_of",
    "wait_settings",
    "wake_pipe",
]
