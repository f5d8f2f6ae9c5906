"""Measure reductions over hosts with slow links, compared with a binomial tree and Gloo.

    python benchmarks/reduction.py [--rounds 7] [--hosts 4] [--rate 100mbit] [--out benchmarks/results]

The data is Bunyip's gradient (400-480-3203, float32) over hosts with two processes each, in network
namespaces whose links have a rate. Ranks are numbered host by host (neighbouring) or in turn (interleaved).
All methods alternate. The bound is one vector over one link. Needs root, and Debian's iproute2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from cotswold.bench.measure import document
from cotswold.geometry import Host, Network, NetworkCard, ReductionPlan, best_all_reduce, best_plan
from cotswold.geometry.reduction_time import PIECES, bound_seconds, candidates, predicted_seconds
from cotswold.host import Token
from cotswold.host.token import VARIABLE
from cotswold.testing.hosts import Hosts

PARAMETERS = 400 * 480 + 480 * 3203
RANK = Path(__file__).parent / "lib" / "reduction_rank.py"
PER_HOST = 2
BITS = {"mbit": 10**6, "gbit": 10**9}


def ways(network: Network) -> dict[str, dict[str, object]]:
    """Return the compared methods by name, each with its request to the ranks."""
    plans = candidates(network, PARAMETERS, 0)
    name, best = best_plan(network, PARAMETERS, 4, 0)
    everywhere_name, everywhere_plan = best_all_reduce(network, PARAMETERS, 4)
    tree = plans["binomial tree over all ranks"]

    def plan(one: ReductionPlan, setting: str = "plain", pieces: int = PIECES) -> dict[str, object]:
        everywhere = one.root is None or not any(step.is_sum for step in one.steps)
        return {
            "plan": one.as_numbers(),
            "setting": setting,
            "pieces": pieces,
            "all": everywhere,
            "broadcast": not any(step.is_sum for step in one.steps),
            "predicted": predicted_seconds(one, network, 4, pieces),
        }

    gloo = {"all": False, "broadcast": False}
    return {
        f"reduce: chosen ({name})": plan(best),
        f"reduce: chosen ({name}), encrypted": plan(best, "curve"),
        "reduce: binomial tree over all ranks, whole vectors (LAM)": plan(tree, pieces=1),
        "reduce: binomial tree over all ranks, in pieces": plan(tree),
        "reduce: ring over hosts": plan(plans["ring over hosts"]),
        "reduce: Gloo": {"gloo": "reduce", **gloo},
        "broadcast: mirror of the chosen": plan(best.mirrored()),
        f"all-reduce: chosen ({everywhere_name})": plan(everywhere_plan),
        "all-reduce: Gloo": {"gloo": "all_reduce", **gloo, "all": True},
    }


@contextmanager
def ranks(hosts: Hosts, host_of: Sequence[int], folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Yield one process per rank on its host, all connected to each other."""
    environ = {**os.environ, VARIABLE: Token.new().text, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    store = folder / "store"
    store.unlink(missing_ok=True)
    processes = [
        subprocess.Popen(
            [
                *hosts.words(host),
                sys.executable,
                str(RANK),
                str(rank),
                str(len(host_of)),
                hosts.address(host),
                str(store),
                str(PARAMETERS),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        for rank, host in enumerate(host_of)
    ]
    try:
        addresses = [answer(process) for process in processes]
        tell(processes, addresses)
        for process in processes:
            answer(process)
        yield processes
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            process.wait(60)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def tell(processes: Sequence[subprocess.Popen[str]], words: object) -> None:
    """Send the same line to all ranks."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> object:
    """Return the next line of a rank."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a rank of the measurement exited; its output is above")
    return json.loads(line)


def measure(hosts: Hosts, network: Network, rounds: int, folder: Path) -> dict[str, dict[str, object]]:
    """Return the median seconds of all methods, with every sample."""
    asked = ways(network)
    samples: dict[str, list[float]] = {name: [] for name in asked}
    host_of = [network.host_of[rank] for rank in range(network.ranks)]
    with ranks(hosts, host_of, folder) as processes:
        for number in range(rounds + 1):
            for at, (name, words) in enumerate(asked.items()):
                tell(processes, {**words, "number": number * len(asked) + at})
                answers = [answer(process) for process in processes]
                assert all(isinstance(one, dict) for one in answers)
                found = [one for one in answers if isinstance(one, dict)]
                errors = [one["error"] for one in found if one["error"] is not None]
                assert max(errors) < 1e-4, f"{name} is wrong by {max(errors)}"
                took = [one["seconds"] for one in found] if words["all"] else [found[0]["seconds"]]
                if number:  # skip the warm-up round
                    samples[name].append(max(took))
    return {
        name: {"median": median(samples[name]), "predicted": words.get("predicted"), "samples": samples[name]}
        for name, words in asked.items()
    }


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    bits = int(float(given.rate[:-4]) * BITS[given.rate[-4:]])
    world = PER_HOST * given.hosts
    numberings = {
        "neighbouring": [rank // PER_HOST for rank in range(world)],
        "interleaved": [rank % given.hosts for rank in range(world)],
    }
    kept: dict[str, object] = {
        "hosts": given.hosts,
        "rate": given.rate,
        "bytes": 4 * PARAMETERS,
    }
    with tempfile.TemporaryDirectory() as folder, Hosts(given.hosts, given.rate) as hosts:
        for name, host_of in numberings.items():
            network = Network(
                tuple(
                    Host(
                        tuple(rank for rank in range(world) if host_of[rank] == host), (NetworkCard(0, bits),)
                    )
                    for host in range(given.hosts)
                )
            )
            bound = bound_seconds(network, 0, 4 * PARAMETERS)
            rows = measure(hosts, network, given.rounds, Path(folder))
            kept[name] = {"bound": bound, "rows": rows}
            print(f"\n{name} ranks; one vector over one link: {bound:.3f} s")
            print(f"{'':62}  seconds  x bound  predicted")
            for row, found in rows.items():
                seconds = found["median"]
                assert isinstance(seconds, float)
                predicted = found["predicted"]
                said = f"{predicted:.3f}" if isinstance(predicted, float) else ""
                print(f"{row:62}  {seconds:7.3f}  {seconds / bound:7.3f}  {said:>9}")
    if given.out is not None:
        told = document("reductions over slow links", "python benchmarks/reduction.py", **kept)
        (given.out / "reduction.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
