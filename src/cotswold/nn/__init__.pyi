from .convolution import BatchNorm2d as BatchNorm2d
from .convolution import Conv2d as Conv2d
from .convolution import convert_layers as convert_layers
from .dense import DenseNetwork as DenseNetwork
from .dropout import Dropout as Dropout
from .linear import Flatten as Flatten
from .linear import Linear as Linear
from .local import LocallyConnected1d as LocallyConnected1d
from .local import LocallyConnected2d as LocallyConnected2d
from .local import LocallyConnected3d as LocallyConnected3d
from .max_pooling import MaxPool2d as MaxPool2d
from .network import StackNetwork as StackNetwork
from .pooling import L2Pool2d as L2Pool2d
from .pooling import LocalContrastNorm2d as LocalContrastNorm2d
from .stack import SparseAutoencoderStack as SparseAutoencoderStack

__all__ = [
    "BatchNorm2d",
    "Conv2d",
    "DenseNetwork",
    "Dropout",
    "Flatten",
    "L2Pool2d",
    "Linear",
    "LocalContrastNorm2d",
    "LocallyConnected1d",
    "LocallyConnected2d",
    "LocallyConnected3d",
    "MaxPool2d",
    "SparseAutoencoderStack",
    "StackNetwork",
    "convert_layers",
]
