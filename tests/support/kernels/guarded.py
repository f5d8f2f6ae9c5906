"""Runs products whose operands lie between protected pages; a script, because it may crash.

Knows: pages and their protection. Does not know: right results, except those of the same kernel on ordinary
memory.

``python -m tests.support.kernels.guarded random SEED CASES`` prints each case before it runs it: the last
line names the case that crashed. ``... guarded shifted`` runs cases with one operand a number beyond its
memory, each in a child, and prints those that survive.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product

import torch
from tests.support.kernels.operations import DTYPES, KERNELS, forced, operands, processors, run, same_bits
from tests.support.ops.layers import random_weights
from torch import Tensor

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.products import problem
from cotswold.kernels.products import run as kernels
from cotswold.ops import memory_format
from cotswold.ops.memory_format import empty_map

WHOLE = BlockLocal(MapShape(3, 8, 7), Window(4, 2), Window(3, 2), rows=2, columns=2, depth=5)
"""A layer that reads every number of its map."""

FACTOR = torch.float32.itemsize
TILES = [(1, 1), (5, 3), (8, 3), (12, 2)]
MOVED = [("step", [0, 1, 2, 3, 5, 6, 7]), ("tanh", [0, 1, 2, 3])]
"""Other kinds to run, with the operands that may not be shifted."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _protect(address: int, size: int, how: int) -> None:
    if _LIBC.mprotect(address, size, how):
        raise OSError(ctypes.get_errno(), "mprotect")


def _numbers(address: int, count: int, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype=dtype)


@dataclass
class Guard:
    """Allocates memory between two protected pages, at the end or the beginning of pages."""

    at_end: bool
    regions: list[mmap.mmap] = field(default_factory=list)

    def numbers(
        self, count: int, dtype: torch.dtype, content: Tensor | None = None, shifted: bool = False
    ) -> Tensor:
        """Return NaN, or read-only contents. ``shifted`` memory lies one number too far."""
        size = count * dtype.itemsize
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        region = mmap.mmap(-1, pages + 2 * mmap.PAGESIZE)
        self.regions.append(region)
        start = ctypes.addressof(ctypes.c_char.from_buffer(region))
        inner = start + mmap.PAGESIZE
        _numbers(inner, pages // dtype.itemsize, dtype).fill_(
            float("nan") if dtype.is_floating_point else 255
        )
        first = inner + (pages - size if self.at_end else 0)
        if content is not None:
            _numbers(first, count, dtype).copy_(content)
            _protect(inner, pages, mmap.PROT_READ)
        for guard in (start, inner + pages):
            _protect(guard, mmap.PAGESIZE, 0)
        further = dtype.itemsize if self.at_end else -dtype.itemsize
        return _numbers(first + (further if shifted else 0), count, dtype)

    def like(self, x: Tensor, pitch: int, filled: bool, shifted: bool = False) -> Tensor:
        """Return a guarded tensor with the same values or NaN; maps have ``pitch`` numbers between
        channels.
        """
        strides, count = x.stride(), x.numel()
        if x.dim() == 4:
            images, channels, height, width = x.shape
            channel = images + pitch
            strides = 1, channel, width * channels * channel, channels * channel
            count = (height * width * channels - 1) * channel + images
        content = torch.full((count,), float("nan") if x.is_floating_point() else 255, dtype=x.dtype)
        content.as_strided(x.shape, strides).copy_(x)
        found = self.numbers(count, x.dtype, content if filled else None, shifted)
        return found.as_strided(x.shape, strides)


