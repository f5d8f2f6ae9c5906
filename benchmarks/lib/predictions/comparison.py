"""Predictions of updates compared with measurements on this machine: ranks on its cores, links shaped or not.

Knows: the networks, grids and links, how the machine is described for each. Does not know: how a prediction
or an update is made. The machine is described once; a product timed next to every update gives the machine's
speed at that moment.
"""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from itertools import product
from statistics import median

from cotswold.bench.machine import device_rates
from cotswold.bench.machine.description import Values, described, link_between
from cotswold.bench.measure import Document, rounded, rounded_all
from cotswold.bench.ranks.pool import RankPool
from cotswold.bench.ranks.rank import timed
from cotswold.geometry import BlockLocal, Grid, MapShape, Smoothing, StackGeometry, Window
from cotswold.simulate import Cluster, StackWork, predict
from cotswold.testing.hosts import Hosts, Rate
from lib.predictions import updates

CORES = 2
LINKS: tuple[Rate | None, ...] = (None, "10gbit", "1gbit")
GRIDS = (Grid(1, 2), Grid(2, 2))
MEDIAN_MOST, WORST_MOST = 0.10, 0.20
"""Largest accepted errors, median and worst."""


def networks() -> dict[str, StackWork]:
    """Return stacks of the paper's shapes on smaller images, for updates of about a second.

    The last network contains all the stacks.
    """
    window, smoothing = Window(20, 4), Smoothing(5)
    first = StackGeometry(BlockLocal(MapShape(3, 100, 100), window, window, 4, 4, 8), smoothing, smoothing)
    second = StackGeometry(BlockLocal(first.output, window, window, 4, 4, 8), smoothing, smoothing)
    return {
        "one stack": StackWork((first,), 96, "greedy"),
        "two stacks, joint": StackWork((first, second), 96, "joint"),
    }


def predictions(rounds: int, memory_bytes: int) -> Document:
    """Return measured and predicted seconds of every network on 1, 2 and 4 ranks over every link."""
    works = networks()
    *_, last = works.values()
    alone = described("this machine", [last], CORES, memory_bytes, rounds)
    rows: list[Document] = []
    for name, work in works.items():
        rows.append(_row(name, work, Grid(1, 1), None, alone, rounds, None))
    for link in LINKS:
        with nullcontext() if link is None else Hosts(CORES, link) as hosts:
            cluster = alone if hosts is None else _apart(alone, link_between(2, hosts, rounds))
            for (name, work), grid in product(works.items(), GRIDS):
                rows.append(_row(name, work, grid, link, cluster, rounds, hosts))
    errors = [abs(float(str(row["error"]))) for row in rows]
    summary = {"median_error": rounded(median(errors)), "worst_error": rounded(max(errors))}
    met = median(errors) <= MEDIAN_MOST and max(errors) <= WORST_MOST
    return {"cluster": alone, "rows": rows, **summary, "met": met}


def _apart(alone: Values, network: Values) -> Values:
    """Describe every core as a separate host; hosts share the machine, so the rates are those under load."""
    values = deepcopy(alone)
    for rate in values["device"]["rates"]:
        rate["rate"] = rate.pop("crowded")
    return values | {"hosts": CORES, "devices": 1, "network": network}


def _row(
    name: str,
    work: StackWork,
    grid: Grid,
    link: Rate | None,
    cluster: Values,
    rounds: int,
    hosts: Hosts | None,
) -> Document:
    """Measure an update per round, and before it the machine's speed, which corrects the rates."""
    busy = sorted({0, grid.size - 1})
    samples, paces, found = [], [], []
    with RankPool(grid.size, hosts=hosts) as pool:
        pool.call(updates.prepare, work, grid)
        flops = pool.call(device_rates.prepare_pace, work.stacks[0], work.images)[0]
        for _ in range(rounds):
            product = max(pool.call(timed, "pace", False, only=busy))
            paces.append(flops / product / 1e9 / _described_pace(cluster, len(busy) > 1))
            samples.append(max(pool.call(timed, "update", True)))
            found.append(predict(Cluster.model_validate(_paced(cluster, paces[-1])), work, grid))
    errors = [one.seconds / sample - 1 for one, sample in zip(found, samples, strict=True)]
    return {
        "network": name,
        "grid": str(grid),
        "link": link or "unshaped",
        "measured_seconds": rounded(median(samples)),
        "predicted_seconds": rounded(median(one.seconds for one in found)),
        "error": rounded(median(errors)),
        "hidden_part": found[0].hidden_part,
        "samples": rounded_all(samples),
        "predictions": rounded_all([one.seconds for one in found]),
        "paces": rounded_all(paces),
    }


def _described_pace(cluster: Values, crowd: bool) -> float:
    """Return the rate of the first stack's Wx in the cluster's description."""
    rate = next(each for each in cluster["device"]["rates"] if each["operation"] == "Wx")
    return float(rate.get("crowded", rate["rate"]) if crowd else rate["rate"])


def _paced(cluster: Values, pace: float) -> Values:
    """Return the cluster with all devices scaled by a factor."""
    values = deepcopy(cluster)
    for name in ("bandwidth", "peak_gflops"):
        values["device"][name] *= pace
    for rate in values["device"]["rates"]:
        rate |= {name: pace * rate[name] for name in ("rate", "crowded") if name in rate}
    return values
