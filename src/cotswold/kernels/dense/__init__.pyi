from .passes import Layer as Layer
from .passes import padded_lanes as padded_lanes
from .passes import partials_of as partials_of
from .passes import run as run
from .write import Operand as Operand
from .write import Operation as Operation

__all__ = ["Layer", "Operand", "Operation", "padded_lanes", "partials_of", "run"]
