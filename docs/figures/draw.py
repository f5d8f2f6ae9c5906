"""Draws the processes of a run, and a failover from its transcript: ``python -m docs.figures.draw``.

Knows: SVG, the processes and their messages, lines of `tests/chaos/transcripts/failover.txt`. Does not know:
the code that sends the messages.

Each drawing has its own background, and a second set of colours for dark schemes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import NamedTuple

FIGURES = Path(__file__).parent
TRANSCRIPT = FIGURES.parents[1] / "tests" / "chaos" / "transcripts" / "failover.txt"

_STYLE = """
  text { font-family: system-ui, sans-serif; font-size: 14px; fill: #1a1a1a; }
  .heading { font-weight: 600; }
  .small { font-size: 12px; fill: #404040; }
  .middle { text-anchor: middle; }
  .end { text-anchor: end; }
  .panel { fill: #fafafa; stroke: #bfbfbf; }
  .compute { fill: #e2f0d9; stroke: #5b7a45; }
  .server { fill: #fbe5d6; stroke: #a0663a; }
  .data { fill: #fff2cc; stroke: #8a7420; }
  .run { fill: #dbe9f6; stroke: #46698c; }
  .group { fill: none; stroke: #8c8c8c; stroke-dasharray: 5 4; }
  .line { fill: none; stroke: #404040; stroke-width: 1.4; }
  .lost { stroke-dasharray: 4 4; }
  .life { stroke: #a6a6a6; stroke-width: 1; }
  .cross { stroke: #b3261e; stroke-width: 3; }
  .head { fill: #404040; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e8e8e8; }
    .small { fill: #c4c4c4; }
    .panel { fill: #1f2227; stroke: #4d535c; }
    .compute { fill: #2b3d26; stroke: #8fb378; }
    .server { fill: #47301f; stroke: #d09a6c; }
    .data { fill: #423a1a; stroke: #c9b04e; }
    .run { fill: #22354a; stroke: #86abd1; }
    .group { stroke: #8c939c; }
    .line { stroke: #c4c4c4; }
    .life { stroke: #6a717b; }
    .cross { stroke: #f2857c; }
    .head { fill: #c4c4c4; }
  }
"""


@dataclass
class Drawing:
    """An SVG drawing; lengths are in pixels from the upper left corner."""

    width: int
    height: int
    title: str
    description: str
    _parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, width: int, height: int, kind: str, lines: Sequence[str]) -> None:
        """Add a box with a heading and lines of small text, centred."""
        self._parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>')
        top = y + (height - 17 * len(lines)) / 2 + 13
        for number, line in enumerate(lines):
            style = "small middle" if number else "heading middle"
            self.text(x + width / 2, top + 17 * number, line, style)

    def text(self, x: float, y: float, words: str, style: str = "") -> None:
        """Add one line of text."""
        self._parts.append(f'<text class="{style}" x="{x:g}" y="{y:g}">{escape(words)}</text>')

    def line(self, points: Sequence[tuple[float, float]], style: str = "line", ends: str = "") -> None:
        """Add a line through points; ``ends``: `end` or `both` for arrow heads."""
        heads = {"": "", "end": ' marker-end="url(#head)"'}
        heads["both"] = heads["end"] + ' marker-start="url(#head)"'
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path class="{style}" d="{path}"{heads[ends]}/>')

    def svg(self) -> str:
        """Return the drawing as text."""
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(self.title)}</title>',
            f'<desc id="desc">{escape(self.description)}</desc>',
            f"<style>{_STYLE}</style>",
            '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"'
            ' orient="auto-start-reverse"><path class="head" d="M0 0 10 5 0 10z"/></marker>',
            f'<rect class="panel" x="1" y="1" width="{self.width - 2}" height="{self.height - 2}" rx="8"/>',
            *self._parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def processes() -> str:
    """Return the drawing of all processes of runs, and their messages."""
    it = Drawing(
        960,
        650,
        "Processes of a run, and their messages",
        "In the middle: the processes that compute. Above them: the command that starts and coordinates "
        "them, the run directory and monitoring. On the left: data servers, which send samples. On the "
        "right: parameter servers with copies, their controllers and the metadata store.",
    )
    it.box(
        345,
        24,
        270,
        76,
        "run",
        ["cotswold train, cotswold serve", "coordinator: optimiser, schedule,", "ledger of samples"],
    )
    it.box(704, 24, 236, 76, "run", ["Run directory", "recipe, events, checkpoints,", "logs, report"])
    it.box(20, 24, 236, 76, "run", ["Monitoring", "cotswold why, cotswold report,", "Prometheus, loggers"])
    it.line([(615, 62), (702, 62)], ends="end")
    it.text(658, 55, "writes", "small middle")
    it.line([(345, 62), (258, 62)], ends="end")
    it.text(301, 55, "status", "small middle")

    it.line([(440, 100), (440, 166)], ends="end")
    it.text(430, 129, "portions, samples,", "small end")
    it.text(430, 145, "rates, checkpoints", "small end")
    it.line([(520, 168), (520, 102)], ends="end")
    it.text(530, 129, "heartbeats,", "small")
    it.text(530, 145, "losses, counts", "small")

    it.box(330, 168, 300, 414, "group", [])
    it.text(480, 190, "Processes that compute", "heading middle")
    it.box(
        345,
        204,
        270,
        84,
        "compute",
        ["Ranks of a grid", "greedy, joint, supervised", "exchange halos and sums"],
    )
    it.box(345, 300, 270, 62, "compute", ["Workers", "batch: sums over portions"])
    it.box(345, 374, 270, 62, "compute", ["Replicas", "downpour: one process or several ranks"])
    it.box(345, 448, 270, 52, "compute", ["Loops of your own", "cotswold.connect"])
    it.box(345, 512, 270, 58, "compute", ["Evaluator", "validates pulled parameters"])

    it.box(20, 250, 206, 56, "data", ["Head of the pool", "lists servers and trainers"])
    it.box(
        20, 346, 206, 74, "data", ["Data servers", "decode, cache and augment;", "any of them may be killed"]
    )
    it.line([(123, 308), (123, 344)], ends="both")
    it.line([(226, 383), (328, 383)], ends="end")
    it.text(277, 375, "samples", "small middle")
    it.line([(330, 408), (228, 408)], ends="end")
    it.text(277, 424, "row numbers", "small middle")

    it.box(704, 206, 236, 60, "server", ["Parameter server", "primary of some buckets"])
    it.box(704, 318, 112, 56, "server", ["Server", "secondary"])
    it.box(828, 318, 112, 56, "server", ["Server", "secondary"])
    it.line([(772, 266), (760, 316)], ends="end")
    it.line([(872, 266), (884, 316)], ends="end")
    it.text(822, 297, "changes", "small middle")
    it.line([(632, 330), (667, 330), (667, 224), (702, 224)], ends="end")
    it.text(662, 345, "push", "small middle")
    it.line([(704, 250), (684, 250), (684, 402), (632, 402)], ends="end")
    it.text(662, 417, "pull", "small middle")

    it.box(704, 432, 236, 60, "server", ["Controllers", "one leads: placement, elections"])
    it.line([(760, 430), (760, 376)], ends="end")
    it.text(752, 400, "leases,", "small end")
    it.text(752, 415, "roles", "small end")
    it.line([(884, 376), (884, 430)], ends="end")
    it.text(876, 408, "heartbeats", "small end")
    it.box(704, 530, 236, 52, "server", ["Metadata store", "SQLite, or etcd on several hosts"])
    it.line([(822, 494), (822, 528)], ends="both")
    it.text(
        480,
        616,
        "A run uses the parts that its strategy needs. "
        "Each part may be one process of this machine, or many on several hosts.",
        "small middle",
    )
    return it.svg()


class Step(NamedTuple):
    """One line of the transcript."""

    second: str
    sender: str
    receiver: str
    words: str


ACTORS = {"replica 0": 150, "a": 320, "b": 490, "c": 660, "controller 2": 840}
"""Processes of the drawing, and their horizontal positions."""
_LINE = re.compile(r" *([\d.]+) s  (?:(.+?) → (.+?): |(written down): |(a) is killed)(?:bucket 0)?(.*)")
_WORDS = (
    (r".*update (\d+) of session \d+, samples .*", r"push: update \1"),
    (r".*prepare .*, to index (\d+)", r"prepare index \1"),
    (r".*: has index (\d+)", r"has index \1"),
    (r".*take part in no term below (\d+)", r"fence below term \1"),
    (r".*fenced for term \d+, with index (\d+)", r"fenced, has index \1"),
    (r".*term (\d+): primary (\w); secondaries (\w)", r"term \1: primary \2"),
    (r".*update (\d+) of session \d+ is applied; versions \{0: (\d+).*", r"update \1 is applied: version \2"),
)


def steps(transcript: str) -> Iterator[Step]:
    """Yield the messages from the first push of an update to the reply that it is applied."""
    pushed = False
    for line in transcript.splitlines():
        found = _LINE.fullmatch(line)
        pushed = pushed or "update 1 of session 1, samples" in line
        if not found or not pushed:
            continue
        second, sender, receiver, commit, killed, rest = found.groups()
        if killed:
            yield Step(second, killed, killed, "is killed")
            continue
        words = next((re.sub(old, new, rest) for old, new in _WORDS if re.fullmatch(old, rest)), None)
        if words is None:
            raise ValueError(f"the drawing has no words for {line!r}; add them to _WORDS")
        yield Step(second, sender or "controller 2", receiver or "controller 2", words)
        if "is applied" in words and not commit:
            return


def failover(transcript: str) -> str:
    """Return the sequence of a failover, drawn from the transcript of the simulation."""
    rows = list(steps(transcript))
    top, gap = 92, 30
    it = Drawing(
        960,
        top + gap * len(rows) + 40,
        "A failover, message by message",
        "A replica pushes an update to the primary a. The primary sends the change to the secondaries b and "
        "c and is killed. The controller fences b and c, makes b the primary of term 2, and the replica "
        "pushes the same update to b, which replies that it is applied once.",
    )
    bottom = top + gap * len(rows)
    kill = next((number for number, row in enumerate(rows) if row.words == "is killed"), len(rows))
    for name, x in ACTORS.items():
        kind = "compute" if name.startswith("replica") else "server"
        it.line([(x, 66), (x, top + gap * kill - 4 if name == "a" else bottom)], "life")
        role = {"a": "server a: primary", "b": "server b", "c": "server c"}.get(name, name)
        it.box(x - 74, 34, 148, 32, kind, [role])
    it.text(20, 56, "seconds", "small")
    for number, (second, sender, receiver, words) in enumerate(rows):
        y = top + gap * number
        start, end = ACTORS[sender], ACTORS[receiver]
        it.text(20, y + 4, second, "small")
        if words == "is killed":
            it.line([(start - 8, y - 8), (start + 8, y + 8)], "cross")
            it.line([(start - 8, y + 8), (start + 8, y - 8)], "cross")
            it.text(start + 16, y + 4, "a is killed", "small")
        elif start == end:
            it.box(start - 92, y - 12, 184, 24, "run", [])
            it.text(start, y + 4, f"commits {words}", "small middle")
        else:
            is_lost = receiver == "a" and number > kill
            space = 2 if end > start else -2
            it.line([(start, y), (end - space, y)], "line lost" if is_lost else "line", ends="end")
            beside = start + (8 if end > start else -8)
            style = "small" if end > start else "small end"
            it.text(beside, y - 5, words + (" (lost)" if is_lost else ""), style)
    it.text(
        20,
        bottom + 20,
        "Times are those of the simulated network, in which the dead process is reported after 50 ms.",
        "small",
    )
    return it.svg()


def drawings() -> dict[str, str]:
    """Return every drawing by the name of its file."""
    return {
        "processes.svg": processes(),
        "failover.svg": failover(TRANSCRIPT.read_text(encoding="utf-8")),
    }


if __name__ == "__main__":
    for name, text in drawings().items():
        (FIGURES / name).write_text(text, encoding="utf-8")
