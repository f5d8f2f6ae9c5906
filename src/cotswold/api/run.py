"""A run, as Python users see it.

Knows: the contents of a run's directory, their display in a notebook. Does not know: the training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.arguments import check_integer, check_path
from cotswold.api.report import write_report
from cotswold.errors import RunError, UserError
from cotswold.run import RunDirectory, read_events
from cotswold.ui.describe import describe, phase_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

    from cotswold.api.export.write import ExportedFile
    from cotswold.recipe import Recipe
    from cotswold.run import Event

_WIDTH, _HEIGHT = 320, 80
"""Size of the small curve in a notebook, pixels."""


class Run:
    """A run on disk: its recipe, its events, and the trained network.

    Everything is read from the directory on access, so a run that another process is training can be
    inspected.

    Args:
        path: Directory of the run, or a `Run`.
        stores: Folder of prepared stores, for old runs whose checkpoints lack the transform.
        module: Makes a module for `network` to fill, if the run trained a user's module.

    Raises:
        RunError: if the directory contains no run.
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
        """Absolute path of the run's directory."""
        return self.directory.path

    @property
    def recipe(self) -> Recipe:
        """The recipe, including all defaults."""
        from cotswold.recipe import load

        return load(self.directory.recipe)

    @property
    def events(self) -> list[Event]:
        """All events in order, one mapping per event; ``kind`` is its kind."""
        return list(read_events(self.directory.events)) if self.directory.events.exists() else []

    @property
    def checkpoints(self) -> list[Path]:
        """Directories of the existing checkpoints, newest last."""
        from cotswold.checkpoint import CheckpointManager

        return list(CheckpointManager(self.directory.checkpoints).paths())

    @property
    def status(self) -> str:
        """Status of the run.

        It is `finished`, `interrupted` or `limited` (can be resumed), `failed`, or `unfinished`: in progress
        or killed.
        """
        last = next((event for event in reversed(self.events) if event["kind"] in ("end", "step")), None)
        return str(last["status"]) if last is not None and last["kind"] == "end" else "unfinished"

    @property
    def loss(self) -> float | None:
        """The last training loss, a mean over the interval of its step event; None before the first.

        Validation losses are in `events` (kind ``validation``) and in `curves`.
        """
        found = self._losses()
        return found[-1][1] if found else None

    @property
    def network(self) -> nn.Module:
        """The trained network in eval mode, without gradients.

        Stacks come from the newest intact checkpoint, layers from that with the best validation. The network
        is read again if there are newer checkpoints. It expects prepared samples (`cotswold.features` and
        `cotswold.predict` prepare samples themselves) and returns standardised regression targets. Raises
        RunError if there is no checkpoint, and MemoryLimitError if the network does not fit into memory.
        """
        from cotswold import training
        from cotswold.checkpoint import CheckpointManager

        known = [
            *CheckpointManager(self.directory.checkpoints).paths(),
            *CheckpointManager(self.directory.best).paths(),
        ]
        if self._kept is None or self._kept[0] != known:
            network = self.recipe.network
            if network.module is not None:
                if self._module is None:
                    raise RunError(
                        f"{self.path} trained {network.module}, a user's module; create it again "
                        "and fill it with run.load(module)"
                    )
                self._kept = known, self.load(self._module()).eval().requires_grad_(False)
            else:
                load = training.trained_stacks if network.stacks else training.trained_layers
                self._kept = known, load(self.directory).network
        return self._kept[1]

    def load(self, module: nn.Module, *, newest: bool = False) -> nn.Module:
        """Fill a module with the trained parameters and return it in eval mode.

        The parameters come from the checkpoint with the best validation, or the newest one without
        validation.

        Args:
            module: A module like the trained one.
            newest: Take the newest checkpoint even if another one had a better validation.

        Raises:
            RunError: if there is no checkpoint.
            MismatchError: if the module differs; it stays unchanged.
        """
        folders = (self.directory.best, self.directory.checkpoints)[newest:]
        if not any(_fill(module, folder, self.directory.identity) for folder in folders):
            raise RunError(f"{self.path} has no checkpoint yet; train it first, or continue with resume=True")
        return module.eval()

    def require_recipe_run(self, what: str) -> None:
        """Raise RunError if the run trained a user's module, for which ``what`` is not available.

        Args:
            what: The operation, as a noun for the message.

        Raises:
            RunError: as above.
        """
        if self.recipe.network.module is not None:
            raise RunError(
                f"{self.path} trained a user's module, whose data are not in the run: "
                f"for {what}, fill a module with run.load(module) and call it on the data"
            )

    def curves(self) -> Figure:
        """Draw training and validation losses over steps, as a matplotlib figure.

        Raises:
            UserError: before the first step.
        """
        from cotswold import analysis

        return analysis.curves(self.directory)

    def filters(self, stack: int = 1, *, count: int = 64) -> Figure:
        """Draw filters of a stack, as a matplotlib figure.

        Args:
            stack: Number of the stack, from 1.
            count: Maximum number of filters.

        Raises:
            RunError: for a run of layers or of a user's module.
            UserError: if the stack does not exist.
        """
        from cotswold import analysis
        from cotswold.nn import StackNetwork

        if self.recipe.network.module is not None:
            raise RunError(
                f"{self.path} trained a user's module; filters exist only for stacks (greedy or "
                "joint); run.load(module) returns the module's parameters"
            )
        check_integer("stack", stack)
        check_integer("count", count)
        network = self.network
        if not isinstance(network, StackNetwork):
            raise RunError(f"{self.path} is a run of layers; filters exist only for stacks (greedy or joint)")
        if not 1 <= stack <= len(network.stacks):
            raise UserError(f"stack {stack} does not exist; the network has {len(network.stacks)} stacks")
        return analysis.filters(list(network.stacks)[stack - 1], count=count, name=f"stack {stack}")

    def report(self, *, threads: int | None = None, progress: bool | None = None) -> Path:
        """Write the run's report, one HTML page, and return its path; see `cotswold.report`.

        Args:
            threads: Number of threads. [as in the recipe, else all cores]
            progress: Show progress. [if on a terminal or in a notebook]
        """
        return write_report(self.directory, str(self.path), threads, progress)

    def export(
        self, path: str | Path, *, module: nn.Module | None = None, example: object = None
    ) -> ExportedFile:
        """Write the trained network to a file that other programs load without Cotswold.

        The suffix selects the format: `.pt2` is a program of torch.export, `.onnx` one of ONNX; `.pt`, `.pth`
        (a state_dict) and `.safetensors` have the tensors alone. Programs take batches of any size, and are
        compared with the network before the file appears. The file also keeps the preparation of the samples,
        the names of the classes and the recipe, as JSON.

        Args:
            path: The new file.
            module: For a run of a user's module: a module like the trained one; it stays unchanged. [the one
                that this run has]
            example: For a run of a user's module: an input of the module, a tensor or a tuple of tensors with
                the samples on their first axes. `.pt2` and `.onnx` need it.

        Raises:
            RunError: if there is no checkpoint.
            UserError: for an unknown suffix, an existing file, or wrong arguments.
            ExportError: if the format cannot express the network; it names the layer.
            MissingExtraError: without the packages of the extra `export`, for `.onnx` and `.safetensors`.
        """
        from cotswold.api.export.write import export

        return export(self, path, module=module, example=example)

    def card(self, path: str | Path | None = None, *, license: str | None = None) -> str:
        """Return the run's model card: a README.md in the form that the Hugging Face hub reads.

        It has the data, the figures of validation and of `cotswold.evaluate`, the cost of the training,
        how to load the network, and the recipe. Of absolute paths it shows the last part alone.

        Args:
            path: A new file for the card. [none is written]
            license: License of the network, by its name on the hub, such as ``"apache-2.0"``. [none is named]

        Raises:
            UserError: for an existing file, or a license that is no name.
        """
        from cotswold.api.export.card import card

        return card(self, path, license)

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
        """Return phase and loss of every step event with a loss."""
        return [
            (event["phase"], float(loss))
            for event in self.events
            if event["kind"] == "step" and isinstance(loss := event.get("loss"), int | float)
        ]


