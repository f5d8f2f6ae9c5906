"""One rank of `benchmarks/reduction.py`: reads requests, one per line, and prints the seconds of each.

Knows: endpoints, plans, Gloo. Does not know: hosts, rounds, the comparison.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from cotswold.batch.runtime.reduction import Reducer, Vector
from cotswold.geometry import ReductionPlan
from cotswold.host import token_of
from cotswold.transport import Endpoint, Lost

TIMEOUT_SECONDS = 120.0


def vector_of(rank: int, count: int) -> Vector:
    """Return the vector of a rank."""
    return np.random.default_rng(rank).standard_normal(count).astype(np.float32)


def say(words: object) -> None:
    """Print one line to the parent process."""
    print(json.dumps(words), flush=True)


def connect(endpoint: Endpoint, addresses: dict[str, str]) -> None:
    """Connect to all other ranks, and check that all messages arrive."""
    for name, address in addresses.items():
        if name != endpoint.name:
            endpoint.connect(name, address)
    for name in addresses:
        endpoint.send(name, {"here": endpoint.name})
    missing = set(addresses) - {endpoint.name}
    while missing:
        event = endpoint.receive(TIMEOUT_SECONDS)
        if event is None or isinstance(event, Lost):
            raise SystemExit(f"{endpoint.name} received nothing from {missing}: {event}")
        missing.discard(getattr(event, "sender", ""))
    endpoint.flush(TIMEOUT_SECONDS)


def main() -> None:
    """Serve requests.

    Arguments: rank, number of ranks, address of the host, rendezvous file of Gloo, elements.
    """
    rank, ranks, host, store, count = sys.argv[1:]
    mine, world, length = int(rank), int(ranks), int(count)
    torch.set_num_threads(1)
    token = token_of(os.environ)
    assert token is not None
    dist.init_process_group(
        "gloo", f"file://{store}", timedelta(seconds=TIMEOUT_SECONDS), rank=mine, world_size=world
    )
    names = [f"rank-{each}" for each in range(world)]
    settings = {"plain": False, "curve": True}
    endpoints = {
        one: Endpoint(token, names[mine], host=host, encrypt=encrypt) for one, encrypt in settings.items()
    }
    say({one: endpoint.address for one, endpoint in endpoints.items()})
    known = json.loads(sys.stdin.readline())
    for one, endpoint in endpoints.items():
        connect(endpoint, {name: known[at][one] for at, name in enumerate(names)})
    own = vector_of(mine, length)
    total = np.zeros(length)
    for each in range(world):
        total += vector_of(each, length)
    reducers: dict[tuple[str, int], Reducer] = {}
    say("ready")
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        plan = ReductionPlan.from_numbers(asked["plan"]) if "plan" in asked else None
        copy = torch.from_numpy(own.copy())
        dist.barrier()
        start = time.perf_counter()
        if plan is not None:
            way = asked["setting"], asked["pieces"]
            if way not in reducers:
                reducers[way] = Reducer([endpoints[way[0]]], -(-length // way[1]) * 4)
            reducer = reducers[way]
            result = reducer.run(asked["number"], plan, names, mine, own, TIMEOUT_SECONDS)
        elif asked["gloo"] == "reduce":
            dist.reduce(copy, 0)
            result = copy.numpy()
        else:
            dist.all_reduce(copy)
            result = copy.numpy()
        seconds = time.perf_counter() - start
        error = None
        if mine == 0 or asked["all"]:
            wanted = vector_of(0, length) if asked["broadcast"] else total
            error = float(np.abs(result - wanted).max())
        say({"seconds": seconds, "error": error})
    dist.barrier()
    for endpoint in endpoints.values():
        endpoint.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
