"""Compile LLVM code to machine code, and load it into this process.

Knows: LLVM's compiler, object files. Does not know: what the code does.
"""

from __future__ import annotations

import ctypes
import os
import threading

from llvmlite import binding as llvm
from llvmlite import ir

from cotswold.kernels.machine.processor import Processor

LOCK = threading.Lock()
"""Lock held while code is compiled or loaded, and during a fork."""
_LOADED: list[llvm.ExecutionEngine] = []


def lock_during_fork(lock: threading.Lock | threading.RLock) -> None:
    """Hold a lock during every fork, so that a child never inherits it from a thread that it does not have.

    Locks are acquired in the reverse order of these calls. So a module calls this for its own lock after
    importing the modules whose locks it acquires while holding its own.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


lock_during_fork(LOCK)


def target_machine(machine: Processor) -> llvm.TargetMachine:
    """Return LLVM's compiler for a processor."""
    return llvm.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=3, reloc="pic", codemodel="small"
    )


def compile_object(module: ir.Module, machine: Processor) -> bytes:
    """Return the object file of a module."""
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    found: bytes = target_machine(machine).emit_object(parsed)
    return found


def assembly(module: ir.Module, machine: Processor) -> str:
    """Return the assembly of a module as text, for inspection."""
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    found: str = target_machine(machine).emit_assembly(parsed)
    return found


def load_object(code: bytes, machine: Processor, name: str) -> int:
    """Load an object file for the life of the process; return the address of one of its functions."""
    with LOCK:
        empty = llvm.parse_assembly(f'target triple = "{machine.triple}"')
        # code addresses its constants and tables by 32-bit distances: an object needs one block of memory,
        # which LLVM's own memory manager does not guarantee
        engine = llvm.create_mcjit_compiler(empty, target_machine(machine), use_lmm=True)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        _LOADED.append(engine)
        address: int = engine.get_function_address(name)
        return address


def call_integer_function(address: int) -> int:
    """Call a function without arguments that returns an integer."""
    found: int = ctypes.CFUNCTYPE(ctypes.c_int64)(address)()
    return found
