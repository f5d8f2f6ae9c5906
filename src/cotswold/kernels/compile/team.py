"""A group of threads that use the rounding mode of their caller.

Knows: the floating-point control register, how to enter a thread pool. Does not know: which pool, the work of
the threads.

`torch.set_flush_denormal` affects only the calling thread. Threads of a pool keep the register value with
which they started, so a product would depend on the number of threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache, partial

from llvmlite import ir

from cotswold.kernels.compile import library
from cotswold.kernels.compile.emit import I32, I64, POINTER, VOID, integer
from cotswold.kernels.machine.processor import Processor, this_processor

WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
"""Type of ``work(job)``."""
PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
"""Type of ``GOMP_parallel(work, job, threads, flags)``."""
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
FIELDS = 3
"""Fields of the message to the threads: addresses of work and job, and the register value."""

Enter = Callable[[int, int, int, int], None]
"""``enter(parallel, work, job, threads)``: let a pool call ``work(job)`` with the caller's register value."""


def write_team(isa: str, triple: str) -> ir.Module:
    """Return a module with ``work(parallel, work, job, threads)``, as `Enter` describes."""
    module = ir.Module(f"team_{isa}")
    module.triple = triple
    member = ir.Function(module, ir.FunctionType(VOID, [POINTER]), "member")
    b = ir.IRBuilder(member.append_basic_block())
    work, job, wanted = (_field(b, member.args[0], number, I64) for number in range(FIELDS))
    own = _register(b, isa)
    _set_register(b, isa, wanted)
    b.call(b.inttoptr(work, ir.FunctionType(VOID, [POINTER]).as_pointer()), [b.inttoptr(job, POINTER)])
    _set_register(b, isa, own)
    b.ret_void()
    enter = ir.Function(module, ir.FunctionType(VOID, [I64, I64, I64, I32]), "work")
    b = ir.IRBuilder(enter.append_basic_block())
    parallel, work, job, threads = enter.args
    told = b.alloca(I64, FIELDS)
    for number, value in enumerate((work, job, _register(b, isa))):
        b.store(value, b.gep(told, [integer(number)], source_etype=I64))
    kind = ir.FunctionType(VOID, [POINTER, POINTER, I32, I32])
    b.call(b.inttoptr(parallel, kind.as_pointer()), [member, told, threads, ir.Constant(I32, 0)])
    b.ret_void()
    return module


def _field(b: ir.IRBuilder, told: ir.Value, number: int, kind: ir.Type) -> ir.Value:
    return b.load(b.gep(told, [integer(number)], source_etype=I64), typ=kind)


def _register(b: ir.IRBuilder, isa: str) -> ir.Value:
    """Load the control register as an integer."""
    if isa == "neon":
        return b.call(_intrinsic(b, "llvm.aarch64.get.fpcr", ir.FunctionType(I64, [])), [])
    place = b.alloca(I32)
    b.call(_intrinsic(b, "llvm.x86.sse.stmxcsr", ir.FunctionType(VOID, [POINTER])), [place])
    return b.zext(b.load(place, typ=I32), I64)


def _set_register(b: ir.IRBuilder, isa: str, value: ir.Value) -> None:
    if isa == "neon":
        b.call(_intrinsic(b, "llvm.aarch64.set.fpcr", ir.FunctionType(VOID, [I64])), [value])
        return
    place = b.alloca(I32)
    b.store(b.trunc(value, I32), place)
    b.call(_intrinsic(b, "llvm.x86.sse.ldmxcsr", ir.FunctionType(VOID, [POINTER])), [place])


def _intrinsic(b: ir.IRBuilder, name: str, kind: ir.FunctionType) -> ir.Function:
    return b.module.globals.get(name) or ir.Function(b.module, kind, name)


@lru_cache(maxsize=4)
def enter(processor: Processor | None = None) -> Enter:
    """Return the compiled function that enters a pool."""
    here = processor or this_processor()
    assert here is not None, "kernels are usable only where the processor is known"
    write = partial(write_team, here.isa, here.triple)
    found: Enter = _CALL(library.address(("team",), here, write, _passes_self_test))
    return found


def _passes_self_test(address: int) -> bool:
    """True if the work receives its job through the pool."""
    called: list[int] = []
    work = WORK(called.append)
    parallel = PARALLEL(
        lambda member, told, threads, _: [WORK(member)(told) for _ in range(threads)] and None
    )
    _CALL(address)(*(ctypes.cast(one, ctypes.c_void_p).value for one in (parallel, work)), 64, 2)
    return called == [64, 64]


def member_of(work: int, job: int) -> Callable[[int], None]:
    """``work(job)`` with this thread's register value, for a thread of a pool that has no address."""
    found: list[tuple[int, list[int]]] = []

    def note(member: int, told: int, threads: int, flags: int) -> None:
        found.append((member, list((ctypes.c_int64 * FIELDS).from_address(told))))

    parallel = PARALLEL(note)
    address = ctypes.cast(parallel, ctypes.c_void_p).value
    assert address is not None
    enter()(address, work, job, 1)
    ((member, told),) = found
    kept = (ctypes.c_int64 * FIELDS)(*told)
    return lambda job: WORK(member)(ctypes.addressof(kept))
