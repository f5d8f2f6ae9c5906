"""Availability of the compiled kernels on this machine.

Knows: the environment variable, the abilities of llvmlite and the processor. Does not know: any kernel.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from cotswold.errors import MachineError, UserError

VARIABLE = "COTSWOLD_KERNELS"
"""Environment variable: ``llvm`` (default), ``avx2`` for kernels without AVX-512, or ``torch`` for none."""
DTYPES = (torch.float32, torch.float64)
HALVES = (torch.bfloat16, torch.float16)


P = ParamSpec("P")
R = TypeVar("R")


class WrongKernelError(MachineError):
    """A kernel that failed its self-test: this machine must not run its code."""


_failures: list[str] = []
"""Errors of kernels in this process."""


def has_cpu_kernel(x: Tensor) -> bool:
    """True if compiled CPU kernels run operations on a tensor: on a CPU, of a supported dtype."""
    return x.device.type == "cpu" and x.dtype in DTYPES and backend() == "llvm"


def has_product_kernel(x: Tensor) -> bool:
    """True if compiled CPU kernels run products of a tensor: as `has_cpu_kernel`, and half precision."""
    if x.dtype not in HALVES:
        return has_cpu_kernel(x)
    return x.device.type == "cpu" and backend() == "llvm" and (x.dtype == torch.bfloat16 or _has_float16())


@lru_cache(maxsize=1)
def _has_float16() -> bool:
    """True if this processor converts float16; bfloat16 needs no instruction for it."""
    from cotswold.kernels.machine.processor import this_processor

    here = this_processor()
    return here is not None and (here.isa != "avx2" or here.has("f16c"))


def has_cuda_kernel(x: Tensor) -> bool:
    """True if Triton kernels run products of a tensor: on a CUDA device, of a supported dtype."""
    if not x.is_cuda or _requested_backend() == "torch":
        return False
    from cotswold.kernels.cuda.launch import DTYPES as TAKEN
    from cotswold.kernels.cuda.launch import available

    return x.dtype in TAKEN and available()


def backend() -> str:
    """Return ``llvm`` or ``torch``; raise UserError if the variable has another value."""
    return "torch" if _requested_backend() == "torch" or unavailable_reason() else "llvm"


def unavailable_reason() -> str | None:
    """Return the reason why kernels are unavailable; None if they run or the user turned them off."""
    return _failures[0] if _failures else compile_error()


def fallback_to_torch(operation: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation so that torch repeats it if one of its kernels fails its self-test.

    The operation must call `has_cpu_kernel` or `has_product_kernel` each time, and change nothing before its
    kernels are ready.
    """

    @wraps(operation)
    def done(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return operation(*args, **kwargs)
        except WrongKernelError as error:
            if not _failures:
                _warn(str(error))
            _failures.append(str(error))
        return operation(*args, **kwargs)

    return done


def _requested_backend() -> str:
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "llvm", "avx2", "torch"):
        raise UserError(f"{VARIABLE} must be llvm, avx2, torch or unset, got {wanted!r}")
    return wanted


@lru_cache(maxsize=1)
def compile_error() -> str | None:
    """Return the reason why kernels cannot be compiled here, with one warning; None if they can."""
    found = _find_obstacle()
    if found is not None:
        _warn(found)
    return found


def _warn(why: str) -> None:
    warnings.warn(
        f"{why}; products run through torch.bmm, several times slower", RuntimeWarning, stacklevel=3
    )


def _find_obstacle() -> str | None:
    try:
        from llvmlite import ir

        from cotswold.kernels.compile import engine
        from cotswold.kernels.machine.processor import this_processor
    except (ImportError, OSError) as error:
        return f"llvmlite cannot be loaded ({error})"
    try:
        here = this_processor()
        if here is None:
            return "this processor has no fused multiply-add that Cotswold knows"
        module = ir.Module("trial")
        module.triple = here.triple
        kind = ir.FunctionType(ir.IntType(64), [])
        builder = ir.IRBuilder(ir.Function(module, kind, "trial").append_basic_block())
        builder.ret(ir.Constant(ir.IntType(64), 42))
        answer = engine.call_integer_function(
            engine.load_object(engine.compile_object(module, here), here, "trial")
        )
    except Exception as error:  # a broken or foreign LLVM may raise anything; torch still works
        return f"llvmlite cannot compile here ({error})"
    return None if answer == 42 else "llvmlite compiles wrongly here"
