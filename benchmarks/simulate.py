"""Simulate clusters: figures 5 and 6 of Coates et al. 2013, figure 3 of Dean et al. 2012, figure 10 of
Chilimbi et al. 2014, and clusters of today.

    python benchmarks/simulate.py [FOLDER]

Writes simulate.json and a plot (SVG) for each into the folder [benchmarks/results], and prints the papers'
statements next to the predictions. Takes about two minutes; nothing is measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cotswold.cli.support.tables import table
from cotswold.geometry import Grid
from cotswold.recipe import load
from cotswold.simulate import Cluster, Prediction, fastest_grid, load_cluster, predict, stages
from cotswold.simulate.estimates.prediction import Workload
from cotswold.simulate.workloads.layers import LayerWork
from cotswold.simulate.workloads.papers import adam, image_network, ladder, speech
from lib.predictions.plots import draw_all

GPUS = (1, 4, 9, 16, 36, 64)
MACHINES = (1, 2, 4, 8, 16, 32, 64, 81, 128)
SPEECH_MACHINES = (1, 2, 4, 8, 16, 32)
BATCH = 100
"""Assumed batch of figure 3 of Dean et al. 2012, which does not state it."""
THREADS = 16
"""Threads of Adam's machines, each with its own images (section 3.2.1)."""
IMAGES = 10_000_000
DAY = 86_400
Document = dict[str, object]


def fastest(cluster: Cluster, work: Workload, ranks: int) -> Prediction:
    """Return the prediction for the best grid."""
    return predict(cluster, work, fastest_grid(cluster, [work], ranks))


def scaling(cluster: Cluster, work: Workload, counts: Iterable[int]) -> list[Document]:
    """Return predictions for several numbers of ranks."""
    return [fastest(cluster, work, count).as_dict() for count in counts]


def coates() -> Document:
    """Return figures 5 and 6: all stacks jointly, 1 to 64 GPUs, if the network fits their memory."""
    cluster, networks = load_cluster("coates2013"), ladder()
    found = {name: scaling(cluster, work, GPUS) for name, work in networks.items()}
    smallest = found["180 M"][0]
    assert smallest["fits"], "the smallest network fits one GPU"
    base = number(smallest, "parameters") / number(smallest, "seconds")
    for rows in found.values():
        for row in rows:
            row["speed_up"] = number(row, "parameters") / number(row, "seconds") / base
    return {"networks": found}


def large_network() -> Document:
    """Return greedy training of the network of 11.2 billion parameters on 64 GPUs, and of a billion on three
    machines."""
    cluster = load_cluster("coates2013")
    updates = stages(load("coates2013-11b"))
    grid = fastest_grid(cluster, updates, 64)
    found = [predict(cluster, update, grid) for update in updates]
    billion = stages(load("coates2013-1.8b", [f"network.stacks.{stack}.channels=6" for stack in range(3)]))
    few = fastest_grid(cluster, billion, 12)
    seconds = sum(predict(cluster, update, few).seconds for update in billion)
    return {
        "stages": [each.as_dict() for each in found],
        "epoch_hours": [each.seconds * IMAGES / 96 / 3600 for each in found],
        "days": 2 * sum(each.seconds for each in found[1:]) * IMAGES / 96 / DAY,
        "billion_parameters": billion[-1].parameters,
        "billion_days": 2 * seconds * IMAGES / 96 / DAY,
    }


def distbelief(name: str) -> Document:
    """Return figure 3: speed-up over one machine of the speech network and three image networks."""
    cluster = load_cluster(name)
    networks = {
        "speech": (speech(BATCH), SPEECH_MACHINES),
        **{f"images, {maps} maps": (image_network(maps, BATCH), MACHINES) for maps in (8, 18, 36)},
    }
    rows: Document = {}
    for network, (work, counts) in networks.items():
        found = [predict(cluster, work, square(count)).as_dict() for count in counts]
        for row in found:
            row["speed_up"] = number(found[0], "seconds") / number(row, "seconds")
        rows[network] = found
    return {"batch": BATCH, "networks": rows}


def square(ranks: int) -> Grid:
    """Return the most nearly square grid."""
    rows = max(side for side in range(1, ranks + 1) if ranks % side == 0 and side * side <= ranks)
    return Grid(rows, ranks // rows)


def adam_sizes() -> Document:
    """Return figure 10: the largest networks whose convolutions' working sets fit the machines' caches, and
    speeds."""
    cluster = load_cluster("adam2014")
    rows = []
    for machines in (1, 2, 4, 8, 16):
        grid = Grid(1, machines)
        times = largest(partial(fits_caches, cluster, grid))
        rows.append(
            {"machines": machines, "times_as_many_maps": times, **speed(cluster, adam(times, 1), grid)}
        )
    paper = speed(cluster, adam(largest(lambda each: adam(each, 1).connections <= 36e9), 1), Grid(1, 16))
    same = [{"machines": n, **speed(cluster, adam(1, 1), Grid(1, n))} for n in (1, 2, 4, 8, 16)]
    return {"sizes": rows, "at_36_billion": paper, "two_billion": same}


def fits_caches(cluster: Cluster, grid: Grid, times: float) -> bool:
    """True if a machine's working set in every convolution, with ``times`` times the maps, fits its last
    cache."""
    work = adam(times, THREADS)
    held = [
        row[0].moved_bytes(work.images, work.value_bytes)
        for row in work.parts(grid)
        if row[0].layer.kind == "shared"
    ]
    return max(held) <= cluster.device.cache_mb * 1e6


def largest(holds: Callable[[float], bool]) -> float:
    """Return the largest multiple of maps, in hundredths, for which a condition holds."""
    low, high = 1, 2000
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle / 100) else (low, middle - 1)
    return low / 100


