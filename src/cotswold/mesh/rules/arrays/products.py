"""Rules for products of arrays: einsum, and matrix products written as one.

Knows: which subscripts are divided over ranks, sums over them. Does not know: attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor

from cotswold.mesh.maps.array import DistributedArray, arranged, array_of, own_part
from cotswold.mesh.maps.distributed_tensor import DistributedTensor
from cotswold.mesh.maps.layout import Dim, Layout, is_cut, plain
from cotswold.mesh.ranks.collectives import all_reduce_forward
from cotswold.mesh.rules.arrays.operands import moved, needs_whole, warn_operand
from cotswold.mesh.rules.arrays.shape import Distributed
from cotswold.mesh.rules.registry import array_rule


def product(operands: Sequence[Any], subscripts: Sequence[str], output: str, name: str) -> Any:
    """Return the sum of products of operands, with one letter for each dimension.

    The first array decides which letters are divided. An array that is divided otherwise is gathered. The
    result is replicated if all divided letters are summed.
    """
    number = next(at for at, one in enumerate(operands) if isinstance(one, Distributed))
    first = array_of(operands[number])
    cut = {subscripts[number][at]: first.axes.dims[at] for at in first.axes.cut_dims}
    needs_whole(len(set(subscripts[number])) < len(subscripts[number]))
    kept = [letter in output for letter in cut]
    needs_whole(any(kept) and not all(kept))
    locals_ = []
    for value, letters in zip(operands, subscripts, strict=True):
        if isinstance(value, Distributed):
            x = _aligned(array_of(value), letters, cut, first)
            if x is not None:
                locals_.append(x.local)
                continue
            warn_operand(name, value)
        value = value.full_tensor() if isinstance(value, DistributedTensor) else value
        needs_whole(any(value.shape[at] == 1 and one in cut for at, one in enumerate(letters)))
        like = Layout(tuple(cut.get(letter, ()) for letter in letters), first.axes.grid)
        locals_.append(own_part(value, like, first.mesh))
    local = torch.einsum(",".join(subscripts) + "->" + output, *locals_)
    if not any(kept):
        return all_reduce_forward(local, first.mesh)
    dims = [cut.get(letter, plain(local.shape[at])) for at, letter in enumerate(output)]
    return arranged(local, first.axes.with_dims(dims), first.mesh)


def _aligned(
    x: DistributedArray, letters: str, cut: dict[str, Dim], first: DistributedArray
) -> DistributedArray | None:
    """Return an array that is divided along the letters of the first, or None."""
    if x.axes.plane is not None and first.axes.plane is not None and x.axes.plane != first.axes.plane:
        if x.axes.plane.shape != first.axes.plane.shape:
            return None
        if not _divides(x.axes.with_plane(first.axes.plane), letters, cut):
            return None
        x = moved(x, first.axes.plane)
    return x if _divides(x.axes, letters, cut) else None


def _divides(layout: Layout, letters: str, cut: dict[str, Dim]) -> bool:
    mine = {letter: dim for letter, dim in zip(letters, layout.dims, strict=True) if is_cut(dim)}
    return mine == cut and len(set(letters)) == len(letters)


@array_rule("einsum")
def einsum(equation: Any, *operands: Any) -> Any:
    """Sum of products by Einstein's convention."""
    needs_whole(not isinstance(equation, str))
    values = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], tuple | list) else operands
    text = equation.replace(" ", "")
    left, arrow, output = text.partition("->")
    subscripts = left.split(",")
    needs_whole(len(subscripts) != len(values) or not all(isinstance(one, Tensor) for one in values))
    spare = [letter for letter in ascii_letters if letter not in text]
    most = max(
        (
            value.dim() - len(one.replace("...", ""))
            for value, one in zip(values, subscripts, strict=True)
            if "..." in one
        ),
        default=0,
    )
    rest = "".join(spare[:most])
    subscripts = [
        one.replace("...", rest[len(rest) - (value.dim() - len(one.replace("...", ""))) :])
        for value, one in zip(values, subscripts, strict=True)
    ]
    letters = "".join(subscripts)
    if not arrow:
        output = ("..." if rest else "") + "".join(
            sorted(one for one in set(letters) if letters.count(one) == 1 and one not in rest)
        )
    output = output.replace("...", rest)
    needs_whole(any(len(one) != value.dim() for value, one in zip(values, subscripts, strict=True)))
    return product(values, subscripts, output, "einsum")


@array_rule("matmul", "bmm", "mm", "dot", "mv")
def matmul(input: Any, other: Any) -> Any:
    """Product of matrices; batches are broadcast."""
    needs_whole(not isinstance(input, Tensor) or not isinstance(other, Tensor))
    needs_whole(input.dim() == 0 or other.dim() == 0)
    batch = max(input.dim(), other.dim(), 2) - 2
    names = ascii_letters[3 : 3 + batch]
    left = _letters(input, names, "ab") if input.dim() > 1 else "b"
    right = _letters(other, names, "bc") if other.dim() > 1 else "b"
    output = "".join(letter for letter in names if letter in left + right)
    tail = ("a" if input.dim() > 1 else "") + ("c" if other.dim() > 1 else "")
    return product([input, other], [left, right], output + tail, "matmul")


def _letters(x: Tensor, names: str, last: str) -> str:
    count = x.dim() - 2
    return (names[len(names) - count :] if count else "") + last


@array_rule("rmatmul")
def rmatmul(input: Any, other: Any) -> Any:
    """Product of matrices in the other order."""
    return matmul(other, input)
