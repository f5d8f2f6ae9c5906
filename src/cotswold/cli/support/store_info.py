"""Output of `cotswold info` for a store.

Knows: the wording. Does not know: how a store is read.
"""

from __future__ import annotations

from cotswold.cli.support.json_output import print_json
from cotswold.ui.terminal import printable


def show_store(path: str, as_json: bool) -> None:
    """Print the contents of a store and its preprocessing."""
    from cotswold.data import Store
    from cotswold.data.sources.base import samples_noun

    store = Store(path)
    said = store.describe()
    if as_json:
        print_json("info.store", {"path": path, **said})
        return
    print(f"{path}: a store of {samples_noun(store.kind)}")
    for name, value in said.items():
        if name not in ("kind", "notes"):
            print(f"{name.replace('_', ' ')}: {_one_line(value)}")
    for note in said["notes"]:  # type: ignore[attr-defined]  # a list of texts
        print(printable(note))


def _one_line(value: object) -> str:
    """Return a value as one line."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_one_line(each)}" for name, each in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        more = f", ... ({len(value)})" if len(value) > 10 else ""
        return printable(", ".join(map(str, value[:10]))) + more
    return f"{value:,}" if isinstance(value, int) else str(value)
