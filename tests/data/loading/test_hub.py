"""Data sets of the package `datasets` and of WebDataset: pairs of tensors, which are read lazily."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.formats.test_tar_shards import folder
from tests.support.training.runs import finish

from cotswold.data import HubDataset, HubStream, from_hub
from cotswold.data.formats.image import open_image
from cotswold.errors import UserError
from cotswold.recipe.schema import SupervisedTraining
from cotswold.training import open_module_job

datasets = pytest.importorskip("datasets", reason="needs datasets, the extra `hub`")


def rows(count: int = 40) -> Any:
    """Return a data set whose class is the sign of its first number."""
    random = np.random.default_rng(0)
    first, second = random.normal(size=(2, count))
    names = ["low" if value < 0 else "high" for value in first]
    features = datasets.Features(
        a=datasets.Value("float64"),
        b=datasets.Value("float64"),
        answer=datasets.ClassLabel(names=["low", "high"]),
        name=datasets.Value("string"),
    )
    content = {"a": first, "b": second, "answer": names, "name": names}
    return datasets.Dataset.from_dict(content, features=features)


def test_columns_of_numbers_become_a_vector_and_labels_keep_their_names() -> None:
    found = from_hub(rows(), inputs=["a", "b"], target="answer")
    assert isinstance(found, HubDataset) and len(found) == 40 and found.classes == ("low", "high")
    given = rows()[3]
    source, target = found[3]
    assert source.dtype == torch.float32 and torch.allclose(
        source, torch.tensor([given["a"], given["b"]]).float()
    )
    assert target.dtype == torch.int64 and int(target) == given["answer"]
    together = found.__getitems__([3, 5])
    assert torch.equal(together[0][0], source) and torch.equal(together[1][0], found[5][0])


def test_texts_are_classes_in_sorted_order() -> None:
    found = from_hub(rows(), inputs="a", target="name")
    assert found.classes == ("high", "low")
    own = from_hub(rows(), inputs="a", target="name", classes=["low"])
    assert isinstance(own, HubDataset)
    with pytest.raises(UserError, match="column 'name' has 'high', which is not among its 1 class"):
        own.__getitems__(range(len(own)))


def test_images_are_decoded_on_access(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [Image.new("RGB", (6, 4), (51 * at, 0, 255)) for at in range(3)]
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
    given = datasets.Dataset.from_dict({"image": images, "label": [0, 1, 2]}, features=features)
    opened: list[str] = []

    def note(name: str, file: Path | bytes) -> Image.Image:
        opened.append(name)
        return open_image(name, file)

    monkeypatch.setattr("cotswold.data.loading.hub.open_image", note)
    found = from_hub(given, inputs="image", target="label")
    assert opened == []
    assert isinstance(found, HubDataset)
    pixels, label = found[2]
    assert int(label) == 2 and pixels[:, 0, 0].tolist() == pytest.approx([0.4, 0, 1])
    assert len(opened) == 1


def test_images_are_planes_from_0_to_1() -> None:
    given = datasets.Dataset.from_dict(
        {"image": [Image.new("RGB", (6, 4), (51, 0, 255))], "label": [1]},
        features=datasets.Features(image=datasets.Image(), label=datasets.Value("int64")),
    )
    found = from_hub(given, inputs="image", target="label")
    assert isinstance(found, HubDataset)
    pixels = found[0][0]
    assert pixels.shape == (3, 4, 6) and pixels[:, 0, 0].tolist() == pytest.approx([0.2, 0, 1])
    own = from_hub(given, inputs="image", target="label", transform=lambda image: torch.zeros(image.size))
    assert isinstance(own, HubDataset) and own[0][0].shape == (6, 4)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_module_learns_rows_of_the_hub(streamed: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    given = rows(200).to_iterable_dataset() if streamed else rows(200)
    samples = 200 if streamed else None
    dataset = from_hub(given, inputs=["a", "b"], target="answer", samples=samples)
    assert isinstance(dataset, HubStream if streamed else HubDataset)
    module = torch.nn.Linear(2, 2)
    settings = SupervisedTraining(strategy="supervised", epochs=10, batch_size=20, learning_rate=0.5)
    job = open_module_job(
        module, dataset, loss="cross_entropy", directory=tmp_path / "run", settings=settings
    )
    finish(job)
    inputs = torch.tensor([[row["a"], row["b"]] for row in rows(200)])
    answers = torch.tensor(rows(200)["answer"])
    assert (module(inputs.float()).argmax(1) == answers).float().mean() > 0.95


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves files open
def test_a_module_learns_shards_of_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="needs webdataset, the extra `hub`")
    folder(tmp_path / "in")
    shards = str(tmp_path / "in" / "train-{0000..0001}.tar")
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=False)
        .decode("torchrgb", only="png")
        .to_tuple("png", "cls")
    )
    dataset = dataset.map_tuple(lambda image: image, lambda name: int(name.strip() == b"dog")).with_length(
        12, silent=True
    )
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    settings = SupervisedTraining(strategy="supervised", epochs=2, batch_size=4)
    job = open_module_job(
        module, dataset, loss="cross_entropy", directory=tmp_path / "run", settings=settings
    )
    finish(job)
    assert (tmp_path / "run" / "events.jsonl").is_file()


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(UserError, match=r"from_hub needs a datasets\.Dataset or IterableDataset, got list"):
        from_hub([], inputs="a", target="b")
    with pytest.raises(UserError, match=r"has the splits 'train'; give one, such as dataset\['train'\]"):
        from_hub(datasets.DatasetDict(train=rows()), inputs="a", target="answer")
    with pytest.raises(UserError, match="has no column 'c'; its columns are 'a', 'b', 'answer', 'name'"):
        from_hub(rows(), inputs=["a", "c"], target="answer")
    texts = from_hub(rows(), inputs="name", target="answer")
    assert isinstance(texts, HubDataset)
    with pytest.raises(UserError, match="has values of type str, which are not numbers; give transform"):
        texts[0]
    with pytest.raises(UserError, match="of the stream has texts; give classes"):
        from_hub(rows().to_iterable_dataset(), inputs="a", target="name")
    with pytest.raises(UserError, match="the number of rows of the stream is unknown; give samples"):
        from_hub(rows().to_iterable_dataset(), inputs="a", target="answer")


def _deep_png() -> bytes:
    """Return a PNG of one pixel with 16 bits per colour."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    head = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" + struct.pack(">3H", 1000, 1000, 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_images_that_pillow_would_reduce_to_8_bits_are_refused() -> None:
    content = {"image": [{"bytes": _deep_png(), "path": None}], "answer": [1]}
    given = datasets.Dataset.from_dict(content).cast_column("image", datasets.Image())
    for found in (from_hub(given, inputs="image", target="answer"), _stream(given)):
        with pytest.raises(UserError, match=r"an image of column 'image': .*16"):
            next(iter(found))
    seen = from_hub(given, inputs="image", target="answer", transform=lambda image: torch.tensor(image.size))
    assert seen[0][0].tolist() == [1, 1]


def _stream(given: Any) -> Any:
    return from_hub(given.to_iterable_dataset(), inputs="image", target="answer", samples=1)


def test_a_row_without_a_value_is_named() -> None:
    given = datasets.Dataset.from_dict({"a": [1.0, None], "name": ["x", None], "size": [1, None]})
    with pytest.raises(UserError, match="column 'name' has a row without a value"):
        from_hub(given, inputs="a", target="name")
    with pytest.raises(UserError, match="column 'a' has a row without a value"):
        from_hub(given, inputs="a", target="size")[1]
    with pytest.raises(UserError, match="column 'size' has a row without a value"):
        from_hub(given, inputs="size", target="size", transform=lambda value: torch.zeros(1))[1]


def test_classes_of_a_validation_set_are_those_of_the_training_set(tmp_path: Path) -> None:
    training = from_hub(rows(), inputs=["a", "b"], target="name")
    texts = {"a": [0.1, 0.2], "b": [0.1, 0.2], "name": ["low", "low"]}
    held = datasets.Dataset.from_dict(texts)
    settings = SupervisedTraining(strategy="supervised", batch_size=8, epochs=1)
    module = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match="classes of the validation set"):
        open_module_job(
            module,
            training,
            validation=from_hub(held, inputs=["a", "b"], target="name"),
            loss="cross_entropy",
            directory=tmp_path / "run",
            settings=settings,
        )
    alike = from_hub(held, inputs=["a", "b"], target="name", classes=training.classes)
    assert alike[0][1] == training.classes.index("low")


