"""What servers know of a run's buckets before there are any."""

from __future__ import annotations

import pytest

from cotswold.cluster.description import Description
from cotswold.cluster.roles.updates import said
from cotswold.ops import updates
from cotswold.optim.updates import Adagrad, Momentum, Rule, Sgd
from cotswold.server.asynchronous import Asynchronous, Room
from cotswold.server.staleness import Staleness


def described(rule: Rule, dtype: str) -> Description:
    settings = Asynchronous("run", "x", rule, {"weights": 4}, 4, Room(1 << 20, 1 << 20), Staleness())
    return Description("run", (("weights", 8, 4),), dtype, 64, 2, said(settings))


@pytest.mark.parametrize("rule", [Sgd(), Momentum(0.9), Adagrad()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_the_first_update_of_a_run_loads_is_loaded_before_there_is_one(rule: Rule, dtype: str) -> None:
    updates._shard.cache_clear()
    described(rule, dtype).rehearse()
    assert updates._shard.cache_info().currsize == 1
