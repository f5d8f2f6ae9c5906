"""ONNX files.

Knows: torch's exporter to ONNX, its errors. Does not know: runs, other formats.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import torch
from torch.export import ExportedProgram

from cotswold.api.export.agreement import largest_difference
from cotswold.api.export.program import exported, foreign_operations, is_dynamic
from cotswold.api.export.subject import KEY, Inputs, Subject
from cotswold.errors import ExportError, MissingExtraError, install

_BYTES_MAX = 1 << 31
"""A file of Protocol Buffers holds less than this."""


def write_onnx(subject: Subject, file: BinaryIO) -> tuple[float, list[str]]:
    """Write a network as ONNX; return the largest difference of its outputs, and notes.

    Raises ExportError, which names the layer, for what ONNX cannot express.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError as error:
        raise MissingExtraError(f"an .onnx file needs onnxscript; install it: {install('export')}") from error
    size = sum(each.nbytes for each in subject.network.state_dict().values())
    if size >= _BYTES_MAX:
        raise ExportError(f"an .onnx file holds less than 2 GB, but the network has {size:,} bytes; use .pt2")
    program, notes = exported(subject)
    foreign = foreign_operations(program)
    if foreign:
        raise ExportError(f"ONNX has no operator for {', '.join(foreign)}; use .pt2")
    with _quiet():
        try:
            names = [f"input_{number}" for number in range(len(subject.inputs))]
            made = torch.onnx.export(
                program, dynamo=True, verbose=False, input_names=["input"] if len(names) == 1 else names
            )
        except Exception as error:
            raise ExportError(f"{_layer_of(error, program)}; use .pt2") from error
        assert made is not None, "dynamo=True returns a program"
        made.model.metadata_props[KEY] = subject.text
        model = made.model_proto
    found = _checked(model, subject, is_dynamic(program))
    file.write(onnx.ModelProto.SerializeToString(model))
    return found, notes


def _checked(model: Any, subject: Subject, dynamic: bool) -> float:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)
    names = [each.name for each in model.graph.input]

    def run(inputs: Inputs) -> object:
        given = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
        return [torch.from_numpy(each) for each in evaluator.run(None, given)]

    return largest_difference(subject.network, run, subject.inputs, is_dynamic=dynamic)


def _layer_of(error: BaseException | None, program: ExportedProgram) -> str:
    """Describe why a program cannot be converted, with the layer of the operation that failed."""
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__
    said = re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", "\n".join(texts))
    operation = f"no operator for {said[1]}" if said else "no conversion for one of its operations"
    node = re.search(r"Error when translating node %(\w+)", "\n".join(texts))
    name, called = node[1] if node else None, said[1].rpartition(".")[2] if said else None
    stacks = [
        each.meta.get("nn_module_stack")
        for graph in (program.graph, program.run_decompositions().graph)
        for each in graph.nodes
        if each.name == name or (called is not None and called in str(each.target))
    ]
    if stacks and stacks[0]:
        layer, kind = list(stacks[0].values())[-1]
        kind = kind if isinstance(kind, str) else kind.__qualname__
        return (
            f"layer {layer or 'the network'} ({kind.rpartition('.')[2]}) cannot be exported to ONNX, "
            f"which has {operation}"
        )
    return f"the network cannot be exported to ONNX, which has {operation}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings of torch's exporter about packages that are not needed."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
