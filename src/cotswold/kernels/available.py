"""Whether kernels of our own can be used here.

Knows: the environment variable, what llvmlite and the processor can do. Does not know: any kernel.
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
DTYPES = (torch.float32, torch.float64)
HALVES = (torch.bfloat16, torch.float16)


P = ParamSpec("P")
R = TypeVar("R")


class WrongKernelError(MachineError):
    """A kernel that failed its trial: its code must not be used on this machine."""


_failures: list[str] = []
"""What kernels have done wrongly in this process."""


def usable(x: Tensor) -> bool:
    """Whether a tensor's operations go to the kernels of this package: on a CPU, of a known type."""
    return x.device.type == "cpu" and x.dtype in DTYPES and chosen() == "llvm"


def multiplies(x: Tensor) -> bool:
    """Whether products of a tensor go there: as `usable`, and half precision."""
    if x.dtype not in HALVES:
        return usable(x)
    return x.device.type == "cpu" and chosen() == "llvm" and (x.dtype == torch.bfloat16 or _has_float16())


@lru_cache(maxsize=1)
def _has_float16() -> bool:
    """Whether this processor converts float16; bfloat16 needs no instruction of its own."""
    from cotswold.kernels.machine.processor import this_processor

    here = this_processor()
    return here is not None and (here.isa != "avx2" or "+f16c" in here.features.split(","))


def on_cuda(x: Tensor) -> bool:
    """Whether products of a tensor go to Triton's programs: on a CUDA device, of a type that they take."""
    if not x.is_cuda or _wanted() == "torch":
        return False
    from cotswold.kernels.cuda.launch import DTYPES as TAKEN
    from cotswold.kernels.cuda.launch import available

    return x.dtype in TAKEN and available()


def chosen() -> str:
    """``llvm`` or ``torch``; raises UserError where the variable is another word."""
    return "torch" if _wanted() == "torch" or reason() else "llvm"


def reason() -> str | None:
    """Why kernels are not used though nobody turned them off; None where they are."""
    return _failures[0] if _failures else obstacle()


def or_torch(operation: Callable[P, R]) -> Callable[P, R]:
    """An operation that is done again, by torch, where a kernel of its turns out to be wrong.

    It must ask `usable` or `multiplies` each time, and change nothing before its kernels are there.
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


def _wanted() -> str:
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "llvm", "torch"):
        raise UserError(f"{VARIABLE} is {wanted!r}; it can be llvm or torch, or not set")
    return wanted


@lru_cache(maxsize=1)
def obstacle() -> str | None:
    """Why kernels cannot be compiled here, said once as a warning; None where they can."""
    found = _found()
    if found is not None:
        _warn(found)
    return found


def _warn(why: str) -> None:
    warnings.warn(
        f"{why}; products run through torch.bmm, several times slower", RuntimeWarning, stacklevel=3
    )


def _found() -> str | None:
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
        answer = engine.call_for_integer(engine.loaded(engine.compiled(module, here), here, "trial"))
    except Exception as error:  # whatever a broken or foreign LLVM raises: torch still works
        return f"llvmlite cannot compile here ({error})"
    return None if answer == 42 else "llvmlite compiles wrongly here"
