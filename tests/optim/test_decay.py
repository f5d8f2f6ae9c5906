"""Weight decay as commands: values, gradients, rounds of messages."""

from __future__ import annotations

import pytest
import torch
from tests.support.optim.objectives import CountedVectors, Patterns

from cotswold.optim import BunyipSearch, CGMethod, Decayed, Dot, LBFGSMethod, TensorVectors


def test_half_the_squares_are_in_the_value_and_the_point_in_the_gradient() -> None:
    point = torch.arange(8.0, dtype=torch.float64)
    found = []
    for decay in (0.0, 0.3):
        vectors = TensorVectors(point.clone())
        inner = Patterns(vectors)
        objective = Decayed(inner, decay) if decay else inner
        evaluation = objective.evaluate("x", "g", after=[Dot("g", "g")])
        found.append((evaluation, vectors["g"][0].clone()))
    (plain, gradient), (decayed, other) = found
    assert decayed.penalty == 0.15 * float(point @ point)
    assert decayed.value == plain.value + decayed.penalty
    torch.testing.assert_close(other, gradient + 0.3 * point)
    assert decayed.dots == pytest.approx([float(other @ other)])  # what follows sees the whole gradient


@pytest.mark.parametrize("part", [False, True])
def test_decay_takes_no_round_of_its_own(part: bool) -> None:
    vectors = CountedVectors(torch.ones(8, dtype=torch.float64))
    objective = Decayed(Patterns(vectors), 0.1)
    search = BunyipSearch(part=0.3) if part else None
    method = CGMethod(vectors, objective, line_search=search) if part else LBFGSMethod(vectors, objective)
    for _ in range(6):
        before = vectors.rounds
        done = method.step()
        assert vectors.rounds - before == 2 * (done.evaluations + done.partial_evaluations)
        assert 0 < done.penalty < done.value
