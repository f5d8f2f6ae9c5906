"""Environments of the tests of Triton's kernels: Triton's interpreter, or a CUDA device.

Knows: a child process that interprets, operands sent with the memory around them. Does not know: the tests.

Triton reads ``TRITON_INTERPRET`` at its first import, and torch imports Triton when it compiles. So the
interpreter has a separate process, and does not affect other tests.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Protocol

import pytest
import torch
from torch import Tensor

from cotswold.geometry import BlockLocal
from cotswold.kernels.cuda import launch, products
from cotswold.kernels.cuda.tiles import LEAST_SIDE, ProgramTile
from cotswold.kernels.cuda.updates import update

Sides = Mapping[str, int]
ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
"""Environment with this process's import path, for example of a copy of the project."""
NO_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed (extra cuda)")
NO_DEVICE = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Runner(Protocol):
    """Runs an operation of ``cotswold.kernels.cuda`` and returns the changed ``operands``."""

    def __call__(
        self, operation: str, layer: BlockLocal, operands: list[Tensor], sides: Sides
    ) -> list[Tensor]:
        """Run with ``operands`` as the operation takes them, without ``layer``; ``sides`` of the tile.

        ``update`` uses neither ``layer`` nor ``sides``.
        """


def _call(operation: str, layer: BlockLocal, operands: list[Tensor]) -> list[Tensor]:
    if operation == "update":
        update(*operands)
    else:
        getattr(products, operation)(*operands[:-1], layer, operands[-1])
    return operands


def here(operation: str, layer: BlockLocal, operands: list[Tensor], sides: Sides) -> list[Tensor]:
    """Run in a process that interprets itself."""
    launch.INTERPRETER_TILE.update(sides)
    return _call(operation, layer, operands)


def _send(pipe: IO[bytes], message: object) -> None:
    packed = pickle.dumps(message)
    pipe.write(struct.pack("<q", len(packed)) + packed)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> object:
    head = pipe.read(8)
    if len(head) < 8:
        raise EOFError("the other process ended")
    return pickle.loads(pipe.read(struct.unpack("<q", head)[0]))


def _packed(tensors: list[Tensor]) -> bytes:
    """Pack views with their strides and the memory around them."""
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()


def _unpacked(data: bytes) -> list[Tensor]:
    tensors: list[Tensor] = torch.load(io.BytesIO(data))
    return tensors


class Interpreter:
    """Triton's interpreter, in a process with the lifetime of this object."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.kernels.cuda_layers"],
            cwd=ROOT,
            env={**ENVIRONMENT, "TRITON_INTERPRET": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(
        self, operation: str, layer: BlockLocal, operands: list[Tensor], sides: Sides
    ) -> list[Tensor]:
        assert self._process.stdin is not None and self._process.stdout is not None
        _send(self._process.stdin, (operation, layer, dict(sides), _packed(operands)))
        answer = _receive(self._process.stdout)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, bytes)
        return _unpacked(answer)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


class Device:
    """A CUDA device, with the given tile, or the tuner's tile."""

    def __call__(
        self, operation: str, layer: BlockLocal, operands: list[Tensor], sides: Sides
    ) -> list[Tensor]:
        there = [_with_memory_on(operand, "cuda") for operand in operands]
        with pytest.MonkeyPatch.context() as patch:
            for name in ("_PRODUCT", "_ADJOINT", "_OUTER"):
                program = getattr(products, name)
                tile = ProgramTile(
                    {side: max(sides.get(side, 0), LEAST_SIDE) for side in program.tiles[0].sides}, 4, 2
                )
                if sides:
                    patch.setattr(products, name, replace(program, tiles=(tile,)))
            return [_with_memory_on(result, "cpu") for result in _call(operation, layer, there)]


def _with_memory_on(values: Tensor, device: str) -> Tensor:
    memory = torch.empty(0, dtype=values.dtype, device=values.device)
    memory.set_(values.untyped_storage())
    return memory.to(device).as_strided(values.shape, values.stride(), values.storage_offset())


def serve(inlet: IO[bytes], outlet: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    usual = dict(launch.INTERPRETER_TILE)
    while True:
        try:
            request = _receive(inlet)
        except EOFError:
            return
        assert isinstance(request, tuple)
        operation, layer, sides, data = request
        launch.INTERPRETER_TILE.update({**usual, **sides})
        try:
            answer: object = _packed(_call(operation, layer, _unpacked(data)))
        except Exception as error:  # the other process raises it
            answer = error
        _send(outlet, answer)


if __name__ == "__main__":
    outlet = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed goes to the errors, not among the answers
    serve(sys.stdin.buffer, outlet)
