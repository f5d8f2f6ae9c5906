import math

import pytest

from cotswold.optim import Adagrad, AddUpdate, Momentum, Rule, Sgd

RULES: list[Rule] = [AddUpdate(), Sgd(), Momentum(0.9), Adagrad()]


def test_rules_say_their_names_and_what_they_keep() -> None:
    assert {rule.name: rule.state_names for rule in RULES} == {
        "deltas": (),
        "sgd": (),
        "momentum": ("velocity",),
        "adagrad": ("squares",),
    }


@pytest.mark.parametrize("momentum", [-0.1, 1.0, math.nan, math.inf])
def test_a_momentum_is_from_0_to_below_1(momentum: float) -> None:
    with pytest.raises(ValueError, match="momentum must be"):
        Momentum(momentum)
    assert Momentum(0.0).momentum == 0.0


@pytest.mark.parametrize("epsilon", [0.0, -1e-8, 1e-50, math.nan, math.inf])
def test_an_epsilon_is_above_0_in_float32_too(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be"):
        Adagrad(epsilon)
    assert Adagrad(2.0**-126).epsilon > 0
