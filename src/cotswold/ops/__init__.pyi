from .contrast import contrast_norm as contrast_norm
from .filters import filter_norms as filter_norms
from .filters import random_filters as random_filters
from .filters import scale_rows_to_norm_1 as scale_rows_to_norm_1
from .filters import scale_to_norm_1 as scale_to_norm_1
from .fused_activation import fused_linear as fused_linear
from .fused_activation import local_layer as local_layer
from .layers.convolution import conv2d as conv2d
from .layers.max_pooling import max_pool2d as max_pool2d
from .local import local_adjoint as local_adjoint
from .local import local_outer as local_outer
from .local import local_product as local_product
from .memory_format import images_first as images_first
from .memory_format import images_last as images_last
from .pooling import l2_pool as l2_pool
from .state import StackObjective as StackObjective
from .state import StackReport as StackReport
from .state import StackState as StackState
from .state import StepRule as StepRule
from .step import calibrate as calibrate
from .step import stack_step as stack_step

__all__ = [
    "StackObjective",
    "StackReport",
    "StackState",
    "StepRule",
    "calibrate",
    "contrast_norm",
    "conv2d",
    "filter_norms",
    "fused_linear",
    "images_first",
    "images_last",
    "l2_pool",
    "local_adjoint",
    "local_layer",
    "local_outer",
    "local_product",
    "max_pool2d",
    "random_filters",
    "scale_rows_to_norm_1",
    "scale_to_norm_1",
    "stack_step",
]
