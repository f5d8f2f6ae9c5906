"""Accounts: work, speed and cost."""

from __future__ import annotations

import json

import pytest

from cotswold.errors import CheckpointError
from cotswold.recipe.schema import Price
from cotswold.run import Usage


def test_bunyips_price_comes_out_as_published() -> None:
    # Aberdeen et al. 2000: 163.3 GFLOP/s for four hours on machines for $150,913 are 92.4 cents per MFLOP/s
    account = Usage()
    account.add(flops=int(163.3e9) * 4 * 3600, seconds=4 * 3600)
    summary = account.summary(Price(hardware_dollars=150_913.0))
    assert summary["cents_per_mflops"] == pytest.approx(92.4, abs=0.05)
    assert summary["dollars"] is None


def test_a_rented_machine_costs_by_the_hour() -> None:
    account = Usage(seconds=5400.0)
    assert account.summary(Price(rent_dollars_per_hour=2.0))["dollars"] == pytest.approx(3.0)


def test_what_is_not_known_is_none_and_never_zero() -> None:
    summary = Usage().summary(Price(hardware_dollars=100.0))
    assert (summary["flops_per_second"], summary["cents_per_mflops"]) == (None, None)
    assert (summary["dollars"], summary["staleness"]) == (None, None)


def test_a_resumed_run_counts_on_from_its_checkpoint() -> None:
    account = Usage()
    account.add(samples=96, flops=10**18, seconds=1.5, wire_bytes=7)
    account = Usage.from_state(json.loads(json.dumps(account.state())))
    account.add(samples=4, flops=1, seconds=0.5)
    assert account == Usage(samples=100, flops=10**18 + 1, seconds=2.0, wire_bytes=7)
    assert account.flops_per_second == pytest.approx(5e17)


@pytest.mark.parametrize("state", [None, [], {"samples": 1, "colour": 2}])
def test_what_is_no_account_is_of_another_version(state: object) -> None:
    with pytest.raises(CheckpointError, match="another version wrote it"):
        Usage.from_state(state)
