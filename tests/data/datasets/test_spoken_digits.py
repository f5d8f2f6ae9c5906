from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cotswold.data import Store, VectorPreparation, open_samples, open_source, open_vectors, prepare
from cotswold.data.datasets.log_mel import frames_of, log_mel
from cotswold.errors import MissingExtraError, SourceError

soundfile = pytest.importorskip("soundfile", reason="needs soundfile, the extra `speech`")
SPEAKERS = ("ann", "ben", "cy", "dot")


def tone(hertz: float, seconds: float, rate: int = 8000) -> NDArray[np.float64]:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def recording(digit: int, number: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, tone(300 + 300 * digit, 0.2 + 0.05 * number), 8000, format="FLAC")
    return file.getvalue()


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    path = tmp_path / "digits.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for digit in (0, 7):
            for speaker in SPEAKERS:
                for number in (0, 1):
                    archive.writestr(f"recordings/{digit}_{speaker}_{number}.flac", recording(digit, number))
        archive.writestr("README.md", "spoken digits")
    return path


def test_recordings_are_sequences_of_frames_of_40_bands(zipped: Path) -> None:
    source = open_samples(zipped, labels="file")
    assert (source.kind, source.features) == ("frames", 40)  # type: ignore[union-attr]  # these are frames
    assert source.lengths is not None and source.lengths.tolist() == [18, 23] * 8
    assert len(source.classes) == 30 and source.classes[21] == "7 1/3"


def test_states_are_thirds_of_each_digit(zipped: Path) -> None:
    labels = open_vectors(zipped, "frames", labels="file").labels(np.arange(18 + 23))
    assert np.bincount(labels[:18]).tolist() == [6, 6, 6]
    assert np.bincount(labels[18:]).tolist() == [8, 8, 7]
    assert (np.diff(labels[:18]) >= 0).all()


def test_the_last_two_speakers_are_held_out(zipped: Path) -> None:
    source = open_vectors(zipped, "frames")
    assert source.lengths is not None
    first = np.cumsum(source.lengths) - source.lengths
    splits = {source.name(int(at)).split("_")[1]: source.split_of(int(at)) for at in first}
    assert splits == {"ann": "train", "ben": "train", "cy": "validation", "dot": "test"}


def test_a_tone_is_loudest_in_the_band_of_its_frequency() -> None:
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 4000 / 700), 42) / 2595) - 1)
    for hertz in (200.0, 1000.0, 3200.0):
        bands = log_mel(tone(hertz, 0.3), 8000)
        assert bands.shape == (28, 40)
        nearest = int(abs(edges[1:-1] - hertz).argmin())
        assert (abs(bands.argmax(1) - nearest) <= 1).all()


def test_twice_the_amplitude_is_four_times_the_energy() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 4000)
    assert np.allclose(log_mel(2 * noise, 8000) - log_mel(noise, 8000), np.log(4), atol=1e-3)


@pytest.mark.parametrize("samples", [0, 1, 199, 200, 279, 280, 8000])
def test_a_recording_of_any_length_has_a_frame(samples: int) -> None:
    found = log_mel(np.zeros(samples), 8000)
    assert found.shape == (frames_of(samples, 8000), 40) and np.isfinite(found).all()
    assert len(found) == (1 if samples < 280 else 1 + (samples - 200) // 80)


def test_a_folder_gives_the_same_frames_as_a_zip(zipped: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(zipped) as archive:
        archive.extractall(tmp_path / "folder")
    one = open_vectors(zipped, "frames", labels="file")
    other = open_samples(tmp_path / "folder", labels="file")
    rows = np.arange(len(one))
    assert (one.rows(rows) == other.rows(rows)).all()  # type: ignore[union-attr]  # these are frames
    assert (one.labels(rows) == other.labels(rows)).all()


def test_recordings_are_prepared_with_their_context(zipped: Path, tmp_path: Path) -> None:
    source = open_vectors(zipped, "frames", labels="file")
    prepare(source, tmp_path / "store", VectorPreparation(40, kind="frames", context=5))
    store = Store(tmp_path / "store")
    assert store.splits == {"train": 164, "validation": 82, "test": 82}
    assert store.shape.size == 440


def test_chosen_recordings_keep_their_labels(zipped: Path) -> None:
    source = open_vectors(zipped, "frames", include=["*/7_*"], labels="file")
    assert source.lengths is not None and len(source.lengths) == 8
    assert set(source.labels(np.arange(len(source))).tolist()) == {21, 22, 23}


def test_a_damaged_recording_is_named(zipped: Path) -> None:
    with zipfile.ZipFile(zipped, "a") as archive:
        archive.writestr("recordings/3_eve_0.flac", b"fLaC nothing")
    with pytest.raises(SourceError, match=r"3_eve_0\.flac cannot be read"):
        open_vectors(zipped, "frames")


def test_without_soundfile_the_extra_to_install_is_named(
    zipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[speech\]"):
        open_vectors(zipped, "frames")


def test_recordings_are_no_images_and_their_folders_are_no_labels(zipped: Path) -> None:
    with pytest.raises(SourceError, match="no images"):
        open_source(zipped)
    with pytest.raises(SourceError, match="names of files"):
        open_vectors(zipped, "frames", labels="folders")
