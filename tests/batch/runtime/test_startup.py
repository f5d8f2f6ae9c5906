"""How a cluster comes up, whoever ends meanwhile."""

from __future__ import annotations

from typing import Any

from cotswold.batch.runtime.startup import Opening, Task
from cotswold.host import Token
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.wire.lifecycle import Given, Made
from cotswold.wire.messenger import Letter

MADE = Made("worker-2", "float32", 1, 10, (1, 2), 0, (("w", 1, 1),))


def test_parameters_of_a_worker_that_has_ended_meanwhile_are_asked_of_another() -> None:
    nothing: Any = None
    opening = Opening(
        ClusterSettings(), Task("a:b", {}, None, None), nothing, Token.new(), nothing, lambda kind, more: None
    )
    opening._hear(Letter("worker-2", MADE))
    opening._hear(Letter("worker-1", Given((b"\0\0\0\0",))))  # its end was heard before
    given = [opening._given]
    opening._hear(Letter("worker-2", Given((b"\0\0\0\0",))))
    given.append(opening._given)
    assert [None if each is None else each.tolist() for each in given] == [None, [0.0]]
