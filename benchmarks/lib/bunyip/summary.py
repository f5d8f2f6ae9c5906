"""The experiment in figures: its cells, the sustained rate and its cost, next to the paper's figures.

Knows: sums over cells. Does not know: how they were trained, the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotswold.bench.measure import rounded
from cotswold.recipe.schema import Price
from cotswold.run import Usage
from lib.bunyip import paper

Told = Mapping[str, Any]


@dataclass(frozen=True)
class Prices:
    """Prices of the machine as given by the user; None if not given."""

    hardware_dollars: float | None = None
    rent_dollars_per_hour: float | None = None


def summary(kept: Sequence[Told], begun: Sequence[Told], prices: Prices) -> dict[str, Any]:
    """Return finished and unfinished cells, their total account, and the paper's figures."""
    price = Price(
        hardware_dollars=prices.hardware_dollars, rent_dollars_per_hour=prices.rent_dollars_per_hour
    )
    # a run in progress beyond its file counts once
    names = {name_of(each) for each in begun}
    alone = [each for each in kept if name_of(each) not in names]
    counted = [*alone, *begun]
    whole = Usage(
        flops=sum(int(each["flops"]) for each in counted), seconds=sum(each["seconds"] for each in counted)
    )
    per_pattern = paper.gradient_flops(1)
    return {
        "cells": [{**each, **_account(each, price)} for each in kept],
        "begun": [{**each, **_account(each, price)} for each in begun],
        "account": {**_rounded(whole, price), "flops_of_a_pattern": per_pattern},
        "prices": {
            "hardware_dollars": prices.hardware_dollars,
            "rent_dollars_per_hour": prices.rent_dollars_per_hour,
        },
        "paper": {
            "table_1": {str(size): error for size, error in paper.TABLE_1.items()},
            "best": paper.BEST,
            "common": paper.COMMON,
            "flops_per_second": paper.FLOPS_PER_SECOND,
            "cents_per_mflops": paper.CENTS_PER_MFLOPS,
            "hardware_dollars": paper.HARDWARE_DOLLARS,
        },
    }


def name_of(told: Told) -> tuple[object, ...]:
    """Return the fields that identify a cell."""
    return tuple(told[name] for name in ("frequencies", "patterns", "method", "loss"))


def row(told: Told) -> dict[str, object]:
    """Return a finished cell as a row of a table."""
    held = told["held_out"]["natural"]
    return {
        "frequencies": told["frequencies"],
        "patterns": told["patterns"],
        "method": told["method"],
        "loss": told["loss"],
        "PFLOP": f"{told['flops'] / 1e15:.3g}",
        **{part: f"{held[part]['error']:.1%}" for part in held},
        "commonest 40 %": f"{held['degradations']['common']:.1%}",
        "mean over classes": f"{held['degradations']['mean_over_classes']:.1%}",
        "GFLOP/s": f"{(told['flops_per_second'] or 0) / 1e9:.3g}",
    }


def _account(told: Told, price: Price) -> dict[str, float | int | None]:
    return _rounded(Usage(flops=int(told["flops"]), seconds=float(told["seconds"])), price)


def _rounded(account: Usage, price: Price) -> dict[str, float | int | None]:
    found = account.summary(price)
    chosen = ("flops_per_second", "cents_per_mflops", "dollars")
    shown = {name: None if (value := found[name]) is None else rounded(value) for name in chosen}
    return {"flops": account.flops, "seconds": rounded(account.seconds), **shown}
