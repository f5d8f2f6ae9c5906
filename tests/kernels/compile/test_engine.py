from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FAR_APART = """
import ctypes, mmap
from llvmlite import ir
from cotswold.kernels.compile import engine
from cotswold.kernels.machine.processor import this_processor
here = this_processor()
module = ir.Module("far")
module.triple = here.triple
number = ir.IntType(64)
table = ir.GlobalVariable(module, ir.ArrayType(number, 5), "table")
table.global_constant, table.linkage = True, "internal"
table.initializer = ir.Constant(table.value_type, [3, 1, 4, 1, 5])
function = ir.Function(module, ir.FunctionType(number, [number]), "chosen")
builder = ir.IRBuilder(function.append_basic_block())
place = builder.gep(table, [ir.Constant(number, 0), function.args[0]], source_etype=table.value_type)
builder.ret(builder.load(place, typ=number))
code = engine.compile_object(module, here)

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PRIVATE, ANONYMOUS, NO_RESERVE, PAGE = 0x02, 0x20, 0x4000, mmap.PAGESIZE
def reserved(pages):
    return libc.mmap(None, pages * PAGE, 0, PRIVATE | ANONYMOUS | NO_RESERVE, -1, 0)
block = reserved(3)  # where code will go: a page that is free, between two that are not
big = reserved((8 << 30) // PAGE)
while reserved(1) > big:  # no other page is free on this side of what is big
    pass
libc.munmap(block + PAGE, PAGE)
chosen = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.load_object(code, here, "chosen"))
print([chosen(i) for i in range(5)])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="gaps in memory are filled as Linux does it")
def test_code_finds_its_constants_where_the_free_pages_lie_far_apart() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", FAR_APART],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "[3, 1, 4, 1, 5]\n", (done.returncode, done.stderr[-2000:])
