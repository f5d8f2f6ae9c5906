from .kernels.run import measure_kernels as measure_kernels
from .machine.description import describe_machine as describe_machine

__all__ = ["describe_machine", "measure_kernels"]
