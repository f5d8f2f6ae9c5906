"""`cotswold bench`: measurements beside ceilings and rivals.

Knows: the words of the command, tables, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from cotswold.cli.bench_kernels import kernels
from cotswold.cli.bench_scaling import scaling
from cotswold.cli.bench_simulate import machine, simulate
from cotswold.cli.figures import at_least_one, check_stacks, command, cores, leave, table

if TYPE_CHECKING:
    from cotswold.bench.measure import Document

app = App(
    name="bench",
    help="Measure this machine; leave it alone meanwhile.",
    help_format="plaintext",
)

Flag = Annotated[bool, Parameter(negative=())]
Json = Annotated[bool, Parameter(name="--json", negative=())]
Overrides = Annotated[list[str] | None, Parameter(name="--set", negative=())]


app.command(kernels)
app.command(scaling)
app.command(machine)
app.command(simulate)


@app.command
def training(
    recipe: str = "demo",
    *,
    set: Overrides = None,
    stores: Path = Path("stores"),
    threads: int | None = None,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """What the training loop adds to the time of its operations, and the peak memory of a step.

    Trains the whole recipe in a directory that is thrown away. Examples:

      cotswold bench training
      cotswold bench training faces --set training.epochs=0.5 --out benchmarks/results

    Parameters
    ----------
    recipe
        A recipe file or the name of a shipped recipe, with stacks.
    set
        Overrides a field, as in training.epochs=0.5; may be given again.
    stores
        Where prepared pictures are kept; they are made if they are not there.
    threads
        Threads of computation; the recipe's number, or all cores that this process is granted, by default.
    out
        A directory for training.json.
    json_
        Print JSON.
    """
    from cotswold.api.progress import TrainingDisplay, counting, say
    from cotswold.api.threads import threads_override, use_threads
    from cotswold.bench.loop import loop_share
    from cotswold.bench.measure import document
    from cotswold.bench.peak import peaks
    from cotswold.recipe import load
    from cotswold.training import open_store

    overrides = [*(set or []), *threads_override(threads)]
    chosen = load(recipe, overrides, say)
    check_stacks(chosen)
    use_threads(None, chosen)
    with counting("preparing", "pictures") as tally:
        open_store(chosen, stores, tally)
    memory = peaks(chosen)
    with TrainingDisplay() as display:
        loop = loop_share(recipe, overrides, stores, display)
    found = document("training", command(), recipe=recipe, loop=loop, memory=memory)
    leave(found, "training", out, json_)
    if not json_:
        _print({name: value for name, value in loop.items() if name != "stacks"})
        table("a step in the loop and alone", _rows(loop["stacks"]))
        table("peak memory of a step", memory)


@app.command
def evaluate(
    recipe: str = "demo",
    *,
    set: Overrides = None,
    part: Literal["filters", "pooled", "output"] = "output",
    pictures: int = 4000,
    rounds: int = 7,
    threads: int | None = None,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """The rate of each pass of the selectivity test beside the forward pass alone.

    On random pictures and the recipe's stacks with random filters. Examples:

      cotswold bench evaluate
      cotswold bench evaluate faces --part pooled --out benchmarks/results

    Parameters
    ----------
    recipe
        A recipe file or the name of a shipped recipe, with stacks.
    set
        Overrides a field, as in training.batch_size=50; may be given again.
    part
        Which map of every stack is tested.
    pictures
        How many pictures.
    rounds
        How many times each.
    threads
        Threads of computation; the recipe's number, or all cores that this process is granted, by default.
    out
        A directory for evaluate.json.
    json_
        Print JSON.
    """
    from cotswold.api.threads import use_threads
    from cotswold.bench.measure import document
    from cotswold.bench.passes import evaluation_passes
    from cotswold.recipe import load

    chosen = load(recipe, set or [])
    check_stacks(chosen)
    use_threads(threads, chosen)
    measured = evaluation_passes(
        chosen, part, at_least_one(pictures, "--pictures"), at_least_one(rounds, "--rounds")
    )
    found = document("evaluate", command(), **measured)
    leave(found, "evaluate", out, json_)
    if not json_:
        _spreads("pictures a second", found["pictures_per_second"])
        _spreads("of forward alone", found["of_forward"])


@app.command
def prepare(
    source: str,
    *,
    size: int = 48,
    jobs: int | None = None,
    limit: int | None = None,
    rounds: int = 3,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """The rate of `prepare` beside Pillow alone, which decodes and resizes the same files.

    As many processes for both, their start included. Example:

      cotswold bench prepare photographs.zip --size 96 --jobs 2

    Parameters
    ----------
    source
        A source of pictures, as for `cotswold prepare`.
    size
        Height and width in pixels.
    jobs
        Processes; all cores by default.
    limit
        Read at most so many pictures.
    rounds
        How many times each, after one that does not count.
    out
        A directory for prepare.json.
    json_
        Print JSON.
    """
    from cotswold.api.progress import counting
    from cotswold.bench.measure import document
    from cotswold.bench.preparing import preparing
    from cotswold.data import open_source

    with counting("measuring", "rounds") as tally:
        measured = preparing(
            open_source(source),
            (at_least_one(size, "--size"),) * 2,
            cores() if jobs is None else at_least_one(jobs, "--jobs"),
            limit,
            at_least_one(rounds, "--rounds"),
            tally,
        )
    found = document("prepare", command(), **measured)
    leave(found, "prepare", out, json_)
    if not json_:
        _spreads("pictures a second", found["pictures_per_second"])
        _spreads("prepare", {"of Pillow alone": found["of_pillow"]})


@app.command
def offload(
    recipe: str = "coates2013-11b",
    *,
    set: Overrides = None,
    stack: int = 1,
    rows: int | None = None,
    batch: int = 16,
    limit: float | None = None,
    largest: Flag = False,
    rounds: int = 5,
    folder: Path = Path(),
    threads: int | None = None,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """An update of a stack that is larger than its memory, beside its computing and the disk's own rate.

    The stack is trained from the disk by a process whose memory is limited (by a control group, for which
    one must be root), to a quarter of filters and momentum. Examples:

      cotswold bench offload
      cotswold bench offload --stack 2 --rows 12 --batch 96 --limit 12
      cotswold bench offload --stack 2 --batch 96 --largest --rounds 1

    Parameters
    ----------
    recipe
        A recipe file or the name of a shipped recipe, with stacks.
    set
        Overrides a field; may be given again.
    stack
        Which stack, from 1 at the input.
    rows
        Only its first so many rows of blocks.
    batch
        Pictures in a mini-batch.
    limit
        GB of memory; a quarter of filters and momentum by default.
    largest
        As many rows of blocks as the disk holds twice, without a limit, and a checkpoint of them.
    rounds
        How many updates are timed, after one that does not count.
    folder
        Where the files are while it lasts; the directory in which you are by default.
    threads
        Threads of computation; the recipe's number, or all cores that this process is granted, by default.
    out
        A directory for offload.json.
    json_
        Print JSON.
    """
    from cotswold.api.progress import say
    from cotswold.api.threads import use_threads
    from cotswold.bench.measure import document
    from cotswold.bench.offload import SHARE, Trial, largest_rows, part_of
    from cotswold.bench.offload import offload as measured
    from cotswold.recipe import load

    chosen = load(recipe, set or [])
    check_stacks(chosen)
    use_threads(threads, chosen)
    geometry = part_of(chosen, stack, largest_rows(chosen, stack, folder, 2) if largest else rows)
    trial = Trial(
        geometry, at_least_one(batch, "--batch"), None, at_least_one(rounds, "--rounds"), saved=largest
    )
    if not largest:
        gigabytes = limit if limit is not None else trial.stack_bytes / SHARE / 1e9
        trial = replace(trial, limit_bytes=int(gigabytes * 1e9))
    found = document("offload", command(), recipe=recipe, stack=stack, **measured(trial, folder, say))
    leave(found, "offload-largest" if largest else "offload", out, json_)
    if not json_:
        _print({name: value for name, value in found.items() if name not in ("machine", "load")})


@app.command
def start(*, rounds: int = 15, out: Path | None = None, json_: Json = False) -> None:
    """How long `import cotswold` and `cotswold --help` take.

    Example: cotswold bench start

    Parameters
    ----------
    rounds
        How many times each.
    out
        A directory for start.json.
    json_
        Print JSON.
    """
    from cotswold.bench.measure import document
    from cotswold.bench.start import start as measured

    found = document("start", command(), **measured(at_least_one(rounds, "--rounds")))
    leave(found, "start", out, json_)
    if not json_:
        _spreads("seconds", found["spread_seconds"])
        print(f"import cotswold imports torch: {'yes' if found['imports_torch'] else 'no'}")


def _spreads(title: str, spreads: object) -> None:
    assert isinstance(spreads, Mapping)
    table(title, [{"": name, **spread} for name, spread in spreads.items()])


def _print(figures: Mapping[str, object]) -> None:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            _print({f"{name.replace('_', ' ')}, {part}": one for part, one in value.items()})
        else:
            print(f"{name.replace('_', ' ')}: {value}")


def _rows(value: object) -> list[Document]:
    assert isinstance(value, list)
    return value
