"""The parts of a run that a logger may use.

Knows: the run's directory, its recipe as values and text. Does not know: any one logger, networks, figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

NO_FIGURES: Callable[[], Mapping[str, bytes]] = dict
"""A run without figures."""
_UNNUMBERED = ("time", "seconds", "step", "phase")


@dataclass(frozen=True)
class LoggerContext:
    """A run, as a logger sees it.

    Args:
        run: Directory of the run.
        identity: Text that identifies the run, also after it was moved.
        recipe: Values of the recipe.
        recipe_text: The recipe in TOML.
        environment: Versions and machine of the run.
        figures: Returns the figures of the trained network, as PNG files by name; it reads the newest
            checkpoint.
    """

    run: Path
    identity: str
    recipe: Mapping[str, object]
    recipe_text: str
    environment: Mapping[str, object]
    figures: Callable[[], Mapping[str, bytes]] = field(default=NO_FIGURES)

    @property
    def name(self) -> str:
        """The name of the run: that of its directory."""
        return self.run.resolve().name

    @property
    def settings(self) -> dict[str, str | int | float | bool]:
        """The recipe's numbers, texts and switches, by dotted name; lists as text."""
        return dict(_flat(self.recipe))


def numbers_of(event: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of an event by the names of their curves, such as ``phase 0 step/loss``."""
    phase, kind = event.get("phase"), event["kind"]
    where = f"phase {phase} {kind}" if phase is not None else kind
    return {
        f"{where}/{name}": value
        for name, value in event.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in _UNNUMBERED
    }


def results_of(event: Mapping[str, object]) -> dict[str, float]:
    """Return the loss and the metrics of a `validation` event by name."""
    if event["kind"] != "validation":
        return {}
    others = ("phase_step", "evaluations", "flops", "samples", "training_seconds", "validation_seconds")
    found = {name.partition("/")[2]: value for name, value in numbers_of(event).items()}
    return {name: value for name, value in found.items() if name not in others}


def _flat(value: object, name: str = "") -> Iterator[tuple[str, str | int | float | bool]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(each, f"{name}.{key}" if name else str(key))
    elif isinstance(value, bool | int | float | str):
        yield name, value
    elif value:
        yield name, str(value)
