"""`cotswold train`.

Knows: the arguments of the command, exit codes. Does not know: how anything is trained.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cotswold.cli.support.json_output import Json, print_json


def train(
    recipe: str | None = None,
    *,
    run: Path | None = None,
    set: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    grid: str | None = None,
    replicas: int | None = None,
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
    json_: Json = False,
) -> int:
    """Train a recipe, which states the data, the network and the training.

    `cotswold recipe list` lists the recipes that come with Cotswold, `cotswold recipe show demo`
    prints one with its explanation, and `cotswold recipe explain` documents all fields. The result is
    a directory: see `cotswold evaluate`, `predict`, `report`, `export` and `why`.

    Ctrl-C finishes the step (with strategy batch: the portion; with downpour: the pending
    pushes of replicas), saves and exits. So do SIGTERM, the notice of a spot machine, and
    a closed terminal. A second Ctrl-C exits at once, and loses everything since the last
    checkpoint.

    Exit code 0: trained; 1: the machine or its files failed; 2: a user error; 75: a
    rank that ended because of another one; 128 + N: signal N, such as 130 after Ctrl-C.

    Examples:

      cotswold train demo
      cotswold train my.toml --run runs/mine --set data.size=64
      cotswold train --run runs/mine --resume
      cotswold train --run runs/mine --resume --set training.epochs=20
      cotswold train my.toml --run runs/mine --grid 2x2 --restarts 3
      cotswold train my.toml --replicas 4               they divide every batch
      cotswold train my.toml --replicas 2 --grid 1x2    of two ranks each
      cotswold train my.toml --set training.optimizer=adamw
      cotswold train table.toml --set data.source=bank.csv --set data.target=y
      cotswold train my.toml --workers 4 --max-hours 2
      cotswold train demo --dry-run
      cotswold train my.toml --workers 4 --dry-run
      cotswold train my.toml --workers 4 --dry-run --json
      cotswold train replicas.toml --workers 4 --metrics 9100
      COTSWOLD_TOKEN=$(cat token) cotswold train my.toml --address 10.0.0.1:6379 --workers 8
      torchrun --nproc-per-node 4 --no-python -- cotswold train my.toml --grid 2x2
      torchrun --nproc-per-node 4 --no-python -- cotswold train my.toml --replicas 4

    Parameters
    ----------
    recipe
        A recipe file, or the name of a shipped recipe (`cotswold recipe list`). Not needed with --resume.
    run
        The run's directory. Default: runs/NAME. It must not contain a run, unless that is resumed, or ended
        before its first step; then the new run replaces it.
    set
        Override a field, as in training.momentum=0.5; may be given again. With --resume, these fields may
        change: training.device, threads, offload, checkpoint_minutes or checkpoints_kept, mesh, cluster,
        price, evaluate. More training.epochs extend the run: the missing epochs are trained in new phases,
        each with its own schedule, every stack again from the lowest. More training.patience continues a run
        that ended without a better validation. Strategy batch may change training.max_iterations,
        max_evaluations, max_flops, tolerance and loss_tolerance. data.source or data.store may change if the
        same samples are in another place. The run remembers offload and the place of the samples.
    grid
        Rows and columns of processes that partition every map, as in 2x2: ranks of this machine, each with
        its share of the threads and a log in the run's directory. auto: the grid that the simulator predicts
        to be the fastest; none: one process. Short for --set mesh.grid=2x2. Default: a resumed run keeps its
        grid; under torchrun, mpirun and srun the grid of their ranks.
    replicas
        For strategy supervised: number of processes, or of grids of ranks, that divide every batch and
        average their gradients. Short for --set mesh.replicas=4. Under torchrun, mpirun and srun it must be
        the number of ranks, divided by that of the grid. A resumed run may have another number.
    restarts
        Number of restarts from the last checkpoint after a rank has died; for ranks of this machine.
    workers
        For strategy batch: number of processes that share the samples; for downpour: number of replicas.
        Short for --set cluster.workers=4.
    address
        For strategies batch and downpour: HOST:PORT of the head of a cluster, on whose machines these
        processes start; short for --set cluster.ray_address=.... `cotswold worker` starts the head, and adds
        machines, including this one. Needs the secret of these machines in COTSWOLD_TOKEN.
    replay
        For strategy batch with a training.sample_fraction below 1: a run whose samples are used again in each
        cycle. Short for --set cluster.replay_run=....
    threads
        Compute threads per rank; short for --set training.threads=2. Default: the recipe's, or all cores
        granted to this process, divided among the ranks of a host.
    max_hours
        Save and stop before the run takes more hours than this, including start-up, lost work and the time
        before resumptions; short for --set price.max_hours=2.
    max_dollars
        Save and stop before the run costs more than this, at price.rent_dollars_per_hour since the start of
        the command; short for --set price.max_dollars=5. Both limits stop before the step or evaluation that
        would exceed them, assuming it takes as long as the last one, and reserve time for the save. A step or
        portion that takes longer, and the shutdown of processes, can exceed them.
    metrics
        For strategies batch and downpour: serve Prometheus metrics on this port of 127.0.0.1, or on another
        ADDRESS:PORT, during training; short for --set cluster.metrics_address=9100.
    stores
        Folder for prepared samples, shared by runs. Default: `stores`. A run remembers it.
    resume
        Resume from the newest valid checkpoint in the run's directory, on any grid. Without --run: the run in
        runs/NAME, or the only other run of this recipe in runs.
    resume_if_started
        Resume if the run's directory exists, start otherwise.
    dry_run
        Train nothing. For strategies batch and downpour print processes, ports, bytes, memory, time and
        cost; for downpour also the server of each block of each tensor. For supervised with several replicas:
        ranks, the parts of a batch, bytes and memory. For greedy, joint and other supervised runs: ranks,
        steps, memory and the time of the updates.
    json_
        With --dry-run: print JSON, with unrounded figures.
    """
    from cotswold.api.request import Request, override_list
    from cotswold.api.run_job import RunObservers
    from cotswold.api.signals import graceful_exit
    from cotswold.api.threads import threads_override
    from cotswold.api.train_recipe import train_request
    from cotswold.errors import UserError
    from cotswold.run import Stop
    from cotswold.ui.display import LoggingDisplay, Terminal
    from cotswold.ui.terminal import is_quiet, write_message, write_note

    overrides = [*(set or []), *threads_override(threads)]
    short = {
        "mesh.replicas": replicas,
        "cluster.workers": workers,
        "cluster.ray_address": address,
        "cluster.replay_run": replay,
        "cluster.metrics_address": metrics,
        "price.max_hours": max_hours,
        "price.max_dollars": max_dollars,
    }
    overrides += override_list({name: value for name, value in short.items() if value is not None})
    if json_ and not dry_run:
        raise UserError(
            "--json needs --dry-run; the events of a run are in its events.jsonl, one JSON object per line"
        )
    if dry_run:
        from cotswold.api.plan.dry_run import plan
        from cotswold.api.ranks import override
        from cotswold.cli.support.plan_output import lines

        if grid is not None:
            overrides.append(override(grid))
        found = plan(recipe, directory=run, overrides=overrides, threads=threads)
        if json_:
            print_json("train.plan", found)
        else:
            print(*lines(found), sep="\n")
        return 0
    outcome = train_request(
        Request(recipe, run, overrides, stores, "if_started" if resume_if_started else resume),
        RunObservers(LoggingDisplay() if is_quiet() else Terminal(), (), Stop(), graceful_exit),
        grid=grid,
        restarts=restarts,
    )
    where = shlex.quote(str(outcome.run))
    if not outcome.is_reporter:
        if outcome.code == 1 and (outcome.run / "checkpoints").is_dir():
            write_message(f"resume from the last checkpoint with: cotswold train --run {where} --resume")
    elif outcome.limit is not None:
        write_note(
            f"{outcome.limit}; saved; resume with a higher limit: cotswold train --run {where} --resume"
        )
    elif outcome.code:
        write_note(f"stopped and saved; resume with: cotswold train --run {where} --resume")
    else:
        write_note(f"finished; write a report with: cotswold report {where}")
    return outcome.code