def _line(event: Mapping[str, object]) -> str | None:
    return describe(event) if event["kind"] in ("phase_start", "end") else None


def _curve(losses: list[tuple[object, float]]) -> str:
    """Draw the losses of all phases in one small SVG, each on its own scale."""
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


def report(
    run: Run | str | Path,
    *,
    threads: int | None = None,
    progress: bool | None = None,
) -> Path:
    """Write a run's report, one HTML page without external resources, and return its path.

    The run may be in progress. Damaged parts are left out and named on the page.

    Args:
        run: The run, or its directory.
        threads: Number of threads. [as in the recipe, else all cores]
        progress: Show progress. [if on a terminal or in a notebook]

    Raises:
        RunError: if the directory contains no run.
    """
    name = str(run.path if isinstance(run, Run) else run)
    return write_report(Run(run).directory, name, threads, progress)


def load_trained(module: nn.Module, run: RunDirectory) -> None:
    """Fill a module with the parameters at the end of training, as training in this process does.

    With `ModelEMA` these are not the average, which `Run.load` gives.
    """
    if not _fill(module, run.checkpoints, run.identity, is_trained=True):
        raise RunError(f"{run.path} has no intact checkpoint; train it again, or look into its logs")
    module.eval()


def _fill(module: nn.Module, folder: Path, identity: str, *, is_trained: bool = False) -> bool:
    """Fill a module from the newest checkpoint in a folder; return False without a checkpoint."""
    from cotswold.checkpoint import Checkpoint, CheckpointManager
    from cotswold.training.callbacks.ema import raw_name
    from cotswold.training.jobs.state_check import check_state_matches

    def take(checkpoint: Checkpoint) -> None:
        check_state_matches(module, checkpoint)
        for name, tensor in module.state_dict().items():
            kept = f"network.{name}"
            is_raw = is_trained and raw_name(kept) in checkpoint.names
            checkpoint.read_into(raw_name(kept) if is_raw else kept, tensor)

    return CheckpointManager(folder, identity=identity).latest(take).checkpoint is not None
