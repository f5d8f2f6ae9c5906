"""Send malformed, absurd, replayed or unauthorized messages to servers, and check that they keep working.

    python benchmarks/fuzz_frames.py --seconds 3600 --seed 1 [--kinds keeper,controller,endpoint]
    python benchmarks/fuzz_frames.py --replay fuzz-keeper.msgpack

A parameter server with copies of buckets (`keeper`) and a controller (`controller`) receive messages of all
classes from all senders, also about runs whose descriptions are invalid, or whose names and descriptions
exceed the limits of the controllers' metadata store. An endpoint (`endpoint`) receives frames from peers,
callers, impostors and strangers. Each target must continue to work, count the refused messages, let no sender
change another's data, and keep no more data than allowed. Prints the refused messages by kind, and the memory
of the process after a quarter of the time (when all lazy loading is done) and at the end. Exits with 1 if a
target failed, and writes the messages to a file; `--replay` sends them again.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from cotswold.ui.terminal import write_message
from lib.fuzz.controller import ControllerTarget
from lib.fuzz.endpoint import EndpointTarget
from lib.fuzz.parameter_server import ServerTarget
from lib.fuzz.search import Make, hunt, read, replay, write

TARGETS: dict[str, Make] = {
    "keeper": ServerTarget,
    "controller": ControllerTarget,
    "endpoint": EndpointTarget,
}
_ROUND_SECONDS = 10.0
_GROWTH_MIB = 128.0
_WARM = 0.25
"""Fraction of the time before the first memory reading: the first applied push loads the kernels, which take
more memory than anything later."""
_SAY_SECONDS = 60.0


def resident_mib() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def again(path: Path) -> int:
    """Replay the messages of a file; return 1 if they break the target again."""
    kind, said = read(path)
    broken = replay(TARGETS[kind], said)
    print(broken or f"{kind}: {len(said)} messages, no failure")
    return 1 if broken else 0


def hunts(kinds: list[str], seconds: float, seed: int, out: Path) -> int:
    """Run rounds of all kinds; return 1 if a failure is found."""
    began, first, rounds = time.monotonic(), 0.0, 0
    deadline, said = began + seconds, began
    lives, messages = Counter[str](), Counter[str]()
    refused = {kind: Counter[str]() for kind in kinds}
    while rounds == 0 or time.monotonic() < deadline:
        for kind in kinds:
            share = min(_ROUND_SECONDS, max(0.0, deadline - time.monotonic()) / len(kinds))
            found = hunt(TARGETS[kind], kind, seed + rounds, share)
            lives[kind] += found.lives
            messages[kind] += found.messages
            refused[kind] += found.refused
            if found.broken:
                path = out / f"fuzz-{kind}.msgpack"
                write(path, kind, f"{seed + rounds}", found)
                print(f"{found.broken}\n{kind} failed; --replay {path} sends the same messages again")
                return 1
        rounds, now = rounds + 1, time.monotonic()
        if not first and now - began >= _WARM * seconds:
            first = resident_mib()
        if now - said >= _SAY_SECONDS:
            said = now
            seen = f"{messages.total():,} messages, {resident_mib():.0f} MiB"
            write_message(f"{now - began:.0f} of {seconds:.0f} s: {seen}")
    for kind in kinds:
        print(f"{kind}: {lives[kind]} targets, {messages[kind]} messages; refused:")
        for reason, count in sorted(refused[kind].items()):
            print(f"  {count:10} {reason}")
    last = resident_mib()
    print(f"memory: {first:.0f} MiB after a quarter of the time, {last:.0f} MiB after {rounds} rounds")
    if last - first > _GROWTH_MIB:
        print(f"memory grew by more than {_GROWTH_MIB:.0f} MiB")
        return 1
    return 0


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(TARGETS))
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--replay", type=Path)
    given = parser.parse_args()
    if given.replay is not None:
        return again(given.replay)
    kinds = given.kinds.split(",")
    if unknown := [each for each in kinds if each not in TARGETS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(TARGETS)}")
    return hunts(kinds, given.seconds, given.seed, given.out)


if __name__ == "__main__":
    raise SystemExit(main())
