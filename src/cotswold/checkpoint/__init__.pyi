from .checkpoint import Checkpoint as Checkpoint
from .chunk_file import SealedChunk as SealedChunk
from .chunk_file import TensorChunk as TensorChunk
from .manager import CheckpointManager as CheckpointManager
from .manager import Latest as Latest
from .state_dict import FileBackedTensor as FileBackedTensor
from .state_dict import OptionalTensor as OptionalTensor
from .state_dict import StateDict as StateDict
from .state_dict import StateValue as StateValue
from .state_dict import TensorPart as TensorPart

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "FileBackedTensor",
    "Latest",
    "OptionalTensor",
    "SealedChunk",
    "StateDict",
    "StateValue",
    "TensorChunk",
    "TensorPart",
]
