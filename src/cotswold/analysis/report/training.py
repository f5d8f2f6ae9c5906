"""Sections on how training went: curves, whiteness, speed, accounts.

Knows: the history of a run. Does not know: networks, evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan

from cotswold.analysis.learning_curves import learning_panels, thinned
from cotswold.analysis.plots import Band, Line, plot
from cotswold.analysis.report.blocks import (
    Block,
    Drawing,
    Facts,
    Figure,
    FigureGrid,
    Missing,
    PageSection,
    Paragraph,
)
from cotswold.analysis.run_history import Curve, History, number
from cotswold.run import Event
from cotswold.ui.words import count, duration, percent, plain, scaled


def curves(history: History, word: str) -> PageSection:
    """Objective of every stack, or loss and accuracy of a supervised run: training and validation."""
    drawn = [
        Figure(Drawing(plot(panel.name, panel.lines, x=panel.x, y=panel.y)), panel.caption)
        for panel in learning_panels(history)
    ]
    blocks: list[Block] = [Paragraph("Nothing has been learnt yet: no step is in the log.")]
    if drawn:
        note = _STACKS
        if history.trains_layers:
            note = _WHOLE_SET if history.counts_evaluations else _SUPERVISED
        blocks = [FigureGrid(drawn), Paragraph(note.format(many=word, one=word.removesuffix("s")), "note")]
    return PageSection("Learning", "learning", blocks)


_SUPERVISED = (
    "Training values are means since the point before; validation values are over all {many} of that set."
)
_WHOLE_SET = (
    "Training values are means over the {many} that the iteration counted; validation values are over all "
    "{many} of that set."
)
_STACKS = (
    "Objective (1) of Coates et al. 2013 per {one}: squared error of reconstruction plus λ times the "
    "pooled responses. The training curve is taken under the λ of the moment, which rises over the first "
    "part of a stack ([objective] ramp); validation values use the full λ throughout, so the two can be "
    "compared only after it. The first validation point is the random stack with its gain and α set, "
    "before any step."
)


def whiteness(history: History) -> PageSection | None:
    """Spectrum and colour correlation of whitened validation pictures, against what is asked of them."""
    spectrum = _Spectrum.of(history.whiteness)
    if spectrum is None:
        return None
    low, high = spectrum.band
    drawing = spectrum.drawn([Band(low, high, "flat band"), Band(-1, 1, "±1 dB", "y")])
    inside = [abs(p) for f, p in spectrum.points if low - 1e-9 <= f <= high + 1e-9]
    numbers = [("Greatest deviation in the band", f"{plain(max(inside))} dB")] if inside else []
    numbers += [*spectrum.facts(), ("Band", f"{low:.3f} to {high:.3f} cycles per pixel")]
    caption = f"Radial power spectrum of {spectrum.which}, relative to its mean in the band."
    shown = FigureGrid([Figure(drawing, caption), Facts(numbers)])
    return PageSection("Whiteness of the pictures", "whiteness", [shown])


def not_whitened(history: History) -> PageSection:
    """The same of pictures that the recipe leaves as they are: nothing is asked of them."""
    said = Paragraph(
        "The pictures are not whitened: the recipe has data.whiten = false. Their power falls with frequency "
        "and their colours go together, as is usual for photographs."
    )
    spectrum = _Spectrum.of(history.whiteness)
    if spectrum is None:
        return PageSection("Spectrum of the pictures", "whiteness", [said])
    drawn = Figure(spectrum.drawn([]), f"Radial power spectrum of {spectrum.which}, not whitened.")
    shown = FigureGrid([drawn, Facts(spectrum.facts())])
    return PageSection("Spectrum of the pictures", "whiteness", [said, shown])


@dataclass(frozen=True)
class _Spectrum:
    """What the `whiteness` event says: (cycles per pixel, decibels) and what belongs to them."""

    points: list[tuple[float, float]]
    band: tuple[float, float]
    event: Event

    @classmethod
    def of(cls, event: Event) -> _Spectrum | None:
        """None where the event is not there or damaged."""
        radial, frequencies, band = event.get("radial"), event.get("frequencies"), event.get("band")
        if not (isinstance(radial, list) and isinstance(frequencies, list) and isinstance(band, list)):
            return None
        low, high = (float(edge) for edge in band)
        return cls(list(zip(frequencies, radial, strict=True)), (low, high), event)

    @property
    def which(self) -> str:
        """The pictures that were measured; without a validation set those are training pictures."""
        return (
            "training pictures (none are kept for validation)"
            if self.event.get("split") == "train"
            else "validation pictures"
        )

    def drawn(self, bands: Sequence[Band]) -> Drawing:
        """The spectrum down to -25 dB: below lies what the filter took out."""
        shown = [(f, p) for f, p in self.points if p > -25]
        return Drawing(
            plot(
                "whiteness",
                [Line("power", [f for f, _ in shown], [p for _, p in shown], dots=True)],
                x="frequency (cycles per pixel)",
                y="power (dB)",
                bands=bands,
                bottom=min(-3.0, *(p for _, p in shown)) if shown else None,
                top=max(3.0, *(p for _, p in shown)) if shown else None,
            )
        )

    def facts(self) -> list[tuple[str, str]]:
        """The correlation of colours and the number of pictures."""
        correlation, pictures = number(self.event, "colour_correlation"), number(self.event, "pictures")
        found = [] if correlation is None else [("Greatest correlation of two colours", f"{correlation:.3f}")]
        return found + ([] if pictures is None else [("Pictures measured", count(pictures))])


def speed(history: History, word: str) -> PageSection | None:
    """Samples and FLOPs a second over the time of the run, and the time waited for samples."""
    figures = []
    for name, label, identity in (
        ("pictures_per_second", f"{word}/s", "pictures"),
        ("gflops", "GFLOP/s", "gflops"),
    ):
        lines = []
        for phase_number in sorted(history.phases):
            pace = history.phases[phase_number].paces.get(name)
            if pace:
                lines.append(_pace(f"stack {phase_number + 1}", pace, phase_number))
        if lines:
            drawing = plot(identity, lines, x="seconds of training", y=label, bottom=0)
            figures.append(Figure(Drawing(drawing), label[0].upper() + label[1:]))
    if not figures:
        return None
    waited, trained = history.waited_seconds, history.interval_seconds
    blocks: list[Block] = [FigureGrid(figures)]
    if trained > 0:
        said = (
            f"Waiting for {word} took {duration(waited)} of {duration(trained)} of training "
            f"({percent(waited / trained, 2)})."
        )
        blocks.append(Paragraph(said))
    return PageSection("Speed", "speed", blocks)


def _pace(label: str, sessions: Mapping[int, Curve], colour: int) -> Line:
    """A rate against seconds of training, with a gap where the run paused."""
    x, y, alone = list[float](), list[float](), False
    for curve in sessions.values():
        if curve:
            at, values = thinned(curve)
            x += [*([nan] if x else []), *(milliseconds / 1000 for milliseconds in at)]
            y += [*([nan] if y else []), *values]
            alone = alone or len(at) == 1
    return Line(label, x, y, colour=colour, dots=alone)


def accounts(history: History, run: str, checkpoints: Sequence[int]) -> PageSection:
    """What was done and what it cost; ``checkpoints`` are the steps of those that are kept."""
    end = history.end
    if not end:
        text = "Training has not ended; the account is written when it does. To see it then, run"
        missing = Missing(text, f"cotswold report {run}")
        return PageSection("Account", "account", [missing, *_resume_note(history)])
    items = []
    spread = history.counts_evaluations or history.counts_samples
    sender = "Sent by the coordinator" if spread else "Sent between ranks"
    for name, label, shown in (
        ("samples", "Samples seen", count),
        ("flops", "FLOPs, forward and gradient", lambda value: scaled(value, "FLOP")),
        ("training_seconds", "Time of training", duration),
        ("seconds", "Time of the run, start-up included", duration),
        ("flops_per_second", "Rate", lambda value: scaled(value, "FLOP/s")),
        ("wire_bytes", sender, lambda value: scaled(value, "B")),
        ("staleness", "Staleness, updates", plain),
        ("cents_per_mflops", "Price of bought hardware", lambda value: f"{plain(value)} ¢ per MFLOP/s"),
        ("dollars", "Rent of this run", lambda value: f"${value:.2f}" if value >= 0.01 else f"${value:.4f}"),
    ):
        value = number(end, name)
        if value is not None:
            items.append((label, shown(value)))
    if checkpoints:
        kept = f"{len(checkpoints)}, the newest of step {count(checkpoints[-1])}"
        items.append(("Checkpoints kept", kept))
    items.append(("Status", str(end.get("status", "unknown"))))
    if history.resumptions:
        items.append(("Resumed", f"{history.resumptions} times" if history.resumptions > 1 else "once"))
    if history.epochs:
        totals = ", ".join(f"{each:g}" for each in history.epochs)
        items.append(("Prolonged to", f"{totals} epochs"))
    if history.lost_seconds:
        said = (
            f"the work of its first {duration(history.lost_seconds)}, for it ended before anything was saved"
        )
        items.append(("Lost", said))
    priced = number(end, "cents_per_mflops") is not None or number(end, "dollars") is not None
    blocks: list[Block] = [Facts(items), *_resume_note(history)]
    if not priced:
        blocks.append(Paragraph("No price is in the recipe ([price]), so no money is counted.", "note"))
    return PageSection("Account", "account", blocks)


def _resume_note(history: History) -> list[Paragraph]:
    """A paragraph if the run does not promise an exact resume."""
    note = str(history.start.get("resume_note") or "")
    return [Paragraph(f"{note[:1].upper()}{note[1:]}.", "note")] if note else []
