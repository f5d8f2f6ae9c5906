"""`cotswold train`.

Knows: the words of the command, exit codes. Does not know: how anything is trained.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def train(
    recipe: str | None = None,
    *,
    run: Path | None = None,
    set: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    grid: str | None = None,
    restarts: int = 0,
    workers: int | None = None,
    address: str | None = None,
    replay: Path | None = None,
    threads: int | None = None,
    max_hours: float | None = None,
    max_dollars: float | None = None,
    metrics: str | None = None,
    stores: Path | None = None,
    resume: Annotated[bool, Parameter(negative=())] = False,
    resume_if_started: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    quiet: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Train a recipe.

    Ctrl-C finishes the step (with strategy batch: the portion; with downpour: what
    replicas have in hand), saves and leaves, as does SIGTERM, the notice that a spot
    machine gives, and a terminal that closes; a second Ctrl-C leaves at once, and
    nothing since the last checkpoint is kept.

    Exit code 0: trained; 1: the machine or its files failed; 2: a mistake of the
    caller's; 75: a rank that ended because of another one; 128 + N: signal N, such
    as 130 after Ctrl-C.

    Examples:

      cotswold train demo
      cotswold train my.toml --run runs/mine --set data.size=64
      cotswold train --run runs/mine --resume
      cotswold train --run runs/mine --resume --set training.epochs=20
      cotswold train my.toml --run runs/mine --grid 2x2 --restarts 3
      cotswold train my.toml --workers 4 --max-hours 2
      cotswold train my.toml --workers 4 --dry-run
      cotswold train my.toml --workers 4 --dry-run --json
      cotswold train replicas.toml --workers 4 --metrics 9100
      COTSWOLD_TOKEN=$(cat token) cotswold train my.toml --address 10.0.0.1:6379 --workers 8
      torchrun --nproc-per-node 4 --no-python -- cotswold train my.toml --grid 2x2

    Parameters
    ----------
    recipe
        A recipe file, or the name of a shipped recipe (`cotswold recipe list`). Not needed with --resume.
    run
        The run's directory; runs/NAME by default. It must not hold a run, unless that is resumed or ended
        before its first step; then the new one begins in its place.
    set
        Overrides a field, as in training.momentum=0.5; may be given again. With --resume: training.device,
        threads, offload, checkpoint_minutes or checkpoints_kept, mesh, cluster, price, evaluate; and more
        training.epochs, which prolong the run: what is missing is trained in phases with a schedule of their
        own, every stack again from the lowest; more training.patience, with which a run goes on that ended
        for want of a better validation; for strategy batch training.iterations, evaluations, flops and
        tolerance; data.source or data.store, if the same samples are in another place now. The
        run remembers offload and the place of the samples.
    grid
        Rows and columns of processes over which every map is cut, as in 2x2: ranks of this machine, each with
        its part of the threads and a log in the run's directory. auto: the grid that the simulator predicts
        to be the fastest; none: one process. Short for --set mesh.grid=2x2. A run that is resumed goes on
        over its own grid if nothing is said. Under torchrun, mpirun and srun: the grid of the ranks that
        these start.
    restarts
        How often to begin again from the last checkpoint when a rank has died; for ranks of this machine.
    workers
        For strategy batch: over how many processes the patterns are spread; for downpour: how many replicas
        there are. Short for --set cluster.workers=4.
    address
        For strategies batch and downpour: HOST:PORT of the head of a cluster, on whose machines these
        processes are started; short for --set cluster.address=.... `cotswold worker` makes the head, and adds
        machines, this one too. Needs the secret of these machines in COTSWOLD_TOKEN.
    replay
        For strategy batch with a training.fraction below 1: a run; count in each cycle the patterns that it
        counted. Short for --set cluster.replay=....
    threads
        Threads of computation, of each rank where there are several; short for --set training.threads=2. By
        default the recipe's, or all cores that this process is granted, divided among the ranks of a host.
    max_hours
        Save and stop before the run takes more hours, start-up, lost work and the time before resumptions
        included; short for --set price.max_hours=2.
    max_dollars
        Save and stop before the run costs more, at price.rent_dollars_per_hour from the start of the command
        on; short for --set price.max_dollars=5. Both limits stop before the step or evaluation that would
        pass them if it takes as long as the one before, leave time for the save, and may be passed by the
        rest of a step or portion that takes longer, and by the end of the processes.
    metrics
        For strategies batch and downpour: serve metrics for Prometheus at this port of 127.0.0.1, or at
        another ADDRESS:PORT, while the run is trained; short for --set cluster.metrics=9100.
    stores
        Where prepared samples are kept for this and other runs; `stores` by default. A run remembers it.
    resume
        Go on from the newest good checkpoint in the run's directory, on any grid.
    resume_if_started
        Go on if the run's directory exists, begin otherwise.
    dry_run
        For strategies batch and downpour: train nothing; print processes, ports, bytes, memory, time and
        cost; with replicas also on which server each block of each tensor would lie.
    json_
        With --dry-run: print JSON, with every figure as it is.
    quiet
        Show no progress; only what goes wrong.
    """
    from cotswold.api.request import Request, override_list
    from cotswold.api.run_job import Hearing
    from cotswold.api.signals import stopping
    from cotswold.api.threads import threads_override
    from cotswold.api.train_recipe import carry_out
    from cotswold.errors import UserError
    from cotswold.run import Stop
    from cotswold.ui.display import Quiet, Terminal
    from cotswold.ui.progress import say

    overrides = [*(set or []), *threads_override(threads)]
    short = {
        "cluster.workers": workers,
        "cluster.address": address,
        "cluster.replay": replay,
        "cluster.metrics": metrics,
        "price.max_hours": max_hours,
        "price.max_dollars": max_dollars,
    }
    overrides += override_list({name: value for name, value in short.items() if value is not None})
    if json_ and not dry_run:
        raise UserError(
            "--json is for --dry-run; what a run does is in its events.jsonl, a JSON object a line"
        )
    if dry_run:
        from cotswold.api.plan.base import plan
        from cotswold.cli.support.plan_output import lines

        found = plan(recipe, directory=run, overrides=overrides, threads=threads)
        for line in [json.dumps(found, indent=1)] if json_ else lines(found):
            print(line)
        return 0
    outcome = carry_out(
        Request(recipe, run, overrides, stores, "if_started" if resume_if_started else resume),
        Hearing(Quiet() if quiet else Terminal(), None, Stop(), stopping),
        grid=grid,
        restarts=restarts,
    )
    where = shlex.quote(str(outcome.run))
    if not outcome.speaks:
        if outcome.code == 1 and (outcome.run / "checkpoints").is_dir():
            say(f"go on from the last checkpoint with: cotswold train --run {where} --resume")
    elif outcome.limit is not None and not quiet:
        say(f"{outcome.limit}; saved, and goes on with a higher one: cotswold train --run {where} --resume")
    elif outcome.code and not quiet:
        say(f"stopped and saved; go on with: cotswold train --run {where} --resume")
    elif not quiet:
        say(f"finished; look at it with: cotswold report {where}")
    return outcome.code
