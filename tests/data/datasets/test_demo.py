from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from cotswold.data import open_source, write_demo
from cotswold.data.datasets.demo import CropSource
from cotswold.errors import MissingExtraError, SourceError, UserError

needs_demo = pytest.mark.skipif(
    importlib.util.find_spec("skimage") is None or importlib.util.find_spec("sklearn") is None,
    reason="needs scikit-image and scikit-learn",
)


@needs_demo
def test_the_demo_is_the_same_every_time_and_reads_nothing_but_files() -> None:
    demo, again = open_source("builtin:demo"), open_source("builtin:demo")
    assert demo.identity == again.identity and len(demo) == 5000
    for index in range(0, 5000, 499):
        assert (np.asarray(demo.read(index)) == np.asarray(again.read(index))).all()
    assert "skimage" not in sys.modules or "pooch" not in sys.modules


@needs_demo
def test_the_test_faces_are_other_people_and_the_distractors_other_patches() -> None:
    sources = [open_source(f"builtin:{name}") for name in ("demo", "demo-faces", "demo-distractors")]
    patches = []
    for source in sources:
        assert isinstance(source, CropSource)
        patches.append({crop.patch for crop in source._crops if crop.patch is not None})
    demo, faces, others = patches
    assert demo == {*range(50), *range(100, 150)}
    assert faces == set(range(50, 100)) and others == set(range(150, 200))
    assert len(sources[1]) == 50 and len(sources[2]) == 150
    assert {sources[n].read(i).size for n in (1, 2) for i in range(50)} == {(96, 96)}
    assert {sources[n].read(i).mode for n in (1, 2) for i in range(50)} == {"L"}


@needs_demo
def test_parts_of_the_demo_can_be_chosen_by_name() -> None:
    assert len(open_source("builtin:demo", include=["face/*"])) == 600
    assert len(open_source("builtin:demo", exclude=["face/*"])) == 4400


def test_an_unknown_builtin_set_is_named_with_those_that_there_are() -> None:
    with pytest.raises(SourceError, match="builtin:demo-faces"):
        open_source("builtin:dmeo")


def test_without_the_packages_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[demo\]"):
        open_source("builtin:demo-faces").read(0)


@needs_demo
def test_the_built_in_sets_can_be_written_as_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"builtin:demo-faces", "builtin:demo-distractors"}
    from cotswold.data.datasets import demo as synthetic

    monkeypatch.setattr(synthetic, "BUILTIN", {n: c for n, c in synthetic.BUILTIN.items() if n in few})
    assert write_demo(tmp_path / "out") == {"demo-faces": 50, "demo-distractors": 150}
    folder, builtin = open_source(tmp_path / "out" / "demo-faces"), open_source("builtin:demo-faces")
    assert len(folder) == 50
    assert (np.asarray(folder.read(4)) == np.asarray(builtin.read(4))).all()
    with pytest.raises(UserError, match="already exists"):
        write_demo(tmp_path / "out")
    killed = sorted((tmp_path / "out" / "demo-faces").rglob("*.png"))
    content = killed[0].read_bytes()
    killed[1].rename(f"{killed[1]}.partial")
    for path in (killed[0], *killed[2:9]):
        path.unlink()
    kept = killed[10].stat().st_mtime_ns
    assert write_demo(tmp_path / "out") == {"demo-faces": 50, "demo-distractors": 150}
    assert sorted((tmp_path / "out" / "demo-faces").rglob("*.*")) == killed
    assert killed[0].read_bytes() == content and killed[10].stat().st_mtime_ns == kept
    killed[0].unlink()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="already exists"):
        write_demo(tmp_path / "out")
