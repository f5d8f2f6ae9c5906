"""The device on which this process computes.

Knows: the devices of this host, places of processes. Does not know: what is computed.
"""

from __future__ import annotations

import torch

from cotswold.errors import MachineError, UserError


def select_device(wanted: str, name: str, place: int = 0) -> torch.device:
    """Return the device for the process called ``name``, such as ``replica-2``.

    ``wanted`` is a torch device. For ``cuda`` without a number, processes take the CUDA devices of this host
    in turn by ``place``, from 0. Raises MachineError if the host has no such device. Raises UserError in a
    fork of a program that has initialised CUDA, because CUDA does not work in such a fork.
    """
    device = torch.device(wanted)
    if device.type != "cuda":
        return device
    if torch.cuda._is_in_bad_fork():
        raise UserError(
            f"{name} is a fork of a program that has initialised CUDA, so it cannot use CUDA; "
            "torch.cuda.is_available() initialises it unless PYTORCH_NVML_BASED_CUDA_CHECK=1 is in "
            "the environment: leave CUDA to the replicas"
        )
    count, index = torch.cuda.device_count(), device.index
    if ":" not in wanted:
        index = place % max(count, 1)
    if index >= count:
        raise MachineError(
            f"{name} cannot compute on {wanted}: its host has {count} CUDA devices; set "
            "training.device to another, or check CUDA_VISIBLE_DEVICES"
        )
    return torch.device("cuda", index)


def compute_on(device: torch.device) -> None:
    """Make this the current CUDA device of this thread; no effect for other devices.

    Each thread has its own current device, the first by default.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)


def device_of_this_thread() -> torch.device:
    """The device set by `compute_on`; the CPU in a process that has not initialised CUDA."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch gives it no types
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
