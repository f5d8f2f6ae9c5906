from .kernels.run import measure_kernels as measure_kernels
from .machine.description import describe_machine as describe_machine
from .server.run import measure_server as measure_server

__all__ = ["describe_machine", "measure_kernels", "measure_server"]
