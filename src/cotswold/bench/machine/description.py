"""A description of this machine as a cluster, from measured rates.

Knows: the rates, latencies and bandwidths of a cluster file, and how to measure each. Does not know:
predictions, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from cotswold.bench.machine import device_rates, link
from cotswold.bench.ranks.pool import RankPool
from cotswold.bench.ranks.rank import timed
from cotswold.errors import UserError
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.host import available_bytes, granted_cores
from cotswold.recipe import load
from cotswold.simulate.workloads.stacks import StackWork
from cotswold.simulate.workloads.work import stack_work
from cotswold.testing.hosts import Hosts

LONG_BYTES = 8 << 20
PRODUCTS = ("Wx", "W'x", "δx'")
_TINY = StackGeometry(
    BlockLocal(MapShape(1, 8, 8), Window(4), Window(4), 1, 1, 1), Smoothing(3, keep=True), Smoothing(1)
)
Values = dict[str, Any]


def describe_machine(
    recipe: str | Path = "faces",
    *,
    overrides: Sequence[str] = (),
    name: str = "this-machine",
    rounds: int = 5,
) -> str:
    """Describe this machine as a cluster file: TOML that `cotswold.simulate.parse_cluster` reads.

    There is one device per core, with the measured rates of a step's operations on the shapes of a recipe's
    stacks. Takes some minutes.

    Args:
        recipe: Name or path of the recipe.
        overrides: Overrides of recipe fields.
        name: Name of the cluster.
        rounds: Number of rounds, at least 1.

    Returns:
        The text of the cluster file.

    Raises:
        RecipeError: If the recipe is invalid.
        UserError: If ``rounds`` is less than 1.
    """
    if rounds < 1:
        raise UserError(f"--rounds must be at least 1, got {rounds}")
    work = stack_work(load(recipe, overrides))
    values = described(name, [work], granted_cores(environ={}), available_bytes(), rounds)
    return toml(values) + "\n"


def described(
    name: str, works: Sequence[StackWork], cores: int, memory_bytes: int, rounds: int = 5
) -> Values:
    """The values of the cluster file of one host with ``cores`` devices, one thread each.

    Rates are those of the operations of a step on the shapes of these stacks, for a single rank and for
    ranks on all cores at once.
    """
    with RankPool(cores) as pool:
        rates = [rate for work in works for rate in stack_rates(pool, work, rounds)]
        launch = launch_seconds(pool, rounds)
    found = link_between(cores, None, rounds) if cores > 1 else None
    products = [rate["rate"] for rate in rates if rate["operation"] in PRODUCTS]
    copies = [rate["rate"] for rate in rates if rate["operation"] == "maps"]
    device = {
        "name": "a core",
        "peak_gflops": max(products),
        "memory_gb": memory_bytes / 1e9,
        "bandwidth": median(copies),
        "launch_us": 1e6 * launch,
        "update_passes": 0.0,
        "rates": rates,
    }
    about = "Measured on this machine by cotswold bench machine; the peak is the fastest of our products."
    values: Values = {
        "name": name,
        "about": about,
        "hosts": 1,
        "devices": cores,
        "host_memory_gb": memory_bytes / 1e9,
        "device": device,
    }
    return values if found is None else values | {"inside": found}


def stack_rates(pool: RankPool, work: StackWork, rounds: int) -> list[Values]:
    """The rates of every operation on every stack, each on a single rank and on all ranks at once."""
    rates = []
    for stack in work.stacks:
        amounts = pool.call(device_rates.prepare, stack, work.images)[0]
        layer = stack.filters
        shape = {"fan_in": layer.fan_in, "neurons": layer.neurons, "images": work.images}
        for operation, amount in amounts.items():
            alone = _seconds(pool, operation, rounds, only=[0])
            crowded = _seconds(pool, operation, rounds, only=None)
            rate: Values = {"operation": operation, "rate": amount / alone / 1e9, **shape}
            rates.append(rate | {"crowded": amount / crowded / 1e9})
    return rates


def launch_seconds(pool: RankPool, rounds: int) -> float:
    """Seconds of an operation with almost no work."""
    operations = pool.call(device_rates.prepare, _TINY, 1)[0]
    return median(_seconds(pool, operation, rounds, only=[0]) for operation in operations)


def link_between(ranks: int, hosts: Hosts | None, rounds: int) -> Values:
    """Latency, rate and offload of the link between two ranks that send at once, as in an exchange."""
    with RankPool(2, hosts=hosts) as pool:
        pool.call(link.prepare, LONG_BYTES)
        latency = _seconds(pool, "ping", rounds, only=None) / link.PINGS
        exchange = _seconds(pool, "exchange", rounds, only=None)
        pool.call(link.adjust_work, 2 * exchange)
        work, both = (_seconds(pool, name, rounds, only=None) for name in ("work", "both"))
    travel = max(exchange - latency, 1e-9)
    return {
        "latency_us": 1e6 * latency,
        "gbits": 8e-9 * LONG_BYTES / travel,
        "offload": min(1.0, max(0.0, 1 - (both - work) / travel)),
    }


def toml(values: Mapping[str, Any], table: str = "") -> str:
    """Encode values as TOML: texts, numbers, tables, lists of tables."""
    plain = [f"{name} = {_written(value)}" for name, value in values.items() if not _nested(value)]
    parts = ["\n".join(plain)] if plain else []
    for name, value in values.items():
        path = f"{table}.{name}" if table else name
        if isinstance(value, Mapping):
            parts.append(f"[{path}]\n{toml(value, path)}")
        elif isinstance(value, list):
            parts += [f"[[{path}]]\n{toml(each, path)}" for each in value]
    return "\n\n".join(parts)


def _nested(value: object) -> bool:
    return isinstance(value, Mapping | list)


def _written(value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _seconds(pool: RankPool, action: str, rounds: int, only: Sequence[int] | None) -> float:
    """The median of the slowest rank's seconds."""
    samples = [max(pool.call(timed, action, only is None, only=only)) for _ in range(rounds)]
    return float(median(samples))
