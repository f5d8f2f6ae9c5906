from __future__ import annotations

import subprocess
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from llvmlite import ir

from cotswold.kernels.compile.fingerprint import fingerprint

GENERATOR = """
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache, partial
from contextlib import contextmanager

STEPS = {"wide": (1, 2.5), "few": (3, 4)}

class Job(IntEnum):
    A_PITCH = 9
    B_PITCH = 10

    def bytes(self):
        return 32

@dataclass(frozen=True)
class Kind:
    name: str
    def width(self):
        return 16
    @property
    def half(self):
        return 8
    @cached_property
    def quarter(self):
        return 4

PLAIN = Kind("plain")

def helper(x, factor=3):
    return [one * factor for one in x]

@lru_cache
def kept(x):
    return x + 1

@contextmanager
def around():
    yield 5

def itself(n):
    return 0 if n == 0 else itself(n - 1)

def scaled(x, by, rows=0):
    return x

TWICE = partial(scaled, by=12)
THRICE = partial(scaled, 13)

def unused():
    return 7

def write(lanes):
    '''Docstring.'''
    with around():
        bound = TWICE, THRICE
        return helper(STEPS["wide"]), Job.A_PITCH, PLAIN.half, kept(lanes), itself(3), lambda: PLAIN.quarter
"""


def generator(text: str = GENERATOR) -> Callable[[int], object]:
    """Return a generator in a fake module of ours, without a file."""
    module = types.ModuleType("cotswold.kernels.made_up")
    sys.modules[module.__name__] = module
    try:
        exec(compile(text, "nowhere", "exec"), vars(module))
    finally:
        del sys.modules[module.__name__]
    write: Callable[[int], object] = module.write
    return write


CHANGES = {
    "a constant": ("2.5", "2.25"),
    "a type of constant": ("(3, 4)", "(3, 4.0)"),
    "two fields of a job": ("A_PITCH = 9\n    B_PITCH = 10", "A_PITCH = 10\n    B_PITCH = 9"),
    "a default": ("factor=3", "factor=4"),
    "a comprehension": ("one * factor", "one + factor"),
    "a property": ("return 8", "return 9"),
    "a cached property": ("return 4", "return 5"),
    "a method that nobody names": ("return 16", "return 17"),
    "an instance": ('Kind("plain")', 'Kind("other")'),
    "a cached function": ("return x + 1", "return x - 1"),
    "a context": ("yield 5", "yield 6"),
    "the generator": ("itself(3)", "itself(2)"),
    "a method of an enumeration": ("return 32", "return 64"),
    "an argument that is bound": ("scaled, 13", "scaled, 14"),
    "a named argument that is bound": ("by=12", "by=11"),
    "a recursion": ("itself(n - 1)", "itself(n - 2)"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_a_generator_reaches_is_in_its_fingerprint(change: str) -> None:
    old, new = CHANGES[change]
    assert old in GENERATOR
    assert fingerprint(generator()) == fingerprint(generator())
    assert fingerprint(generator(GENERATOR.replace(old, new))) != fingerprint(generator())


@pytest.mark.parametrize(("old", "new"), [("return 7", "return 8"), ("\nSTEPS", "\n\n\nSTEPS")])
def test_neither_what_nobody_reaches_nor_a_place_in_the_file_is(old: str, new: str) -> None:
    assert fingerprint(generator(GENERATOR.replace(old, new))) == fingerprint(generator())


def test_arguments_count_with_their_types_and_contents() -> None:
    found = [fingerprint(1), fingerprint(1.0), fingerprint(True), fingerprint("1"), fingerprint((1,))]
    found += [
        fingerprint(ir.IntType(8)),
        fingerprint(ir.IntType(16)),
        fingerprint({1: 2}),
        fingerprint({2: 1}),
    ]
    assert len(set(found)) == len(found)


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(TypeError, match="must not depend on"):
        fingerprint(object())


def test_the_order_of_sets_and_the_seed_of_hashes_say_nothing() -> None:
    code = textwrap.dedent("""
        from cotswold.kernels.microkernels.kinds import KINDS
        from cotswold.kernels.microkernels.driver import write_kernel
        from cotswold.kernels.compile.fingerprint import fingerprint
        from cotswold.kernels.microkernels.half_driver import write_half_kernel
        print(fingerprint(write_kernel, write_half_kernel, {"a", "b", "c"}, KINDS))
    """)
    told = set()
    for seed in ("1", "2"):
        path = str(Path(__file__).parents[3] / "src")
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        told.add(done.stdout)
    assert len(told) == 1
