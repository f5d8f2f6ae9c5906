"""Findings about the processor, the memory and the devices of this machine.

Knows: the description of a run's environment, the sizes that training needs. Does not know: limits of the
system, programs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotswold.cli.doctor.finding import HAS, NOTE, OK, PROBLEM, Finding
from cotswold.errors import install
from cotswold.phrases import counted
from cotswold.ui.format import bytes_in_words

SETS = {
    "AVX2": ("avx2", "fma"),
    "F16C": ("f16c",),
    "AVX-512": ("avx512f", "avx512vl", "avx512dq"),
    "AVX-512 BF16": ("avx512_bf16",),
    "AMX BF16": ("amx_tile", "amx_bf16"),
    "NEON": ("asimd",),
    "SVE": ("sve",),
    "BF16 of ARM": ("bf16",),
}
"""Instruction sets, by the flags that the system lists for a processor."""
_LEAST_BYTES = 1 << 30
"""Memory below which training is not expected to run: torch takes 200 MB in each process."""


def hardware(root: Path = Path("/")) -> Iterator[Finding]:
    """Yield processor, instruction sets, AMX, cores, memory and CUDA devices."""
    from cotswold.run import describe_environment

    found: Mapping[str, Any] = describe_environment()
    yield Finding(HAS, "processor", found["processor"] or "unknown")
    yield instruction_sets(found["processor_flags"])
    yield from amx(found["processor_flags"])
    yield cores(os.cpu_count() or 1, found["cores_usable"])
    yield memory(found["memory_bytes"], found["memory_available_bytes"])
    yield cuda(found["cuda"], has_driver(root))


def instruction_sets(flags: Sequence[str]) -> Finding:
    """Return the finding about vector instructions."""
    has = [name for name, needed in SETS.items() if set(needed) <= set(flags)]
    return Finding(HAS, "instruction sets", ", ".join(has) or "none that the system lists")


def amx(flags: Sequence[str]) -> Iterator[Finding]:
    """Yield the finding about AMX, if the processor has it."""
    if not {"amx_tile", "amx_bf16"} <= set(flags):
        return
    from cotswold.kernels.machine.processor import this_processor

    here = this_processor()
    if here is not None and here.has_amx:
        yield Finding(HAS, "AMX", "this process may use it, for products in bfloat16")
    else:
        said = "the processor has it, but the system or COTSWOLD_KERNELS does not let this process use it"
        yield Finding(HAS, "AMX", said, NOTE, "use Linux 5.16 or newer, and unset COTSWOLD_KERNELS")


def cores(of_machine: int, granted: int) -> Finding:
    """Return the finding about the cores of the machine, and those granted by affinity and control groups."""
    if granted >= of_machine:
        return Finding(HAS, "cores", f"{of_machine}, all granted to this process")
    said = f"{granted} of {of_machine} granted to this process, by its affinity or its control group"
    return Finding(
        HAS, "cores", said, NOTE, "docker run --cpus N, srun --cpus-per-task N, or taskset -c LIST"
    )


def memory(installed: int, available: int) -> Finding:
    """Return the finding about memory."""
    said = f"{bytes_in_words(available)} available of {bytes_in_words(installed)}"
    if available >= _LEAST_BYTES:
        return Finding(HAS, "memory", said)
    remedy = "end other processes, or raise the container's limit: docker run --memory 4g"
    return Finding(HAS, "memory", said, PROBLEM, remedy)


def has_driver(root: Path) -> bool:
    """True if a driver of NVIDIA is loaded, or its tools are installed."""
    return (root / "proc/driver/nvidia").is_dir() or shutil.which("nvidia-smi") is not None


def cuda(devices: Sequence[str], driver: bool) -> Finding:
    """Return the finding about CUDA devices, and whether PyTorch and Triton can use them."""
    if devices:
        from cotswold.kernels.cuda.launch import available

        said = f"{counted(len(devices), 'CUDA device')}: {', '.join(dict.fromkeys(devices))}"
        if available():
            return Finding(HAS, "GPU", said)
        return Finding(
            HAS, "GPU", f"{said}; without Triton, layers run through torch.bmm", NOTE, install("cuda")
        )
    if driver:
        said = "an NVIDIA driver, but PyTorch finds no device: its build has no CUDA, or the device is hidden"
        remedy = "pip install uv && uv pip install --torch-backend auto --reinstall torch"
        return Finding(HAS, "GPU", said, NOTE, remedy)
    return Finding(HAS, "GPU", "none; training runs on the processor", OK)
