from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.conftest import photograph, write_photographs

from cotswold.data import Store, as_image_transform, open_source, stream
from cotswold.errors import SourceError, UserError


def test_a_stream_hands_out_what_the_transform_makes_in_order(photographs: Path, store: Store) -> None:
    source = open_source(photographs)
    batches = list(stream(source, store.transform, 64))
    assert [len(images) for images, _ in batches] == [64, 64, 64, 64, 44]
    assert torch.cat([indices for _, indices in batches]).tolist() == list(range(300))
    images = batches[1][0]
    assert images.shape == (64, 3, 24, 32) and images.stride()[0] == 1
    np.testing.assert_array_equal(images[5].numpy(), as_image_transform(store.transform)(source.read(69)))


def test_a_part_of_a_source_can_be_streamed_again_and_again(photographs: Path, store: Store) -> None:
    part = stream(open_source(photographs), store.transform, 2, only=[7, 3, 99], threads=1)
    for _ in range(2):
        assert [indices.tolist() for _, indices in part] == [[7, 3], [99]]


def test_broken_images_are_left_out_and_named(store: Store, tmp_path: Path) -> None:
    write_photographs(tmp_path, 4)
    (tmp_path / "0001.png").write_bytes(b"broken")
    Image.fromarray(photograph(8)).convert("L").save(tmp_path / "grey.jpg")
    met = stream(open_source(tmp_path), store.transform, 10)
    assert [indices.tolist() for _, indices in met] == [[0, 2, 3, 4]]
    assert len(met.broken) == 1 and met.broken[0].startswith("0001.png: ")


def test_a_stream_of_broken_images_alone_is_an_error(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"broken")
    with pytest.raises(SourceError, match=r"none of the 1 images.*a\.png"):
        list(stream(open_source(tmp_path), store.transform, 10))
    with pytest.raises(UserError, match="at least 1, got 0"):
        stream(open_source(tmp_path), store.transform, 0)
