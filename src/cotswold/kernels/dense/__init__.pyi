from .run import Layer as Layer
from .run import padded as padded
from .run import partials_of as partials_of
from .run import run as run
from .write import DenseJob as DenseJob
from .write import Pass as Pass

__all__ = ["DenseJob", "Layer", "Pass", "padded", "partials_of", "run"]
