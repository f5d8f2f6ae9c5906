"""Those who serve are told what is malformed, absurd, replayed, or not the sender's to say.

    python benchmarks/fuzz_frames.py --seconds 3600 --seed 1 [--kinds keeper,controller,endpoint]
    python benchmarks/fuzz_frames.py --replay fuzz-keeper.msgpack

A parameter server with copies of buckets (`keeper`) and a controller (`controller`) hear messages of all
classes from everybody, and of runs whose descriptions are wrong inside, or whose names and descriptions are
longer than the state of controllers takes; an endpoint (`endpoint`) hears frames of peers, callers, thieves
and strangers. Each must go on as before, count what it refuses, let nobody change what is not its own, and
keep no more than it may. Prints what was refused, by kind, and the memory of the process after a quarter of
the time, when all that is loaded once is, and at the end. Exits with 1 where one of them did not, with what
it was told in a file; `--replay` tells that again.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from cotswold.ui.terminal import write_message
from lib.fuzz.controller import ControllerVictim
from lib.fuzz.endpoint import EndpointVictim
from lib.fuzz.parameter_server import KeeperVictim
from lib.fuzz.search import Make, hunt, read, replay, write

VICTIMS: dict[str, Make] = {
    "keeper": KeeperVictim,
    "controller": ControllerVictim,
    "endpoint": EndpointVictim,
}
_ROUND_SECONDS = 10.0
_GROWTH_MIB = 128.0
_WARM = 0.25
"""Of the time: the first push that is applied loads the kernels, which are more than all that comes after."""
_SAY_SECONDS = 60.0


def resident_mib() -> float:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def again(path: Path) -> int:
    """Tell what is in a file; 1 where that breaks its victim, as it did."""
    kind, said = read(path)
    broken = replay(VICTIMS[kind], said)
    print(broken or f"{kind}: {len(said)} messages break nothing")
    return 1 if broken else 0


def hunts(kinds: list[str], seconds: float, seed: int, out: Path) -> int:
    """Rounds of all kinds; 1 where something is found."""
    began, first, rounds = time.monotonic(), 0.0, 0
    deadline, said = began + seconds, began
    lives, messages = Counter[str](), Counter[str]()
    refused = {kind: Counter[str]() for kind in kinds}
    while rounds == 0 or time.monotonic() < deadline:
        for kind in kinds:
            share = min(_ROUND_SECONDS, max(0.0, deadline - time.monotonic()) / len(kinds))
            found = hunt(VICTIMS[kind], kind, seed + rounds, share)
            lives[kind] += found.lives
            messages[kind] += found.messages
            refused[kind] += found.refused
            if found.broken:
                path = out / f"fuzz-{kind}.msgpack"
                write(path, kind, f"{seed + rounds}", found)
                print(f"{found.broken}\n{kind} broke; --replay {path} tells it the same again")
                return 1
        rounds, now = rounds + 1, time.monotonic()
        if not first and now - began >= _WARM * seconds:
            first = resident_mib()
        if now - said >= _SAY_SECONDS:
            said = now
            seen = f"{messages.total():,} messages, {resident_mib():.0f} MiB"
            write_message(f"{now - began:.0f} of {seconds:.0f} s: {seen}")
    for kind in kinds:
        print(f"{kind}: {lives[kind]} lives, {messages[kind]} messages; refused:")
        for reason, count in sorted(refused[kind].items()):
            print(f"  {count:10} {reason}")
    last = resident_mib()
    print(f"memory: {first:.0f} MiB after a quarter of the time, {last:.0f} MiB after {rounds} rounds")
    if last - first > _GROWTH_MIB:
        print(f"it has grown by more than {_GROWTH_MIB:.0f} MiB")
        return 1
    return 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(VICTIMS))
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--replay", type=Path)
    given = parser.parse_args()
    if given.replay is not None:
        return again(given.replay)
    kinds = given.kinds.split(",")
    if unknown := [each for each in kinds if each not in VICTIMS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(VICTIMS)}")
    return hunts(kinds, given.seconds, given.seed, given.out)


if __name__ == "__main__":
    raise SystemExit(main())
