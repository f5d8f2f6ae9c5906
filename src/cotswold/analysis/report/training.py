"""Report sections on training: curves, whiteness, speed, account.

Knows: the history of a run. Does not know: networks, evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan

from cotswold.analysis.learning_curves import learning_panels, thin_curve
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
from cotswold.ui.format import count, duration, percent, scaled, three_figures


def curves(history: History, word: str) -> PageSection:
    """Return a section of learning curves, per stack, or loss, accuracy and metrics of a supervised run."""
    drawn = [
        Figure(Drawing(plot(panel.name, panel.lines, x=panel.x, y=panel.y)), panel.caption)
        for panel in learning_panels(history)
    ]
    blocks: list[Block] = [Paragraph("No results yet: the log has no step.")]
    if drawn:
        note = _STACKS
        if history.trains_layers:
            note = _WHOLE_SET if history.counts_evaluations else _SUPERVISED
        blocks = [FigureGrid(drawn), Paragraph(note.format(many=word, one=word.removesuffix("s")), "note")]
    return PageSection("Learning", "learning", blocks)


_SUPERVISED = (
    "Training values are means since the previous point; validation values are means over all {many} of "
    "the validation set."
)
_WHOLE_SET = (
    "Training values are means over the {many} that the iteration evaluated; validation values are means "
    "over all {many} of the validation set."
)
_STACKS = (
    "Objective (1) of Coates et al. 2013 per {one}: squared reconstruction error plus λ times the "
    "pooled responses. The training curve uses the current λ, which rises over the first part of a stack's "
    "training ([objective] sparsity_ramp); validation values always use the full λ, so the two can only be "
    "compared after the ramp. The first validation point is the random stack with its gain and α set, "
    "before any step."
)


def whiteness(history: History) -> PageSection | None:
    """Return spectrum and colour correlation of whitened validation images, compared with the target."""
    spectrum = _Spectrum.from_event(history.whiteness)
    if spectrum is None:
        return None
    low, high = spectrum.band
    drawing = spectrum.plot([Band(low, high, "flat band"), Band(-1, 1, "±1 dB", "y")])
    inside = [abs(p) for f, p in spectrum.points if low - 1e-9 <= f <= high + 1e-9]
    numbers = [("Largest deviation in the band", f"{three_figures(max(inside))} dB")] if inside else []
    numbers += [*spectrum.facts(), ("Band", f"{low:.3f} to {high:.3f} cycles per pixel")]
    caption = f"Radial power spectrum of {spectrum.image_set}, relative to its mean in the band."
    shown = FigureGrid([Figure(drawing, caption), Facts(numbers)])
    return PageSection("Whiteness of the images", "whiteness", [shown])


def not_whitened(history: History) -> PageSection:
    """Return the spectrum of images that are not whitened."""
    said = Paragraph(
        "The images are not whitened: the recipe has data.whiten = false. Their power falls with frequency "
        "and their colours are correlated, as usual for photographs."
    )
    spectrum = _Spectrum.from_event(history.whiteness)
    if spectrum is None:
        return PageSection("Spectrum of the images", "whiteness", [said])
    drawn = Figure(spectrum.plot([]), f"Radial power spectrum of {spectrum.image_set}, not whitened.")
    shown = FigureGrid([drawn, Facts(spectrum.facts())])
    return PageSection("Spectrum of the images", "whiteness", [said, shown])


@dataclass(frozen=True)
class _Spectrum:
    """Content of the `whiteness` event: (cycles per pixel, decibels) and further fields."""

    points: list[tuple[float, float]]
    band: tuple[float, float]
    event: Event

    @classmethod
    def from_event(cls, event: Event) -> _Spectrum | None:
        """Return the spectrum of an event; None if the event is missing or damaged."""
        radial, frequencies, band = event.get("radial"), event.get("frequencies"), event.get("band")
        if not (isinstance(radial, list) and isinstance(frequencies, list) and isinstance(band, list)):
            return None
        low, high = (float(edge) for edge in band)
        return cls(list(zip(frequencies, radial, strict=True)), (low, high), event)

    @property
    def image_set(self) -> str:
        """Images that were measured; training images if none are kept for validation."""
        return (
            "training images (none are kept for validation)"
            if self.event.get("split") == "train"
            else "validation images"
        )

    def plot(self, bands: Sequence[Band]) -> Drawing:
        """Return a plot of the spectrum down to -25 dB; the filter removes what is below."""
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
        """Return the correlation of colours and the number of images."""
        correlation, images = number(self.event, "colour_correlation"), number(self.event, "images")
        found = [] if correlation is None else [("Largest correlation of two colours", f"{correlation:.3f}")]
        return found + ([] if images is None else [("Images measured", count(images))])


def speed(history: History, word: str) -> PageSection | None:
    """Return samples and FLOPs per second over the run, and the time spent waiting for samples."""
    figures = []
    for name, label, identity in (
        ("samples_per_second", f"{word}/s", "samples"),
        ("gflops", "GFLOP/s", "gflops"),
    ):
        lines = []
        for phase_number in sorted(history.phases):
            pace = history.phases[phase_number].rates.get(name)
            if pace:
                lines.append(_rate_line(f"stack {phase_number + 1}", pace, phase_number))
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


def _rate_line(label: str, sessions: Mapping[int, Curve], colour: int) -> Line:
    """Return a rate against seconds of training, with a gap where the run paused."""
    x, y, alone = list[float](), list[float](), False
    for curve in sessions.values():
        if curve:
            at, values = thin_curve(curve)
            x += [*([nan] if x else []), *(milliseconds / 1000 for milliseconds in at)]
            y += [*([nan] if y else []), *values]
            alone = alone or len(at) == 1
    return Line(label, x, y, colour=colour, dots=alone)


def totals_section(history: History, run: str, checkpoints: Sequence[int]) -> PageSection:
    """Return totals and cost of a run; ``checkpoints`` are the steps of the saved ones."""
    end = history.end
    if not end:
        text = "Training has not ended; the account is written at its end. To see it then, run"
        missing = Missing(text, f"cotswold report {run}")
        return PageSection("Account", "account", [missing, *_resume_note(history)])
    items = []
    spread = history.counts_evaluations or history.counts_samples
    sender = "Sent by the coordinator" if spread else "Sent between ranks"
    for name, label, shown in (
        ("samples", "Samples seen", count),
        ("flops", "FLOPs, forward and gradient", lambda value: scaled(value, "FLOP")),
        ("training_seconds", "Time of training", duration),
        ("seconds", "Time of the run, including start-up", duration),
        ("flops_per_second", "Rate", lambda value: scaled(value, "FLOP/s")),
        ("wire_bytes", sender, lambda value: scaled(value, "B")),
        ("staleness", "Staleness, updates", three_figures),
        (
            "cents_per_mflops",
            "Price of bought hardware",
            lambda value: f"{three_figures(value)} ¢ per MFLOP/s",
        ),
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
        items.append(("Extended to", f"{totals} epochs"))
    if history.lost_seconds:
        said = (
            f"the first {duration(history.lost_seconds)} of training, which ended before the first checkpoint"
        )
        items.append(("Lost", said))
    priced = number(end, "cents_per_mflops") is not None or number(end, "dollars") is not None
    blocks: list[Block] = [Facts(items), *_resume_note(history)]
    if not priced:
        blocks.append(Paragraph("The recipe has no price ([price]), so no cost is computed.", "note"))
    return PageSection("Account", "account", blocks)


def _resume_note(history: History) -> list[Paragraph]:
    """Return a paragraph if the run does not guarantee an exact resume."""
    note = str(history.start.get("resume_note") or "")
    return [Paragraph(f"{note[:1].upper()}{note[1:]}.", "note")] if note else []
