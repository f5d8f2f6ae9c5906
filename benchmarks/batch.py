"""Whole-set gradients by two workers, compared with isolated processes, and with slow, stopped and killed
workers.

    python benchmarks/batch.py [--case two ...] [--rounds 9] [--out benchmarks/results]

Bunyip's network, 32,000 patterns per worker, portions of 320, one thread each; two cores. Every case
alternates with its reference. A slow worker has a quota of processor time, which needs root. The ideal for
unequal workers is the time of two equal workers times 2 over the sum of their speeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from cotswold.bench.measure import document, rounded, rounded_all
from lib.batch.cluster import beside_alone, bunyip_cluster, killed, slowed
from lib.batch.isolated import Alone
from lib.batch.network import SIZES

SHARES = {"quarter": 0.25, "sixteenth": 0.0625, "stopped": 0.0}
CASES = ("two", *SHARES, "killed")


def main() -> None:
    """Measure, print and keep the figures."""
    words = _words()
    found: dict[str, object] = {}
    sizes = tuple(words.sizes)
    for travel in words.travel:
        with bunyip_cluster(2, words.samples, words.portion, travel, sizes) as (cluster, heard):
            if "two" in words.case:
                with Alone(2, words.samples, words.portion, sizes) as alone:
                    pairs = beside_alone(cluster, alone, words.rounds)
                ratio = median(a / b for a, b in pairs)
                found[f"two, {travel}"] = _row(pairs, "alone", "cluster", ratio)
                flops = cluster.flops[1] * words.samples / median(b for _, b in pairs)
                print(
                    f"two, {travel}: {ratio:.3f} of two processes alone (wanted 0.92); "
                    f"{flops / 1e9:.0f} GFLOP/s"
                )
            for case, share in SHARES.items():
                if case in words.case:
                    pairs = slowed(cluster, share, words.slow_rounds)
                    ratio = median(b / (a * 2 / (1 + share)) for a, b in pairs)
                    found[f"{case}, {travel}"] = _row(pairs, "equal", case, ratio)
                    print(f"{case}, {travel}: {ratio:.3f} of the ideal time (wanted 1.08)")
            if "killed" in words.case:
                pairs, joined, is_whole = killed(cluster, heard, words.every, words.kills)
                ratio = median(b / a for a, b in pairs)
                found[f"killed, {travel}"] = {
                    "undisturbed_gradients_a_second": rounded_all([one for one, _ in pairs]),
                    "killed_gradients_a_second": rounded_all([one for _, one in pairs]),
                    "ratio": rounded(ratio),
                    "joined_seconds": rounded_all(joined),
                    "every_pattern_once": is_whole,
                }
                print(
                    f"killed, {travel}: {ratio:.3f} of undisturbed (wanted 0.95); joined again after "
                    f"{max(joined, default=0.0):.2f} s at most (wanted 0.5); each pattern once: {is_whole}"
                )
    if words.out is not None:
        told = "python benchmarks/batch.py"
        kept = document(
            "batch", told, patterns=words.samples, portion=words.portion, sizes=sizes, cases=found
        )
        (words.out / "batch.json").write_text(json.dumps(kept, indent=1) + "\n")


def _row(pairs: Sequence[tuple[float, float]], first: str, second: str, ratio: float) -> dict[str, object]:
    return {
        f"{first}_seconds": rounded_all([one for one, _ in pairs]),
        f"{second}_seconds": rounded_all([one for _, one in pairs]),
        "ratio": rounded(ratio),
    }


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument(
        "--travel", nargs="+", choices=("bunyip", "sandblaster"), default=["bunyip", "sandblaster"]
    )
    parser.add_argument("--patterns", type=int, default=64_000)
    parser.add_argument("--portion", type=int, default=320)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--slow-rounds", type=int, default=3)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between kills")
    parser.add_argument("--kills", type=int, default=3, help="each after equal time without one")
    parser.add_argument("--out", type=Path, help="directory for batch.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
