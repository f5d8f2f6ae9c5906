"""Recordings as sequences: WAV of every width without soundfile, a class in each folder, one rate."""

from __future__ import annotations

import sys
import wave
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cotswold.data import VectorPreparation, VectorSource, open_samples, open_vectors, prepare, stream
from cotswold.data.datasets.log_mel import log_mel
from cotswold.data.formats.recordings import Recordings
from cotswold.data.store.store import Store
from cotswold.errors import MissingExtraError, SourceError, UserError


def tone(hertz: float, samples: int = 1600, rate: int = 8000) -> NDArray[np.float64]:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(samples) / rate)


def write(
    path: Path, samples: NDArray[np.float64], width: int = 2, rate: int = 8000, channels: int = 1
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = np.round(samples * ((1 << (8 * width - 1)) - 1)).astype(np.int64)
    whole = np.repeat(whole, channels)
    content = (
        (whole + 128).astype(np.uint8).tobytes()
        if width == 1
        else whole.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()
    )
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of recordings of two classes."""
    for number in range(3):
        write(tmp_path / "sounds" / "low" / f"{number}.wav", tone(300 + number))
        write(tmp_path / "sounds" / "high" / f"{number}.wav", tone(2000 + number))
    return tmp_path / "sounds"


@pytest.mark.parametrize(("width", "channels"), [(1, 1), (2, 1), (2, 2), (3, 2), (4, 1)])
def test_wav_of_every_width_is_read_without_soundfile(
    width: int, channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    write(tmp_path / "a.wav", tone(440), width, channels=channels)
    found = Recordings(tmp_path).samples("a.wav")
    assert found.shape == (1600,)
    assert np.abs(found - tone(440)).max() < 2.0 ** (3 - 8 * width)


def test_a_class_is_a_folder_and_frames_are_mel_bands(folder: Path) -> None:
    found = open_samples(folder, labels="folders")
    assert isinstance(found, VectorSource) and found.kind == "frames" and found.rate == 8000
    assert found.classes == ("high", "low") and found.lengths is not None
    assert found.lengths.tolist() == [18] * 6
    assert found.labels(np.arange(108)).tolist() == [0] * 54 + [1] * 54
    exact = Recordings(folder).samples("high/1.wav")
    assert np.array_equal(found.rows(np.arange(18, 36)), log_mel(exact, 8000).astype(np.float64))


def test_a_zip_gives_the_same_frames_as_its_folder(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "sounds.zip", "w") as archive:
        for path in sorted(folder.rglob("*.wav")):
            archive.write(path, path.relative_to(folder))
    rows = np.arange(108)
    zipped = open_vectors(tmp_path / "sounds.zip", "frames")
    assert np.array_equal(zipped.rows(rows), open_vectors(folder, "frames").rows(rows))


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_preparation_decodes_each_recording_once(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = Recordings._bytes

    def noted(files: Recordings, name: str) -> bytes:
        read.append(name)
        return whole(files, name)

    monkeypatch.setattr(Recordings, "_bytes", noted)
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "sounds.zip", "w") as archive:
            for path in sorted(folder.rglob("*.wav")):
                archive.write(path, path.relative_to(folder))
    source = open_vectors(folder if kind == "folder" else tmp_path / "sounds.zip", "frames")
    assert source.identity and not read
    prepare(source, tmp_path / "store", VectorPreparation(40, "frames", 2, rate=source.rate), jobs=1)
    assert sorted(read) == sorted(Recordings(folder).names)


def test_the_identity_follows_the_contents_of_recordings(folder: Path) -> None:
    before = open_vectors(folder, "frames").identity
    assert open_vectors(folder, "frames").identity == before
    write(folder / "low" / "0.wav", tone(700))
    assert open_vectors(folder, "frames").identity != before


def test_different_rates_are_refused_in_a_source_and_after_training(folder: Path, tmp_path: Path) -> None:
    source = open_vectors(folder, "frames")
    prepare(source, tmp_path / "store", VectorPreparation(40, "frames", 2, rate=source.rate), jobs=1)
    transform = Store(tmp_path / "store").transform
    write(tmp_path / "fast" / "a.wav", tone(300, rate=16000), rate=16000)
    with pytest.raises(UserError, match=r"learnt from recordings of 8,000 .* the source has 16,000"):
        stream(open_vectors(tmp_path / "fast", "frames"), transform, 4)
    write(folder / "low" / "9.wav", tone(300, rate=16000), rate=16000)
    with pytest.raises(SourceError, match=r"low/9\.wav has 16,000 samples per second, but .* 8,000"):
        open_vectors(folder, "frames")


def test_a_truncated_recording_and_a_text_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "low" / "0.wav"
    path.write_bytes(path.read_bytes()[:-800])
    source = open_vectors(folder, "frames")
    with pytest.raises(SourceError, match=r"low/0\.wav cannot be read"):
        source.settle()
    path.write_text("no sound")
    with pytest.raises(SourceError, match=r"low/0\.wav cannot be read"):
        open_vectors(folder, "frames")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingExtraError, match=r"low/0\.wav is not WAV of integers, so it needs soundfile"):
        open_vectors(folder, "frames")


def test_labels_from_files_are_refused(folder: Path) -> None:
    with pytest.raises(SourceError, match=r'set labels = "folders" or "none"'):
        open_vectors(folder, "frames", labels="file")