@contextmanager
def scratch_of(guard: Guard) -> Iterator[None]:
    """Give kernels guarded scratch inside the context: some lines, requested as bytes."""
    usual = torch.empty

    def guarded(size: object, **options: object) -> Tensor:
        if options.get("dtype") is not torch.uint8 or not isinstance(size, int):
            return usual(size, **options)  # type: ignore[call-overload, no-any-return]  # handed on
        return guard.numbers(-(-size // FACTOR), torch.float32).view(torch.uint8)

    torch.empty = guarded  # type: ignore[assignment]  # as `PreparedKernel.run` calls it
    try:
        yield
    finally:
        torch.empty = usual


def any_window(chance: random.Random, extent: int) -> Window:
    """Return any window that fits."""
    size = chance.randint(1, min(extent + 2, 6))
    low, high = chance.randrange(size), chance.randrange(size)
    if size > extent + low + high:
        size, low, high = extent, 0, 0
    return Window(size, chance.randint(1, 4), low, high)


def any_layer(chance: random.Random) -> BlockLocal:
    """Return any small layer."""
    shape = MapShape(*(chance.randint(1, most) for most in (7, 9, 9)))
    blocks = (chance.randint(1, most) for most in (3, 3, 9))
    return BlockLocal(shape, any_window(chance, shape.height), any_window(chance, shape.width), *blocks)


@dataclass(frozen=True)
class Case:
    """A product, its kernel, and the places of its operands."""

    operation: str
    few: bool | None
    layer: BlockLocal
    images: int
    pitch: int
    dtype: torch.dtype
    processor: Processor
    tile: tuple[int, int]
    at_end: bool

    def __str__(self) -> str:
        told = replace(self, processor=replace(self.processor, features=""))
        return repr(told)

    def run(self, shifted: int | None = None) -> None:
        """Run on ordinary and on guarded memory; shift the operand of this number by one."""
        guard = Guard(self.at_end)
        setting = forced(*self.tile, 1, self.processor, self.few)
        first, second = operands(self.operation, self.layer, self.images, self.dtype)
        expected = run(self.operation, self.layer, (first, second), setting)
        pair = (
            guard.like(first, self.pitch, True, shifted == 0),
            guard.like(second, self.pitch, True, shifted == 1),
        )
        out = guard.like(expected, self.pitch, False, shifted == 2)
        with scratch_of(guard):
            run(self.operation, self.layer, pair, setting, out)
        assert same_bits(out, expected), "another result"


def turn(chance: random.Random) -> None:
    """Copy a random map from images first to images last and back, both between guards."""
    images, *shape = (chance.randint(1, most) for most in (40, 5, 7, 9))
    pitch, guard = chance.choice([0, 0, 3]), Guard(chance.random() < 0.5)
    x = torch.randn(images, *shape, dtype=chance.choice(DTYPES))
    print("turn", tuple(x.shape), pitch, x.dtype, guard.at_end, flush=True)
    first = guard.numbers(x.numel(), x.dtype, x.flatten()).view(x.shape)
    last = guard.like(torch.empty_like(x), pitch, False)
    memory_format._transpose(first, last, to_last=True)
    assert same_bits(last, x), "another map, images last"
    first, last = guard.numbers(x.numel(), x.dtype).view(x.shape), guard.like(x, pitch, True)
    memory_format._transpose(first, last, to_last=False)
    assert same_bits(first, x), "another map, images first"


@dataclass(frozen=True)
class Moved:
    """A step of filters, or a product with biases and an activation, and the places of its operands."""

    kind: str
    layer: BlockLocal
    images: int
    pitch: int
    dtype: torch.dtype
    processor: Processor
    tile: tuple[int, int]
    at_end: bool

    def __str__(self) -> str:
        return repr(replace(self, processor=replace(self.processor, features="")))

    @property
    def operands(self) -> list[Tensor]:
        """Return the inputs; a step's filters, momentum and norms, which it changes, come last."""
        layer, images, dtype = self.layer, self.images, self.dtype
        x, y, filters = (*operands("outer", layer, images, dtype)[::-1], random_weights(layer, 3, dtype))
        if self.kind != "step":
            return [x, filters, filters[:, :, 0, 0].contiguous()]
        constants = torch.tensor([0.9, 0.1, 0.1], dtype=torch.float64)
        norms = filters.square().sum((2, 3)).sqrt()
        return [y, x, 2 * y, x + 1, constants, filters, filters / 2, norms]

    def call(self, given: list[Tensor], out: Tensor) -> list[Tensor]:
        """Run on these operands; return the changed tensors."""
        setting = forced(*self.tile, 1, self.processor)
        if self.kind != "step":
            x, filters, biases = given
            kernels.product_with_activation(x, filters, biases, self.layer, out, self.kind, setting)
            return [out]
        *maps, constants, filters, momentum, norms = given
        first, second = (maps[0], maps[1]), (maps[2], maps[3])
        kernels.step(first, second, self.layer, (filters, momentum, norms), constants, setting)
        return [filters, momentum, norms]

    def run(self, shifted: int | None = None) -> None:
        """Run like `Case.run`."""
        guard = Guard(self.at_end)
        given = self.operands
        changed = 3 if self.kind == "step" else 0
        out = empty_map(given[0], self.images, self.layer.output)
        placed = [
            guard.like(one, self.pitch, i < len(given) - changed, shifted == i) for i, one in enumerate(given)
        ]
        for i in range(len(given) - changed, len(given)):
            if shifted is None:
                placed[i].copy_(given[i])
        into = guard.like(out, self.pitch, False, shifted == len(given))
        with scratch_of(guard):
            found = self.call(placed, into)
        for ours, expected in zip(found, self.call(given, out), strict=True):
            assert same_bits(ours, expected), "another result"


def any_moved(chance: random.Random) -> Moved:
    """Return a step or an activated product of any small layer."""
    kind = chance.choice(["step", "step", "tanh", "relu"])
    return Moved(
        kind,
        any_layer(chance),
        chance.randint(1, 40),
        chance.choice([0, 0, 3]),
        chance.choice(DTYPES) if kind == "step" else torch.float32,
        chance.choice(processors()),
        chance.choice([(5, 3), (8, 3)]),
        chance.random() < 0.5,
    )


def random_cases(seed: str, cases: str) -> None:
    """Run cases that must not crash."""
    chance = random.Random(seed)
    for _ in range(int(cases)):
        turn(chance)
        # A is copied wherever it can be, or nowhere
        problem.PAGE_BYTES, problem.LANES_LEAST = chance.choice([(0, 0), (4096, 96)])
        case = Case(
            *chance.choice(KERNELS),
            any_layer(chance),
            chance.randint(1, 40),
            chance.choice([0, 0, 3]),
            chance.choice(DTYPES),
            chance.choice(processors()),
            chance.choice(TILES),
            chance.random() < 0.5,
        )
        print(case, flush=True)
        case.run()
        moved = any_moved(chance)
        print(moved, flush=True)
        moved.run()
    print("alive")


def shifted_cases() -> None:
    """Run cases that must crash, each in a child."""
    faulthandler.disable()
    for dtype in DTYPES:
        operands("product", WHOLE, 17, dtype)  # compiled once, not in every child
    for (operation, few), dtype, processor in product(KERNELS, DTYPES, processors()):
        for at_end, operand in product([True, False], range(3)):
            case = Case(operation, few, WHOLE, 17, 0, dtype, processor, (8, 3), at_end)
            if not dies(case, operand):
                print("lives:", operand, case)
    for (kind, read), processor, at_end in product(MOVED, processors(), [True, False]):
        for operand in read:
            moved = Moved(kind, WHOLE, 17, 0, torch.float32, processor, (8, 3), at_end)
            if not dies(moved, operand):
                print("lives:", operand, moved)
    print("done")


def dies(case: Case | Moved, operand: int) -> bool:
    """True if a child crashes because of an operand shifted by one number."""
    child = os.fork()
    if child == 0:
        case.run(operand)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGSEGV, signal.SIGBUS)


if __name__ == "__main__":
    if sys.argv[1] == "random":
        random_cases(*sys.argv[2:])
    else:
        shifted_cases()
