"""Training over several hosts agrees with one process, and the bytes on the wire agree with the plans."""

from __future__ import annotations

import time
from functools import cache

import pytest

from cotswold.testing.hosts import HEADER_BYTES, Rate, why_not
from lib.scaling.wire import GLOO_BYTES, SMALL, Found, Spot, trained

pytestmark = pytest.mark.skipif(
    why_not() is not None, reason="needs root and ip/tc (Debian's iproute2) to make hosts in namespaces"
)


@cache
def training(hosts: int, rate: Rate) -> Found:
    begun = time.monotonic()
    found = trained(Spot(SMALL, 24, "2x2", hosts, rate))
    assert time.monotonic() - begun < 120
    return found


OVER: list[tuple[int, Rate]] = [(2, "1gbit"), (4, "10gbit")]


@pytest.mark.soak
@pytest.mark.parametrize(("hosts", "rate"), OVER)
def test_ten_steps_over_hosts_agree_with_one_process(hosts: int, rate: Rate) -> None:
    assert training(hosts, rate).error <= 1e-10


@pytest.mark.soak
@pytest.mark.parametrize(("hosts", "rate"), OVER)
def test_bytes_on_the_wire_are_those_of_the_plans_and_headers(hosts: int, rate: Rate) -> None:
    wire = training(hosts, rate).wire
    assert wire.planned_bytes > 1e6
    assert abs(wire.unexplained) < 0.005
    assert wire.header_bytes == wire.packets * HEADER_BYTES + wire.messages * GLOO_BYTES
