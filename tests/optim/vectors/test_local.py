"""Vectors in memory: the commands, parts, refusals."""

from __future__ import annotations

import pytest
import torch

from cotswold.errors import UserError
from cotswold.optim import Combine, Command, Dot, Drop, Multiply, TensorVectors, dot


def test_commands_run_in_their_order_and_dots_answer_in_theirs() -> None:
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    vectors = TensorVectors(x)
    commands: list[Command] = [
        Dot("x", "x"),
        Combine("y", ((2.0, "x"),)),
        Dot("x", "y"),
        Multiply("x", "x", "y"),
        Dot("x", "x"),
    ]
    assert vectors.run(commands) == [5.0, 10.0, 68.0]
    assert x.tolist() == [2.0, 8.0]


def test_parts_of_any_shape_make_one_vector_and_their_memory_is_the_vector() -> None:
    parts = [torch.ones(2, 3), torch.ones(()), torch.ones(0)]
    vectors = TensorVectors(parts)
    vectors.run([Combine("x", ((3.0, "x"),))])
    assert vectors.size == 7 and vectors.run([Dot("x", "x")]) == [63.0]
    assert parts[0][1, 2] == 3.0


def test_a_vector_that_is_cut_alike_has_the_same_bits_wherever_its_parts_are() -> None:
    x = torch.randn(3000, generator=torch.Generator().manual_seed(1))
    parts = torch.split(x, 1024)
    assert TensorVectors(parts).run([Dot("x", "x")]) == [sum(dot(part, part) for part in parts)]


def test_an_unknown_name_is_named_and_a_dropped_one_is_unknown() -> None:
    vectors = TensorVectors(torch.ones(1))
    vectors.run([Combine("y", ((1.0, "x"),)), Drop("y"), Drop("never there")])
    with pytest.raises(KeyError, match="no vector 'y'; existing vectors: x"):
        vectors.run([Dot("x", "y")])


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "at least one tensor"),
        ([torch.ones(2, dtype=torch.int64)], "float32 or float64"),
        ([torch.ones(2, dtype=torch.bfloat16)], "float32 or float64"),
        ([torch.ones(2), torch.ones(2, dtype=torch.float64)], "must have one type"),
        ([torch.ones(2, 3).T], "not contiguous"),
    ],
)
def test_what_cannot_be_a_vector_is_refused(parts: list[torch.Tensor], words: str) -> None:
    with pytest.raises(UserError, match=words):
        TensorVectors(parts)
