"""The progress line of `cotswold serve`."""

from __future__ import annotations

from dataclasses import replace

from cotswold.api.servers.parameter_server import ServedStatus
from cotswold.cli.serve import _line

ONE = ServedStatus(("client-1",), 1, 0.2, 1, 0, 0.5, 3, {})


def test_one_of_a_kind_is_one() -> None:
    assert _line(ONE) == "1 client, 1 push (0/s), staleness 0.5 (at most 3), 1 sample counted"
    many = replace(ONE, clients=(), pushes=600, samples=38400, torn=7, refused={"stale": 2})
    assert _line(many).startswith("0 clients, 600 pushes (0/s), ")
    assert _line(many).endswith("38,400 samples counted, 7 torn; refused 2 stale")
