"""Vectors sent to workers: none within a line search, the direction once per iteration."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cotswold.batch.runtime.pulls import WorkerVectors
from cotswold.batch.runtime.vector_cache import VectorCache
from cotswold.optim import Combine, Command, Drop, Multiply
from cotswold.shards.runtime.arithmetic import Array

SIZE = 5


def trial(step: float) -> Combine:
    return Combine("trial", ((1.0, "x"), (step, "d")))


def begun() -> VectorCache:
    contents = VectorCache()
    for name in ("x", "g"):
        contents.written(name)
    return contents


def test_the_first_point_is_fetched() -> None:
    found = begun().instructions("x")
    assert (found.keeps, found.changed, found.local) == (("x",), ("x",), ())


def test_within_a_line_search_nothing_travels() -> None:
    contents = begun()
    contents.instructions("x")
    contents.ran([Combine("d", ((-1.0, "g"),)), trial(1.0)])
    first = contents.instructions("trial")
    assert first.keeps == ("d", "x") and first.changed == ("d",)
    for step in (0.5, 0.25):
        contents.ran([trial(step)])
        found = contents.instructions("trial")
        assert found.changed == () and found.local == (trial(step),)


def test_a_step_that_was_taken_is_not_fetched() -> None:
    contents = begun()
    contents.instructions("x")
    contents.ran([Combine("d", ((-1.0, "g"),)), trial(1.0)])
    contents.instructions("trial")
    contents.ran(
        [Combine("x", ((1.0, "x"), (1.0, "d"))), Combine("d", ((0.5, "d"), (-1.0, "g"))), trial(0.3)]
    )
    found = contents.instructions("trial")
    assert found.changed == ("d",)
    assert found.local == (Combine("x", ((1.0, "trial"),)), trial(0.3))


def test_a_step_that_was_not_tried_last_is_fetched() -> None:
    contents = begun()
    contents.instructions("x")
    contents.ran([Combine("d", ((-1.0, "g"),)), trial(1.0)])
    contents.instructions("trial")
    contents.ran([trial(0.5)])
    contents.instructions("trial")
    contents.ran(
        [Combine("x", ((1.0, "x"), (1.0, "d"))), Combine("d", ((0.5, "d"), (-1.0, "g"))), trial(0.3)]
    )
    assert contents.instructions("trial").changed == ("d", "x")


_NAMES = st.sampled_from(["x", "d", "g", "t"])
_FACTORS = st.sampled_from([1.0, -1.0, 0.5])
_COMMANDS = st.one_of(
    st.builds(Combine, _NAMES, st.lists(st.tuples(_FACTORS, _NAMES), min_size=1, max_size=3).map(tuple)),
    st.builds(Multiply, _NAMES, _NAMES, _NAMES),
)


@given(st.lists(st.tuples(st.lists(_COMMANDS, max_size=4), _NAMES, st.booleans()), max_size=8))
def test_whatever_is_commanded_workers_have_the_point(
    evaluations: list[tuple[list[Command], str, bool]],
) -> None:
    start = np.random.default_rng(0).standard_normal((4, SIZE))
    shards, contents = WorkerVectors(SIZE, start.dtype), VectorCache()
    for name, values in zip(("x", "d", "g", "t"), start, strict=True):
        shards[name] = values.copy()
        contents.written(name)
    lasting = WorkerVectors(SIZE, start.dtype)
    for commands, at, drop in evaluations:
        shards.run(commands)
        contents.ran(commands)
        found = contents.instructions(at)
        newcomer = WorkerVectors(SIZE, start.dtype)
        for worker, fetched in ((lasting, found.changed), (newcomer, found.keeps)):
            for name in fetched:
                worker[name] = shards[name].copy()
            worker.run(found.local, fetched)
            assert worker[at].tobytes() == _bytes(shards[at])
        if drop:
            contents.written("d")
            shards["d"] = shards["d"] + 1
    contents.ran([Drop("x")])


def _bytes(vector: Array) -> bytes:
    return vector.tobytes()
