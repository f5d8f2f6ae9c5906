"""The device on which this process computes.

Knows: devices of this host, places of processes. Does not know: what is computed.
"""

from __future__ import annotations

import torch

from cotswold.errors import MachineError, UserError


def own_device(wanted: str, name: str, place: int = 0) -> torch.device:
    """The device for the process called ``name``, such as ``replica-2``.

    ``wanted`` is a device of torch's; ``cuda`` without a number stands for the CUDA devices of this host,
    which processes take in turn by their places, from 0. Raises MachineError where there is none of that
    number, UserError in a fork of a program that has asked CUDA something, for CUDA does not work in it.
    """
    device = torch.device(wanted)
    if device.type != "cuda":
        return device
    if torch.cuda._is_in_bad_fork():
        raise UserError(
            f"{name} is a fork of a program that has asked CUDA something, and cannot use it any more; "
            "torch.cuda.is_available() is enough of a question, unless PYTORCH_NVML_BASED_CUDA_CHECK=1 is in "
            "the environment: leave CUDA to the replicas"
        )
    count, index = torch.cuda.device_count(), device.index
    if ":" not in wanted:
        index = place % max(count, 1)
    if index >= count:
        raise MachineError(
            f"{name} is to compute on {wanted}, and its host has {count} CUDA devices for it; set "
            "training.device to another, or look at CUDA_VISIBLE_DEVICES"
        )
    return torch.device("cuda", index)


def compute_on(device: torch.device) -> None:
    """Have this thread compute there: what asks for a CUDA device without a number gets this one.

    Each thread has a device of its own, the first until it is told otherwise.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)


def device_of_this_thread() -> torch.device:
    """That of `compute_on`; the CPU in a process that has not begun with CUDA."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch gives it no types
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
