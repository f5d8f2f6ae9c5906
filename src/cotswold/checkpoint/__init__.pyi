from .checkpoint import Checkpoint as Checkpoint
from .chunk_file import Piece as Piece
from .chunk_file import SealedPiece as SealedPiece
from .manager import Checkpoints as Checkpoints
from .manager import Latest as Latest
from .state_dict import IfThere as IfThere
from .state_dict import InFiles as InFiles
from .state_dict import StateDict as StateDict
from .state_dict import StateValue as StateValue
from .state_dict import TensorPart as TensorPart

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "IfThere",
    "InFiles",
    "Latest",
    "Piece",
    "SealedPiece",
    "StateDict",
    "StateValue",
    "TensorPart",
]
