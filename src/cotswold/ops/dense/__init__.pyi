from .autotune import dense_add as dense_add
from .autotune import dense_outputs as dense_outputs
from .spec import ACTIVATIONS as ACTIVATIONS
from .spec import LOSSES as LOSSES
from .spec import OUTPUTS as OUTPUTS
from .spec import DenseActivation as DenseActivation
from .spec import DenseLoss as DenseLoss
from .spec import DenseOutput as DenseOutput
from .spec import DenseSpec as DenseSpec

__all__ = [
    "ACTIVATIONS",
    "LOSSES",
    "OUTPUTS",
    "DenseActivation",
    "DenseLoss",
    "DenseOutput",
    "DenseSpec",
    "dense_add",
    "dense_outputs",
]
