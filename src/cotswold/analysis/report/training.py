"""Sections on how training went: curves, whiteness, speed, accounts.

Knows: the history of a run. Does not know: networks, evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cotswold.analysis.plots import Band, Line, plot
from cotswold.analysis.report.history import Curve, History, Phase, number
from cotswold.analysis.report.words import (
    count,
    duration,
    facts,
    figure,
    grid,
    missing,
    paragraph,
    percent,
    plain,
    scaled,
    section,
)
from cotswold.run import Event

_POINTS = 240  # more than a plot of this width can show


def curves(history: History, supervised: bool) -> str:
    """Objective of every stack, or loss and accuracy of a supervised run: training and held out."""
    figures = []
    for phase_number, phase in sorted(history.phases.items()):
        if supervised:
            figures += [
                _curve(phase, "loss", "loss", "loss"),
                _curve(phase, "accuracy", "accuracy", "accuracy"),
            ]
        else:
            figures.append(_objective(phase_number, phase, alone=len(history.phases) == 1))
    drawn = [drawing for drawing in figures if drawing]
    if not drawn:
        return section(
            "Learning", paragraph("Nothing has been learnt yet: no step is in the log."), "learning"
        )
    return section("Learning", grid(drawn) + _what_is_shown(supervised), "learning")


def _what_is_shown(supervised: bool) -> str:
    if supervised:
        return paragraph(
            "Training values are means since the point before; held-out ones are over all pictures.", "note"
        )
    return paragraph(
        "Objective (1) of Coates et al. 2013 per picture: squared error of reconstruction plus λ times the "
        "pooled responses. The training curve is taken under the λ of the moment, which rises over the first "
        "part of a stack ([objective] ramp); held-out values use the full λ throughout, so the two can be "
        "compared only after it. The first held-out point is the random stack with its gain and α set, "
        "before any step.",
        "note",
    )


def _objective(phase_number: int, phase: Phase, alone: bool) -> str:
    name = "All stacks" if alone and "stacks" in phase.facts else f"Stack {phase_number + 1}"
    held_out = phase.validation.get("loss", Curve())
    caption = name
    if len(held_out.values) > 1 and held_out.values[0] > 0:
        first, last = held_out.values[0], held_out.values[-1]
        sign, change = "+" if last > first else "−", percent(abs(last / first - 1))
        caption += f": held-out objective {plain(first)} → {plain(last)} ({sign}{change})"
    return _curve(phase, "loss", "objective", f"objective-{phase_number}", caption)


def _curve(phase: Phase, name: str, label: str, identity: str, caption: str | None = None) -> str:
    training, held_out = phase.training.get(name, Curve()), phase.validation.get(name, Curve())
    lines = []
    if training:
        lines.append(Line("training", *_thinned(training)))
    if held_out:
        lines.append(Line("held out", held_out.steps, held_out.values, colour=1, dots=True))
    if not lines:
        return ""
    if caption is None:
        caption = label.capitalize()
        if held_out:
            last = held_out.values[-1]
            caption += f", held out at the end {percent(last) if name == 'accuracy' else plain(last)}"
    return figure(plot(identity, lines, x="step", y=label), caption)


def _thinned(curve: Curve) -> tuple[list[int], list[float]]:
    """At most so many points as can be seen: means of neighbours."""
    steps, values = curve.steps, curve.values
    stride = -(-len(steps) // _POINTS)
    starts = range(0, len(steps), stride)
    means = [sum(values[s : s + stride]) / len(values[s : s + stride]) for s in starts]
    return [steps[min(s + stride, len(steps)) - 1] for s in starts], means


def whiteness(history: History) -> str:
    """Spectrum and colour correlation of held-out whitened pictures, against what is asked of them."""
    spectrum = _Spectrum.of(history.whiteness)
    if spectrum is None:
        return ""
    low, high = spectrum.band
    drawing = spectrum.drawn([Band(low, high, "flat band"), Band(-1, 1, "±1 dB", "y")])
    inside = [abs(p) for f, p in spectrum.points if low - 1e-9 <= f <= high + 1e-9]
    numbers = [("Greatest deviation in the band", f"{plain(max(inside))} dB")] if inside else []
    numbers += [*spectrum.facts(), ("Band", f"{low:.3f} to {high:.3f} cycles per pixel")]
    caption = f"Radial power spectrum of {spectrum.which}, relative to its mean in the band."
    return section("Whiteness of the pictures", grid([figure(drawing, caption), facts(numbers)]), "whiteness")


def not_whitened(history: History) -> str:
    """The same of pictures that the recipe leaves as they are: nothing is asked of them."""
    said = paragraph(
        "The pictures are not whitened: the recipe has data.whiten = false. Their power falls with frequency "
        "and their colours go together, as is usual for photographs."
    )
    spectrum = _Spectrum.of(history.whiteness)
    if spectrum is None:
        return section("Spectrum of the pictures", said, "whiteness")
    drawn = figure(spectrum.drawn([]), f"Radial power spectrum of {spectrum.which}, not whitened.")
    return section("Spectrum of the pictures", said + grid([drawn, facts(spectrum.facts())]), "whiteness")


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
        """The pictures that were measured; a set too small to hold any out is measured on its own."""
        return (
            "training pictures (none are held out)"
            if self.event.get("split") == "train"
            else "held-out pictures"
        )

    def drawn(self, bands: Sequence[Band]) -> str:
        """The spectrum down to -25 dB: below lies what the filter took out."""
        shown = [(f, p) for f, p in self.points if p > -25]
        return plot(
            "whiteness",
            [Line("power", [f for f, _ in shown], [p for _, p in shown], dots=True)],
            x="frequency (cycles per pixel)",
            y="power (dB)",
            bands=bands,
            bottom=min(-3.0, *(p for _, p in shown)) if shown else None,
            top=max(3.0, *(p for _, p in shown)) if shown else None,
        )

    def facts(self) -> list[tuple[str, str]]:
        """The correlation of colours and the number of pictures."""
        correlation, pictures = number(self.event, "colour_correlation"), number(self.event, "pictures")
        found = [] if correlation is None else [("Greatest correlation of two colours", f"{correlation:.3f}")]
        return found + ([] if pictures is None else [("Pictures measured", count(pictures))])


def speed(history: History) -> str:
    """Pictures and FLOPs a second over the time of the run, and the time waited for pictures."""
    figures = []
    for name, label, identity in (
        ("pictures_per_second", "pictures/s", "pictures"),
        ("gflops", "GFLOP/s", "gflops"),
    ):
        lines = []
        for phase_number in sorted(history.phases):
            pace = history.phases[phase_number].paces.get(name)
            if pace:
                at, y = _thinned(pace)
                x = [milliseconds / 1000 for milliseconds in at]
                lines.append(Line(f"stack {phase_number + 1}", x, y, colour=phase_number))
        if lines:
            drawing = plot(identity, lines, x="seconds of training", y=label, bottom=0)
            figures.append(figure(drawing, label[0].upper() + label[1:]))
    if not figures:
        return ""
    waited, trained = history.waited_seconds, history.interval_seconds
    note = ""
    if trained > 0:
        note = paragraph(
            f"Waiting for pictures took {duration(waited)} of {duration(trained)} of training "
            f"({percent(waited / trained, 2)})."
        )
    return section("Speed", grid(figures) + note, "speed")


def accounts(history: History, run: str) -> str:
    """What was done and what it cost."""
    end = history.end
    if not end:
        text = "Training has not ended; the account is written when it does. To see it then, run"
        return section("Account", missing(text, f"cotswold report {run}"), "account")
    items = []
    for name, label, shown in (
        ("samples", "Samples (pictures seen)", count),
        ("flops", "FLOPs, forward and gradient", lambda value: scaled(value, "FLOP")),
        ("training_seconds", "Time of training", duration),
        ("flops_per_second", "Rate", lambda value: scaled(value, "FLOP/s")),
        ("wire_bytes", "Sent between ranks", lambda value: scaled(value, "B")),
        ("staleness", "Staleness, updates", plain),
        ("cents_per_mflops", "Price of bought hardware", lambda value: f"{plain(value)} ¢ per MFLOP/s"),
        ("dollars", "Rent of this run", lambda value: f"${value:.2f}" if value >= 0.01 else f"${value:.4f}"),
    ):
        value = number(end, name)
        if value is not None:
            items.append((label, shown(value)))
    items.append(("Status", str(end.get("status", "unknown"))))
    if history.resumptions:
        items.append(("Resumed", f"{history.resumptions} times" if history.resumptions > 1 else "once"))
    priced = number(end, "cents_per_mflops") is not None or number(end, "dollars") is not None
    note = "" if priced else paragraph("No price is in the recipe ([price]), so no money is counted.", "note")
    return section("Account", facts(items) + note, "account")
