"""`cotswold bench`: measurements beside ceilings and rivals.

Knows: the words of the command, tables, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

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


@app.command
def kernels(
    *, threads: str | None = None, quick: Flag = False, out: Path | None = None, json_: Json = False
) -> None:
    """Every operation beside its ceiling and beside what one would write today.

    The ceiling of products is the fastest dense float32 product of this run (torch.mm, oneDNN, NumPy); that
    of the rest is y += x of as many bytes. Rivals: unfold + einsum, and jax.lax.conv_general_dilated_local
    where JAX is installed. Examples:

      cotswold bench kernels --quick
      cotswold bench kernels --threads 1,2 --out benchmarks/results

    Parameters
    ----------
    threads
        Numbers of threads, one run each, as in 1,2; all cores by default.
    quick
        Two small shapes, three rounds: to try the command, not to quote.
    out
        A directory for kernels.json (every sample) and kernels.svg.
    json_
        Print JSON.
    """
    from cotswold.bench import kernels as measuring
    from cotswold.bench.shapes import quick_shapes, shapes
    from cotswold.cli.progress import counting

    counts = _threads(threads)
    chosen, effort = (quick_shapes(), measuring.QUICK) if quick else (shapes(), measuring.Effort())
    with counting("measuring", "shapes") as tally:
        found = measuring.kernels(chosen, counts, effort, _command(), tally)
    _leave(found, "kernels", out, json_)
    if out is not None:
        from cotswold.bench.picture import draw

        draw(found, out / "kernels.svg")
    if not json_:
        _kernel_table(found)


@app.command
def training(
    recipe: str = "demo",
    *,
    set: Overrides = None,
    stores: Path = Path("stores"),
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
    out
        A directory for training.json.
    json_
        Print JSON.
    """
    from cotswold.bench.loop import loop_share
    from cotswold.bench.measure import document
    from cotswold.bench.peak import peaks
    from cotswold.cli.progress import TrainingDisplay, counting
    from cotswold.recipe import load
    from cotswold.training import open_store

    chosen = load(recipe, set or [])
    with counting("preparing", "pictures") as tally:
        open_store(chosen, stores, tally)
    memory = peaks(chosen)
    with TrainingDisplay() as display:
        loop = loop_share(recipe, set or [], stores, display)
    found = document("training", _command(), recipe=recipe, loop=loop, memory=memory)
    _leave(found, "training", out, json_)
    if not json_:
        _print({name: value for name, value in loop.items() if name != "stacks"})
        _table("a step in the loop and alone", _rows(loop["stacks"]))
        _table("peak memory of a step", memory)


@app.command
def evaluate(
    recipe: str = "demo",
    *,
    set: Overrides = None,
    part: Literal["filters", "pooled", "output"] = "output",
    pictures: int = 4000,
    rounds: int = 7,
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
        Overrides a field, as in training.batch=50; may be given again.
    part
        Which map of every stack is tested.
    pictures
        How many pictures.
    rounds
        How many times each.
    out
        A directory for evaluate.json.
    json_
        Print JSON.
    """
    from cotswold.bench.measure import document
    from cotswold.bench.passes import evaluation_passes
    from cotswold.recipe import load

    measured = evaluation_passes(
        load(recipe, set or []), part, _at_least_one(pictures), _at_least_one(rounds)
    )
    found = document("evaluate", _command(), **measured)
    _leave(found, "evaluate", out, json_)
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
    from cotswold.bench.measure import document
    from cotswold.bench.preparing import preparing
    from cotswold.cli.progress import counting
    from cotswold.data import open_source

    with counting("measuring", "rounds") as tally:
        measured = preparing(
            open_source(source),
            (size, size),
            _at_least_one(jobs or _cores()),
            limit,
            _at_least_one(rounds),
            tally,
        )
    found = document("prepare", _command(), **measured)
    _leave(found, "prepare", out, json_)
    if not json_:
        _spreads("pictures a second", found["pictures_per_second"])
        _spreads("prepare", {"of Pillow alone": found["of_pillow"]})


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

    found = document("start", _command(), **measured(_at_least_one(rounds)))
    _leave(found, "start", out, json_)
    if not json_:
        _spreads("seconds", found["spread_seconds"])
        print(f"import cotswold imports torch: {'yes' if found['imports_torch'] else 'no'}")


def _threads(words: str | None) -> list[int]:
    """Numbers of threads from words such as 1,2."""
    from cotswold.errors import UserError

    if words is None:
        return [_cores()]
    numbers = [word.strip() for word in words.split(",")]
    if not all(number.isdigit() and int(number) >= 1 for number in numbers):
        raise UserError(f"--threads {words} names no numbers of threads; write them as in 1,2")
    return [int(number) for number in numbers]


def _at_least_one(number: int) -> int:
    from cotswold.errors import UserError

    if number < 1:
        raise UserError(f"{number} measures nothing; give 1 or more")
    return number


def _cores() -> int:
    from cotswold.data.crew import cores

    return cores()


def _command() -> str:
    """The command as it was typed, without the place of the programme."""
    return shlex.join(["cotswold", *sys.argv[1:]])


def _leave(found: Document, name: str, out: Path | None, json_: bool) -> None:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
    if json_:
        print(json.dumps(found))


def _kernel_table(found: Document) -> None:
    rows = []
    for shape in _rows(found["shapes"]):
        for one in _rows(shape["operations"]):
            rates: Any = one["rate"]
            shares: Any = one["of_ceiling"]
            cells = {
                by: f"{rates[by]['median']:.1f} ({shares[by]['median']:.2f})" if by in rates else ""
                for by in ("cotswold", "unfold + einsum", "JAX")
            }
            head = {
                "shape": shape["shape"],
                "threads": shape["threads"],
                "operation": one["operation"],
                "unit": one["unit"],
            }
            rows.append({**head, **cells})
    _table("medians, and in brackets the share of the ceiling", rows)


def _spreads(title: str, spreads: object) -> None:
    assert isinstance(spreads, Mapping)
    _table(title, [{"": name, **spread} for name, spread in spreads.items()])


def _table(title: str, rows: list[Document]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in rows[0]:
        table.add_column(heading.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def _print(figures: Mapping[str, object]) -> None:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            _print({f"{name.replace('_', ' ')}, {part}": one for part, one in value.items()})
        else:
            print(f"{name.replace('_', ' ')}: {value}")


def _rows(value: object) -> list[Document]:
    assert isinstance(value, list)
    return value
