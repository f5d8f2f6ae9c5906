from .passes import Layer as Layer
from .passes import padded as padded
from .passes import partials_of as partials_of
from .passes import run as run
from .write import DenseJob as DenseJob
from .write import Pass as Pass

__all__ = ["DenseJob", "Layer", "Pass", "padded", "partials_of", "run"]
