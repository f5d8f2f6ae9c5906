"""Programs of torch.export, files `.pt2`.

Knows: torch.export, its dynamic batch. Does not know: runs, other formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from cotswold.api.export.agreement import larger, largest_difference
from cotswold.api.export.portable import portable
from cotswold.api.export.subject import KEY, Inputs, Subject
from cotswold.errors import ExportError, UserError

_TORCH = ("aten", "prims", "_operator", "higher_order")
"""Namespaces of operations that every program with torch has."""


def exported(subject: Subject) -> tuple[ExportedProgram, list[str]]:
    """Return the program of a network, and notes for the user; raises ExportError if torch cannot export it.

    The batch is dynamic if the network permits it.
    """
    try:
        with torch.no_grad():
            subject.network(*subject.inputs)
    except Exception as error:
        raise UserError(
            f"the network does not run on the example: {_first_line(error)}; give an input of the module"
        ) from error
    network, is_free = portable(subject.network, subject.inputs), _takes_any_batch(subject)
    with _layer_of_error(network) as trail:
        try:
            program = torch.export.export(
                network,
                subject.inputs,
                dynamic_shapes=tuple({0: Dim.AUTO} for _ in subject.inputs) if is_free else None,
                strict=False,
            )
        except Exception as error:
            raise ExportError(
                f"{trail[-1] if trail else 'the network'} cannot be exported by torch.export: "
                f"{_first_line(error)}"
            ) from error
    notes = []
    if not is_dynamic(program):
        notes.append(f"the network fixes its batch: the program takes {len(subject.inputs[0])} samples")
    foreign = foreign_operations(program)
    if foreign:
        notes.append(f"a program that loads it must first import the package of {', '.join(foreign)}")
    return program, notes


def _takes_any_batch(subject: Subject) -> bool:
    """True if the network computes a batch with a sample more."""
    try:
        with torch.no_grad():
            subject.network(*larger(subject.inputs))
    except Exception:
        return False
    return True


def is_dynamic(program: ExportedProgram) -> bool:
    """True if every input of a program has a batch of any size."""
    inputs = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in inputs]
    return all(isinstance(node.meta["val"].shape[0], torch.SymInt) for node in nodes)


def foreign_operations(program: ExportedProgram) -> list[str]:
    """Return the operations of a program that are not torch's own."""
    called = {node.target for node in program.graph.nodes if node.op == "call_function"}
    names = {
        f"{each.namespace}::{each._opname}"
        for each in called
        if isinstance(each, torch._ops.OpOverload) and each.namespace not in _TORCH
    }
    return sorted(names)


def write_program(subject: Subject, file: BinaryIO) -> tuple[float, list[str]]:
    """Write a program with its description; return the largest difference of its outputs, and notes."""
    program, notes = exported(subject)
    call = program.module()

    def run(inputs: Inputs) -> object:
        return call(*inputs)

    found = largest_difference(subject.network, run, subject.inputs, is_dynamic=is_dynamic(program))
    torch.export.save(program, file, extra_files={f"{KEY}.json": subject.text})
    return found, notes


@contextmanager
def _layer_of_error(network: nn.Module) -> Iterator[list[str]]:
    """Yield a list whose last element, after an error inside the block, names the layer that raised it."""
    trail: list[str] = []

    def enter(name: str, module: nn.Module) -> None:
        trail.append(f"{name or 'the network'} ({type(module).__name__})")

    def leave(module: nn.Module, inputs: tuple[Tensor, ...], outputs: object) -> None:
        trail.pop()

    with ExitStack() as hooks:
        for name, each in network.named_modules():
            before = each.register_forward_pre_hook(lambda module, _, name=name: enter(name, module))
            hooks.callback(before.remove)
            hooks.callback(each.register_forward_hook(leave).remove)
        yield trail


def _first_line(error: BaseException) -> str:
    """Return the first line of an error of torch, whose texts have many."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
