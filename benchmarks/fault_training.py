"""Train a network on several hosts for ten minutes while their processes, links and disks fail.

Knows: the words of the command, which training comes when, tables, where results go. Does not know: how a
fault is made, what is audited.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from cotswold.bench.measure import document
from cotswold.cli.support.tables import create_result_folder, require_positive, table, write_result
from cotswold.errors import MachineError, UserError
from cotswold.files import replace_file
from cotswold.testing import why_no_disks, why_not
from cotswold.ui.terminal import write_message
from lib.command import Flag, Json, Overrides, command, main, rows
from lib.fault_training.plan import Places, named
from lib.fault_training.plots import drawing
from lib.fault_training.run import Training, trained
from lib.fault_training.summary import FAILOVER_BAR, THROUGHPUT_BAR, failovers, verdicts
from lib.mnist import source

Faults = Annotated[list[str] | None, Parameter(negative=())]
_OVERRIDES = (
    "training.epochs=1000000",
    "training.learning_rate=0.02",  # that of the recipe is for one replica, and late pushes undo it
    "training.shard_kilobytes=16",
    "cluster.buckets=64",
)


def fault_training(
    *,
    minutes: float = 10.0,
    interval: float = 15.0,
    hosts: int = 5,
    seed: int = 0,
    rounds: int = 1,
    quiet_first: Flag = False,
    only_faults: Flag = False,
    fault: Faults = None,
    keep: Path | None = None,
    set: Overrides = None,
    stores: Path = Path("stores"),
    out: Path = Path("benchmarks/results"),
    json_: Json = False,
) -> None:
    """Train adam-mnist on hosts in network namespaces, with faults and without, and audit what came of it.

    Three hosts have a member of etcd and a controller each, all but the last a parameter
    server, the last two replicas that Ray places. A second run beside it has the same servers
    count its batches, in parameters that are whole numbers. Every so many seconds one of these is
    killed, stopped, cut off (also one way), its disk filled, or its link slowed, and
    healed. Afterwards: samples a second beside the training without faults, accuracy on
    test images, the accounts of all samples, whether the counts are theirs, who led
    which bucket in which term, processes that are left. Needs root, Linux, iproute2, etcd and Ray.

    Examples:

      python benchmarks/fault_training.py
      python benchmarks/fault_training.py --minutes 3 --hosts 6 --seed 7 --out /tmp/faults
      python benchmarks/fault_training.py --minutes 1 --only-faults --keep /tmp/kept
      python benchmarks/fault_training.py --minutes 5 --fault "kill server" --fault "stop server"

    Parameters
    ----------
    minutes
        How long each training is.
    interval
        Seconds from one fault to the next.
    hosts
        4 to 6.
    seed
        Draws the faults; the same seed makes the same ones.
    rounds
        Pairs of trainings, with faults drawn anew each time.
    quiet_first
        Begin each round with the training without faults; by default they take turns.
    only_faults
        No training without faults, and no comparison with it.
    fault
        Only this one, as in "kill server"; several if given again. All by default. What is
        wanted then is 0.95 of the samples a second, as of a minute around a failover.
    keep
        A folder for logs, runs and what was on disks; they are thrown away without.
    set
        Overrides a field of the recipe, such as training.push_every=4; may be given again.
    stores
        Where samples are prepared.
    out
        A directory for fault-training.json and fault-training.svg.
    json_
        Print JSON.
    """
    places, seconds, only = Places(hosts), 60 * minutes, [named(each) for each in fault or []]
    if seconds < 2 * interval:
        raise UserError(f"--minutes {minutes:g} has no time for a fault each {interval:g} s; give more")
    for reason in filter(None, (why_not(), why_no_disks())):
        raise MachineError(reason)
    create_result_folder(out)
    trainings: list[dict[str, Any]] = []
    with _folder(keep) as folder:
        stores.mkdir(parents=True, exist_ok=True)
        given = [*_OVERRIDES, *(set or [])]
        data = source(stores).absolute()
        for number in range(require_positive(rounds, "--rounds")):
            kinds = [True]
            if not only_faults:
                kinds = [False, True] if quiet_first or number % 2 == 0 else [True, False]
            for has_faults in kinds:
                name = f"{'faults' if has_faults else 'quiet'}-{number}"
                training = Training(
                    *(places, folder / name, stores.absolute(), data, seconds, given),
                    interval=interval if has_faults else None,
                    seed=seed + number,
                    only=only,
                )
                found = trained(training, _sayer(name))
                trainings.append({"name": name, "is_fire": has_faults, "seed": seed + number, **found})
    _leave(trainings, hosts, interval, fault or [], given, out, json_)


def _leave(
    trainings: list[dict[str, Any]],
    hosts: int,
    interval: float,
    only: list[str],
    given: list[str],
    out: Path,
    json_: bool,
) -> None:
    disturbed = [each for each in trainings if each["is_fire"]]
    quiet = [each for each in trainings if not each["is_fire"]]
    told = verdicts(quiet, disturbed, FAILOVER_BAR if only else THROUGHPUT_BAR)
    found = document(
        "fault-training",
        command(),
        hosts=hosts,
        interval=interval,
        faults=only,
        set=given,
        trainings=trainings,
        verdicts=told,
        failovers=failovers(disturbed),
    )
    write_result(found, "fault-training", out, json_)
    replace_file(out / "fault-training.svg", drawing(found).encode())
    if not json_:
        table("faults, and what came of them", rows(found["failovers"]))
        table("adam-mnist with faults", told)


def _sayer(name: str) -> Callable[[str], None]:
    return lambda words: write_message(f"{name}: {words}")


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Where trainings have their files; without spaces, and with a short name, for sockets."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    found = Path(tempfile.mkdtemp(prefix="cotswold-faults-", dir="/tmp"))
    try:
        yield found
    finally:
        shutil.rmtree(found, ignore_errors=True)


if __name__ == "__main__":
    main(fault_training)
