"""Process groups of the ranks of a mesh.

Knows: torch.distributed's groups, their backends and timeouts. Does not know: meshes, messages.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from cotswold.errors import UserError


def process_group(members: list[int], count: int, device: str) -> dist.ProcessGroup | None:
    """Create a group of these of the job's ``count`` ranks, for tensors of a device and of the CPU.

    All ranks of the mesh call this; the group has the timeout of the job's group. Raises UserError if maps
    are on the CPU, and the job's group has no backend for the CPU.
    """
    if len(members) == 1:
        return None
    backend, timeout = None, timeout_of(None)
    if timeout is None:  # the few numbers that ranks compare are on the CPU, also if maps are on a GPU
        backend = f"cpu:gloo,{dist.get_backend_config()}"
        if device == "cpu":
            raise UserError(
                f"maps on the CPU need a process group for the CPU, but the job's is {dist.get_backend()}; "
                f'call init_process_group("{backend}"), or move the module to the GPU first'
            )
        timeout = timeout_of(None, device)
    everybody = members == list(range(count))
    group: dist.ProcessGroup = dist.new_group(
        members, timeout, backend, use_local_synchronization=not everybody
    )
    return group


def timeout_of(group: dist.ProcessGroup | None, device: str = "cpu") -> timedelta | None:
    """Timeout of a group (None: the job's default group); None if it has no backend for the device."""
    known = group if group is not None else dist.group.WORLD
    assert known is not None, "several ranks need a process group"
    try:
        backend = known._get_backend(torch.device(device))
    except RuntimeError:  # torch's error for a device without a backend
        return None
    timeout: timedelta = getattr(getattr(backend, "options", None), "_timeout", dist.default_pg_timeout)
    return timeout