def speed(cluster: Cluster, work: LayerWork, grid: Grid) -> Document:
    """Return connections, and the connections that a machine trains per second, image by image."""
    found = predict(cluster, work, grid)
    rate = work.connections / found.seconds / 1e9
    return {
        "connections": work.connections,
        "billion_connections_per_second": rate,
        "billion_connections_per_second_and_machine": rate / grid.size,
        "waiting_for_messages": found.exposed_seconds / found.seconds,
        "fits": found.fits,
    }


def today() -> Document:
    """Return the networks of 11.2 and 1.8 billion parameters on clusters of today, all stacks jointly."""
    networks = ladder()
    runs = {
        ("h100-rack", "11.2 B"): (1, 2, 4, 8, 16, 32, 64),
        ("h100-rack", "1.8 B"): (1, 2, 4, 8, 16, 32, 64),
        ("ethernet", "11.2 B"): (1, 2, 4, 8, 16, 32),
        ("ethernet", "1.8 B"): (1, 2, 4, 8, 16, 32),
    }
    return {
        f"{network} on {name}": scaling(load_cluster(name), networks[network], counts)
        for (name, network), counts in runs.items()
    }


def number(row: Document, name: str) -> float:
    """Return a figure of a row."""
    value = row[name]
    assert isinstance(value, int | float)
    return value


def words(found: Mapping[str, Any]) -> list[Document]:
    """Return the papers' statements next to the predictions."""
    large, fig5 = found["large"], found["coates"]["networks"]
    third = large["stages"][2]
    slow, fast = found["distbelief"]["networks"], found["distbelief-10g"]["networks"]

    def gain(networks: Mapping[str, Any], network: str, machines: int) -> float:
        return float(next(row["speed_up"] for row in networks[network] if row["ranks"] == machines))

    def range_(network: str, machines: int) -> str:
        return f"{gain(slow, network, machines):.1f} at 1 Gbit/s, {gain(fast, network, machines):.1f} at 10"

    def gained(network: str) -> str:
        rows = [row for row in fig5[network] if row["fits"]]
        return f"{rows[-1]['speed_up']:.1f} on 64"

    best = max(row["speed_up"] for row in slow["speech"])
    sizes = found["adam"]["sizes"]
    first, *_, half, most = (each["connections"] for each in sizes)
    paper36 = found["adam"]["at_36_billion"]
    return [
        row("Coates, 5.1", "stack 3 of 11.2 B: under 0.6 s per update",
            f"{third['seconds']:.3f} s; {0.6 - third['seconds']:.3f} s of the 0.6 are unexplained"),
        row("", "its epoch of 10 M images: about 17 h", f"{large['epoch_hours'][2]:.1f} h"),
        row("", "two epochs of stacks 2 and 3: about 3 days", f"{large['days']:.1f} days"),
        row("", "a billion on 3 machines: a couple of days", f"{large['billion_days']:.1f} days"),
        row("", "many GPUs gain little for small networks", f"180 M: {gained('180 M')}, no"),
        row("", "and much for large ones", f"11.2 B: {gained('11.2 B')}"),
        row("Dean, figure 3", "speech: 2.2 times as fast on 8 machines", range_("speech", 8)),
        row("", "speech: slower on more than 8", f"no: {best:.1f} at most at 1 Gbit/s, flat from 2 on"),
        row("", "1.7 B: more than 12 times on 81", range_("images, 36 maps", 81)),
        row("", "more machines still help, but less and less",
            f"{gain(slow, 'images, 36 maps', 128):.1f} on 128 at 1 Gbit/s"),
        row("Adam, figure 10", "16 machines train 36 billion connections",
            f"yes, {paper36['billion_connections_per_second']:.0f} billion per second, "
            f"{100 * number(paper36, 'waiting_for_messages'):.0f} % waiting"),
        row("", "size grows faster than machines, because it fits caches",
            f"{half / first:.1f} times on 8, {most / first:.1f} on 16: {most / 1e9:.0f} billion, not 36"),
    ]  # fmt: skip


def row(where: str, said: str, predicted: str) -> Document:
    """Return a row of the table."""
    return {"where": where, "the paper": said, "predicted": predicted}


def main(folder: Path) -> None:
    """Predict, plot, print."""
    found = {
        "coates": coates(),
        "large": large_network(),
        "distbelief": distbelief("dean2012"),
        "distbelief-10g": distbelief("dean2012-10g"),
        "adam": adam_sizes(),
        "today": today(),
    }
    said = words(found)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "simulate.json").write_text(json.dumps({**found, "words": said}) + "\n", encoding="utf-8")
    draw_all(found, folder)
    table("the papers' statements and their predictions", said)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    results = Path(__file__).parent / "results"
    parser.add_argument(
        "folder", type=Path, nargs="?", default=results, help="directory of the written files"
    )
    main(parser.parse_args().folder)
