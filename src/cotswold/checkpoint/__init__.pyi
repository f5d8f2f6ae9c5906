from .checkpoint import Checkpoint as Checkpoint
from .checkpoints import Checkpoints as Checkpoints
from .checkpoints import Latest as Latest
from .piece import Piece as Piece
from .sealed import SealedPiece as SealedPiece
from .state_dict import IfThere as IfThere
from .state_dict import InFiles as InFiles
from .state_dict import Part as Part
from .state_dict import StateDict as StateDict
from .state_dict import StateValue as StateValue

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "IfThere",
    "InFiles",
    "Latest",
    "Part",
    "Piece",
    "SealedPiece",
    "StateDict",
    "StateValue",
]
