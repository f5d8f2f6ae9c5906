"""What `cotswold info` says of a store.

Knows: the words. Does not know: how a store is read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.cli.progress import printable

if TYPE_CHECKING:
    from cotswold.data import Store


def is_store(name: str) -> bool:
    """Whether a name is that of a folder with a store in it."""
    return (Path(name).expanduser() / "manifest.json").is_file()


def show_store(path: str, as_json: bool) -> None:
    """Print what a store holds and how it was prepared."""
    from cotswold.data import Store

    said = described(Store(path))
    if as_json:
        print(json.dumps({"path": path, **said}, indent=1))
        return
    print(f"{path}: a store of {said['kind']}")
    for name, value in said.items():
        if name not in ("kind", "notes"):
            print(f"{name.replace('_', ' ')}: {_shown(value)}")
    for note in said["notes"]:  # type: ignore[attr-defined]  # a list of texts
        print(printable(note))


def described(store: Store) -> dict[str, object]:
    """What a store holds, as JSON can keep it."""
    preparation = store.transform.preparation
    lengths = {split: store.lengths(split) for split in store.splits}
    sequences = {split: len(each) for split, each in lengths.items() if each is not None}
    return {
        "kind": store.kind,
        "shape": str(store.shape),
        "splits": store.splits,
        **({"sequences": sequences} if sequences else {}),
        **({"classes": list(store.classes)} if store.classes else {}),
        **({"numbers_to_predict": store.targets} if store.targets else {}),
        "preparation": {name: value for name, value in preparation.state().items() if name != "kind"},
        "bytes": sum(path.stat().st_size for path in (store.path / key for key in store.files)),
        "identity": store.identity,
        "notes": list(store.notes),
    }


def _shown(value: object) -> str:
    """A value in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        more = f", ... ({len(value)})" if len(value) > 10 else ""
        return printable(", ".join(map(str, value[:10]))) + more
    return f"{value:,}" if isinstance(value, int) else str(value)
