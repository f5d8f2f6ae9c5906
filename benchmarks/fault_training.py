"""Train a network on several hosts for ten minutes while their processes, links and disks fail.

Knows: the command's options, the order of the trainings, tables, where results go. Does not know: how a fault
is injected, how a training is audited.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from cotswold.bench.measure import Document, document
from cotswold.cli.support.tables import create_result_folder, require_positive, table, write_result
from cotswold.errors import MachineError, UserError
from cotswold.files import replace_file
from cotswold.testing import why_no_disks, why_not
from cotswold.ui.terminal import write_message
from lib.command import Flag, Json, Overrides, command, main, rows
from lib.fault_training.plan import Places, named
from lib.fault_training.plots import drawing, summary
from lib.fault_training.run import Training, trained
from lib.fault_training.summary import FAILOVER_BAR, THROUGHPUT_BAR, failovers, verdicts
from lib.mnist import source

Faults = Annotated[list[str] | None, Parameter(negative=())]
_OVERRIDES = (
    "training.epochs=1000000",
    "training.learning_rate=0.02",  # the recipe's rate is for one replica; late pushes make it diverge
    "training.shard_kilobytes=16",
    "cluster.max_buckets=64",
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
    redraw: Path | None = None,
    set: Overrides = None,
    stores: Path = Path("stores"),
    out: Path = Path("benchmarks/results"),
    json_: Json = False,
) -> None:
    """Train adam-mnist on hosts in network namespaces, with faults and without, and audit the results.

    Three hosts run a member of etcd and a controller each. All hosts but the last run a parameter server. The
    last two run replicas that Ray places. On the same servers, a second run counts its batches in parameters
    that are whole numbers. At every interval a process is killed, stopped or cut off (also in one direction),
    a disk is filled, or a link is slowed, and then healed. The audit: samples per second compared with the
    training without faults, accuracy on test images, the accounts of all samples, the counts against them,
    the primary of each bucket in each term, leftover processes. Needs root, Linux, iproute2, etcd and Ray.

    Examples:

      python benchmarks/fault_training.py
      python benchmarks/fault_training.py --minutes 3 --hosts 6 --seed 7 --out /tmp/faults
      python benchmarks/fault_training.py --minutes 1 --only-faults --keep /tmp/kept
      python benchmarks/fault_training.py --minutes 5 --fault "kill server" --fault "stop server"

    Parameters
    ----------
    minutes
        Minutes of each training.
    interval
        Seconds between faults.
    hosts
        Number of hosts, 4 to 6.
    seed
        Seed of the faults; the same seed makes the same faults.
    rounds
        Pairs of trainings, each with new random faults.
    quiet_first
        Begin each round with the training without faults [alternate].
    only_faults
        Skip the training without faults and the comparison with it.
    fault
        Inject only this fault, as in "kill server"; may be given again [all]. The goal is then 0.95 of the
        samples per second in the minute around a failover.
    keep
        Folder that keeps logs, runs and the contents of disks [all are deleted].
    redraw
        Draw the plots of this result file again, into --out; train nothing.
    set
        Override a field of the recipe, such as training.push_every=4; may be given again.
    stores
        Directory of prepared samples.
    out
        Directory for fault-training.json and its plots.
    json_
        Print JSON.
    """
    if redraw is not None:
        create_result_folder(out)
        _draw(json.loads(redraw.read_text(encoding="utf-8")), out)
        return
    places, seconds, only = Places(hosts), 60 * minutes, [named(each) for each in fault or []]
    if seconds < 2 * interval:
        raise UserError(f"--minutes {minutes:g} is too short for a fault every {interval:g} s; increase it")
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
    _draw(found, out)
    if not json_:
        table("faults and their results", rows(found["failovers"]))
        table("adam-mnist with faults", told)


def _draw(found: Document, out: Path) -> None:
    trainings: Any = found["trainings"]
    replace_file(out / "fault-training.svg", drawing(found).encode())
    if {each["is_fire"] for each in trainings} == {True, False}:
        replace_file(out / "fault-training-summary.svg", summary(found).encode())


def _sayer(name: str) -> Callable[[str], None]:
    return lambda words: write_message(f"{name}: {words}")


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Yield the folder of the trainings' files, a short path without spaces, for sockets."""
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
