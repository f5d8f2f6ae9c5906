from .passes import Layer as Layer
from .passes import padded_lanes as padded_lanes
from .passes import partials_of as partials_of
from .passes import run as run
from .write import DenseJob as DenseJob
from .write import Operation as Operation

__all__ = ["DenseJob", "Layer", "Operation", "padded_lanes", "partials_of", "run"]