@pytest.mark.parametrize("form", [None, "torch", "numpy"])
@pytest.mark.parametrize("lost", [2**24 + 1, -(2**24) - 1, 2**53 + 1])
def test_integers_that_float32_does_not_represent_are_refused(lost: int, form: str | None) -> None:
    content = {"a": [1, lost], "list": [[1, 2], [3, lost]], "answer": [lost, 2]}
    given = datasets.Dataset.from_dict(content).with_format(form)
    for name in ("a", "list"):
        found = from_hub(given, inputs=name, target="answer")
        assert int(found[0][1]) == lost
        said = (
            f"column '{name}' has the integer {lost}, which float32 does not represent exactly; .* transform"
        )
        with pytest.raises(UserError, match=said):
            found[1]
    with pytest.raises(UserError, match=f"column 'list' has the integer {lost}"):
        from_hub(given, inputs="answer", target="list")[1]
    kept = from_hub(given, inputs="a", target="answer", transform=lambda value: torch.tensor(int(value)))
    assert int(kept[1][0]) == lost


def test_integers_that_float32_represents_are_kept() -> None:
    given = datasets.Dataset.from_dict({"a": [2**24, -(2**40), 0], "b": [0.1, 2.0**24 + 0.5, 1e30]})
    found = from_hub(given, inputs="a", target="b")
    assert [float(found[at][0]) for at in range(3)] == [2**24, -(2**40), 0]
    assert float(found[1][1]) == 2**24
