from .chaos.run import live_copies as live_copies
from .kernels.run import measure_kernels as measure_kernels
from .machine.description import describe_machine as describe_machine
from .server.run import measure_server as measure_server

__all__ = ["describe_machine", "live_copies", "measure_kernels", "measure_server"]
