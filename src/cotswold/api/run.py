"""A run, as Python users look at it.

Knows: what a run's directory says of it, and how a notebook shows that. Does not know: how anything is
trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.arguments import check_path, check_whole
from cotswold.errors import RunError, UserError
from cotswold.run import RunDirectory, read_events
from cotswold.ui.progress import describe, phase_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

    from cotswold.recipe import Recipe
    from cotswold.run import Event

_WIDTH, _HEIGHT = 320, 80
"""Pixels of the small curve in a notebook."""


class Run:
    """A run on disk: its recipe, its events, and the network that it has trained.

    Everything is read from the directory when it is asked for, so a run that another process trains can be
    looked at meanwhile. ``module`` makes a module for `network` to fill, where the run has trained one of a
    program. Raises RunError where the directory holds no run. ``stores`` is where prepared
    pictures are kept, for runs so old that their checkpoints do not say how pictures are prepared.
    """

    def __init__(
        self,
        path: str | Path | Run,
        *,
        stores: str | Path | None = None,
        module: Callable[[], nn.Module] | None = None,
    ) -> None:
        if not isinstance(path, Run):
            check_path("a run", path)
        known = path.path if isinstance(path, Run) else Path(path)
        self.directory = RunDirectory.open(known)
        self.stores = None if stores is None else Path(stores)
        self._module = module
        self._kept: tuple[list[Path], nn.Module] | None = None

    @property
    def path(self) -> Path:
        """The run's directory, absolute."""
        return self.directory.path

    @property
    def recipe(self) -> Recipe:
        """What was asked for, every default included."""
        from cotswold.recipe import load

        return load(self.directory.recipe)

    @property
    def events(self) -> list[Event]:
        """Everything that happened, in order, one mapping an event; ``kind`` says which."""
        return list(read_events(self.directory.events)) if self.directory.events.exists() else []

    @property
    def checkpoints(self) -> list[Path]:
        """The directories of the checkpoints that are kept, the newest last."""
        from cotswold.checkpoint import Checkpoints

        return list(Checkpoints(self.directory.checkpoints).paths())

    @property
    def status(self) -> str:
        """`finished`, `interrupted` or `limited` (it can be resumed), `failed`, or `unfinished`: it is being
        trained, or was killed."""
        last = next((event for event in reversed(self.events) if event["kind"] in ("end", "step")), None)
        return str(last["status"]) if last is not None and last["kind"] == "end" else "unfinished"

    @property
    def loss(self) -> float | None:
        """The last loss on training samples, a mean since the step event before; None before there is one.

        That on validation samples is in `events` (kind ``validation``) and in `curves`.
        """
        found = self._losses()
        return found[-1][1] if found else None

    @property
    def network(self) -> nn.Module:
        """The trained network, in eval mode, without gradients: stacks of the newest good checkpoint, layers
        of the one with the best validation.

        It takes samples as the run prepares them (`cotswold.features` and `cotswold.predict` prepare them by
        themselves), and gives numbers to predict as it learnt them, standardised. Read again where
        there are newer checkpoints. Raises RunError where there is none yet, MemoryLimitError before anything
        is built where it does not fit.
        """
        from cotswold import training
        from cotswold.checkpoint import Checkpoints

        known = [*Checkpoints(self.directory.checkpoints).paths(), *Checkpoints(self.directory.best).paths()]
        if self._kept is None or self._kept[0] != known:
            network = self.recipe.network
            if network.module is not None:
                if self._module is None:
                    raise RunError(
                        f"{self.path} has trained {network.module}, a module of a program; have the "
                        "program make it anew, and fill it by run.load(module)"
                    )
                self._kept = known, self.load(self._module()).eval().requires_grad_(False)
            else:
                load = training.trained_stacks if network.stacks else training.trained_layers
                self._kept = known, load(self.directory, self.stores).network
        return self._kept[1]

    def load(self, module: nn.Module) -> nn.Module:
        """Fill a module of the user's own, made as the one that the run has trained, and return it.

        It gets what the checkpoint with the best validation has, the newest one where there was no
        validation, and is in eval mode then. Raises RunError where there is none yet, MismatchError where the
        module is another one; it is as before then.
        """
        from cotswold.checkpoint import Checkpoint, Checkpoints
        from cotswold.training.jobs.same_module import check_module

        def take(checkpoint: Checkpoint) -> None:
            check_module(module, checkpoint)
            for name, tensor in module.state_dict().items():
                checkpoint.read_into(f"network.{name}", tensor)

        for folder in (self.directory.best, self.directory.checkpoints):
            found = Checkpoints(folder, identity=self.directory.identity).latest(take).checkpoint
            if found is not None:
                return module.eval()
        raise RunError(f"{self.path} has no checkpoint yet; train it first, or continue it with resume=True")

    def refuse_module(self, what: str) -> None:
        """Raise RunError for a run of a module of a program, which only the program can ask for ``what``."""
        if self.recipe.network.module is not None:
            raise RunError(
                f"{self.path} has trained a module of a program, and only the program has the data that it "
                f"takes: for {what}, fill such a module by run.load(module) and call it on them"
            )

    def curves(self) -> Figure:
        """Training and validation curves over steps, a matplotlib figure; UserError before any step."""
        from cotswold import analysis

        return analysis.curves(self.directory)

    def filters(self, stack: int = 1, *, count: int = 64) -> Figure:
        """Filters of a stack, counted from 1, as a matplotlib figure; RunError for a run of layers, UserError
        for a stack that is not there."""
        from cotswold import analysis
        from cotswold.nn import StackNetwork

        if self.recipe.network.module is not None:
            raise RunError(
                f"{self.path} has trained a module of a program; filters are drawn of stacks (greedy or "
                "joint), and run.load(module) gives the module's own parameters"
            )
        check_whole("stack", stack)
        check_whole("count", count)
        network = self.network
        if not isinstance(network, StackNetwork):
            raise RunError(f"{self.path} is a run of layers; filters are drawn of stacks (greedy or joint)")
        if not 1 <= stack <= len(network.stacks):
            raise UserError(f"there is no stack {stack} in a network of {len(network.stacks)} stacks")
        return analysis.filters(list(network.stacks)[stack - 1], count=count, name=f"stack {stack}")

    def report(self, *, threads: int | None = None, progress: bool | None = None) -> Path:
        """Write the run's report, one HTML page, and return where it is; see `cotswold.report`."""
        from cotswold.api.report import report

        return report(self, threads=threads, progress=progress)

    def __repr__(self) -> str:
        return f"<cotswold.Run {str(self.path)!r}: {self.status}>"

    def _repr_html_(self) -> str:
        recipe, found = self.recipe, self._losses()
        loss = f", loss {found[-1][1]:.5g}" if found else ""
        lines = [line for event in self.events if (line := _line(event)) is not None]
        return (
            f"<div><b>{escape(recipe.name)}</b>: {recipe.training.strategy}, {self.status}{loss}<br>"
            f"<code>{escape(str(self.path))}</code><br>{_curve(found)}"
            f"<pre>{escape(chr(10).join(lines))}</pre></div>"
        )

    def _losses(self) -> list[tuple[object, float]]:
        """Phase and loss of every step event that has one."""
        return [
            (event["stack"], float(loss))
            for event in self.events
            if event["kind"] == "step" and isinstance(loss := event.get("loss"), int | float)
        ]


def _line(event: Mapping[str, object]) -> str | None:
    return describe(event) if event["kind"] in ("stack", "end") else None


def _curve(losses: list[tuple[object, float]]) -> str:
    """The losses of every phase as one small drawing, each phase on a scale of its own."""
    phases = list(dict.fromkeys(phase for phase, _ in losses))
    drawn = []
    for number, phase in enumerate(phases):
        values = [loss for of, loss in losses if of == phase]
        low, high = min(values), max(values)
        width, left = _WIDTH / len(phases), number * _WIDTH / len(phases)
        points = " ".join(
            f"{left + width * (at + 0.5) / len(values):.1f},"
            f"{2 + (_HEIGHT - 4) * (high - value) / ((high - low) or 1):.1f}"
            for at, value in enumerate(values)
        )
        title = f"<title>{escape(phase_name(phase))}: loss {values[0]:.4g} to {values[-1]:.4g}</title>"
        drawn.append(f'<polyline points="{points}" fill="none" stroke="currentColor">{title}</polyline>')
    return f'<svg width="{_WIDTH}" height="{_HEIGHT}">{"".join(drawn)}</svg>' if drawn else ""
