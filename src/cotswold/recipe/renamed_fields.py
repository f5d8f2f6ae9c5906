"""The words of recipes that had other names up to format 2.

Knows: which field of which table is called what today, and which fields meant nothing for a strategy. Does
not know: files, types of values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Table = dict[str, Any]

_STACKS = ("greedy", "joint")


@dataclass(frozen=True)
class Word:
    """A field ``old`` of a table that is called ``new`` today, where the table's ``strategy`` or ``type`` is
    one of ``kinds`` (empty for all, "" for a table that says none); ``values`` are those that are called
    otherwise as well."""

    table: str
    old: str
    new: str
    kinds: tuple[str, ...] = ()
    values: Mapping[object, object] = field(default_factory=dict)

    def is_in(self, table: Table) -> bool:
        """Whether a table holds the old word."""
        if self.old not in table or (self.kinds and (kind_of(table) or "") not in self.kinds):
            return False
        return self.old != self.new or self._known(table[self.old])

    def change(self, table: Table) -> None:
        """Write today's word, in the old one's place among the others."""
        items = list(table.items())
        table.clear()
        for name, value in items:
            table[self.new if name == self.old else name] = (
                self.values[value] if name == self.old and self._known(value) else value
            )

    def _known(self, value: object) -> bool:
        return isinstance(value, str | bool) and value in self.values

    def said(self, values: Table) -> str:
        """Every place of the old word in a recipe, and today's: `training.batch is training.batch_size now`,
        `network.layers.0.field (local) and network.layers.2.field (convolution) are kernel_size now`."""
        is_value = self.old == self.new
        if self.table in _LISTS:
            places, new = self._places(values, with_kind=not is_value), self.new
        else:
            places, new = [f"{self.table}.{self.old}"], f"{self.table}.{self.new}"
        verb = "is" if len(places) == 1 else "are"
        if is_value:
            ((old, today),) = self.values.items()
            return f'{_listed(places)} "{old}" {verb} "{today}" now'
        return f"{_listed(places)} {verb} {new} now"

    def _places(self, values: Table, *, with_kind: bool) -> list[str]:
        """The old word in each table of a list, such as `network.layers.0.field (local)`."""
        found = []
        for number, table in enumerate(_tables_or_none(values, self.table)):
            if table is not None and self.is_in(table):
                kind = kind_of(table) if with_kind else None
                found.append(f"{self.table}.{number}.{self.old}" + (f" ({kind})" if kind else ""))
        return found


WORDS = (
    Word("training", "batch", "batch_size", ("", *_STACKS, "supervised")),
    Word("training", "rate", "relative_rate", _STACKS),
    Word("training", "rate", "learning_rate", ("supervised",)),
    Word("training", "decay", "weight_decay", ("supervised",)),
    Word("network.stacks", "step", "stride"),
    Word("network.stacks", "maps", "channels"),
    Word("network.stacks", "keep", "smoothing_padding", values={True: "same", False: "valid"}),
    Word("network.stacks", "rate", "relative_rate"),
    Word("network.layers", "units", "features", ("full", "linear")),
    Word("network.layers", "type", "type", values={"full": "linear"}),
    Word("network.layers", "field", "kernel_size", ("local", "convolution")),
    Word("network.layers", "size", "kernel_size", ("pool",)),
    Word("network.layers", "step", "stride", ("local", "convolution", "pool")),
    Word("objective", "loss", "loss", values={"softmax": "cross_entropy"}),
    Word("mesh", "patience", "timeout"),
)
"""In the order in which they are changed: a layer's ``units`` before its ``type``."""

_LISTS = {"network.stacks", "network.layers"}
_PLACES_SHOWN = 20
_IDLE: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    **{name: {"training": {"decay": 0.0}, "objective": {"loss": ...}} for name in _STACKS},
    "supervised": {
        "training": {"offload": "none"},
        "objective": dict.fromkeys(("sparsity", "ramp", "epsilon"), ...),
    },
}
"""Fields that a strategy did not use, which every written recipe had: that value, or any."""


def old_words(values: Table) -> list[Word]:
    """The old words that a recipe uses."""
    return [word for word in WORDS if any(word.is_in(table) for table in _tables(values, word.table))]


def new_words(values: Table) -> list[str]:
    """The words of today that a recipe uses in place of old ones, dotted."""
    return [
        f"{word.table}.{word.new}"
        for word in WORDS
        if word.old != word.new and any(word.new in table for table in _tables(values, word.table))
    ]


def renew(values: Table) -> None:
    """Change all old words into today's, in place; fields that the strategy never used go."""
    for word in WORDS:
        for table in _tables(values, word.table):
            if word.is_in(table):
                word.change(table)
    for training in _tables(values, "training"):
        for name, idle in _IDLE.get(str(kind_of(training)), {}).items():
            for table in _tables(values, name):
                for key, value in idle.items():
                    if key in table and value in (..., table[key]):
                        del table[key]


def today(path: Sequence[str], kinds: Sequence[str]) -> str | None:
    """What the field of this path is called today, if it had another name; ``kinds`` are the strategy or
    type of its table."""
    *above, key = path
    table = ".".join(name for name in above if not name.isdigit())
    for word in WORDS:
        named = (word.table, word.old) == (table, key) and word.new != key
        if named and (not word.kinds or {*word.kinds} & {*kinds}):
            return ".".join((*above, word.new))
    return None


def kind_of(table: Table) -> object:
    """What a table says it is."""
    found = table.get("strategy", table.get("type"))
    return found if isinstance(found, str) else None


def _tables(values: Table, dotted: str) -> Iterator[Table]:
    """The tables of a name, as far as they are any."""
    return (each for each in _tables_or_none(values, dotted) if each is not None)


def _tables_or_none(values: Table, dotted: str) -> Iterator[Table | None]:
    """Everything that stands where tables of a name should be; None for what is no table."""
    found: object = values
    for name in dotted.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    for each in found if isinstance(found, list) else [found]:
        yield each if isinstance(each, dict) else None


def _listed(places: Sequence[str]) -> str:
    """Places in a sentence, of many the first."""
    if len(places) > _PLACES_SHOWN:
        return f"{', '.join(places[:_PLACES_SHOWN])} and {len(places) - _PLACES_SHOWN} more"
    return " and ".join([", ".join(places[:-1]), places[-1]] if len(places) > 1 else places)
