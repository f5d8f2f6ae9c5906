from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import PIL
import pytest
from PIL import Image
from tests.data.conftest import photograph, png

from cotswold.data.formats.image import BrokenImageError, cut, open_image


def read(data: bytes, size: tuple[int, int] = (8, 12), colour: str = "rgb") -> np.ndarray:
    return cut("it", open_image("it", data), size, colour)  # type: ignore[arg-type]  # from parametrize


@pytest.mark.parametrize(
    "mode", ["RGB", "L", "1", "P", "RGBA", "LA", "CMYK", "YCbCr", "I;16", "I", "F", "LAB", "HSV"]
)
@pytest.mark.parametrize("colour", ["rgb", "grey"])
def test_images_of_every_mode_keep_what_they_show(mode: str, colour: str) -> None:
    if mode == "YCbCr" and int(PIL.__version__.split(".")[0]) < 13:
        pytest.skip("Pillow before 13 reads no TIFF of YCbCr that it has written")
    ramp = np.linspace(20, 230, 64).astype(np.uint8)
    grey = Image.fromarray(np.broadcast_to(ramp, (48, 64)).copy())
    if mode == "I;16":
        image = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    elif mode == "LAB":
        image = Image.merge("LAB", [grey, Image.new("L", grey.size, 128), Image.new("L", grey.size, 128)])
    else:
        image = grey.convert("RGB").convert(mode) if mode not in ("I", "F", "LA") else grey.convert(mode)
    kind = "TIFF" if mode in ("CMYK", "YCbCr", "F", "LAB", "I") else "PNG"
    file = io.BytesIO()
    if mode == "HSV":
        pixels = cut("it", image, (8, 12), colour)  # type: ignore[arg-type]  # from parametrize
    else:
        image.save(file, kind)
        pixels = read(file.getvalue(), colour=colour)
    assert pixels.shape == (8, 12, 3 if colour == "rgb" else 1)
    assert pixels.dtype == np.uint8
    columns = pixels.mean((0, 2))
    assert columns[0] < 80 and columns[-1] > 170, columns
    assert (np.diff(columns) > -20).all()


def test_transparent_pixels_become_white_whatever_lies_under_them() -> None:
    hidden = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    assert (read(png(hidden)) == 255).all()
    palette = Image.new("P", (8, 8), 0)
    palette.info["transparency"] = 0
    file = io.BytesIO()
    palette.save(file, "GIF", transparency=0)
    assert (read(file.getvalue()) == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_images_are_turned_as_exif_says(orientation: int, kind: str) -> None:
    quarters = np.zeros((64, 96), np.uint8)
    quarters[:32, :48], quarters[:32, 48:], quarters[32:, :48] = 250, 160, 80  # upright: three corners differ
    upright = Image.fromarray(quarters)
    back = {
        1: [],
        2: [Image.Transpose.FLIP_LEFT_RIGHT],
        3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM],
        5: [Image.Transpose.TRANSPOSE],
        6: [Image.Transpose.ROTATE_90],
        7: [Image.Transpose.TRANSVERSE],
        8: [Image.Transpose.ROTATE_270],
    }[orientation]
    turned = upright
    for step in back:
        turned = turned.transpose(step)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    turned.save(file, kind, exif=exif)
    pixels = read(file.getvalue(), (16, 24), "grey")[:, :, 0].astype(int)
    corners = pixels[3, 4], pixels[3, -5], pixels[-4, 4], pixels[-4, -5]
    assert np.abs(np.array(corners) - [250, 160, 80, 0]).max() < 12


def test_scaling_covers_the_size_and_cuts_the_centre() -> None:
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = 200  # the central square
    assert (read(png(Image.fromarray(wide)), (10, 10))[:, 2:8] > 190).all()
    assert (read(png(Image.fromarray(wide)), (20, 60)) == wide).all()
    tall = np.ascontiguousarray(wide.transpose(1, 0, 2))
    assert (read(png(Image.fromarray(tall)), (10, 10))[2:8] > 190).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 900), (900, 1), (3, 5)])
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (48, 20)])
def test_tiny_and_extreme_shapes_are_read(shape: tuple[int, int], size: tuple[int, int]) -> None:
    assert read(png(Image.new("RGB", shape[::-1], (9, 99, 199))), size).reshape(-1, 3).tolist() == [
        [9, 99, 199]
    ] * (size[0] * size[1])


def test_large_jpegs_are_decoded_small_and_look_the_same() -> None:
    large = Image.fromarray(photograph(1, 400, 520))
    file = io.BytesIO()
    large.save(file, "JPEG", quality=95)
    slow = Image.open(io.BytesIO(file.getvalue())).resize((52, 40), Image.Resampling.BICUBIC)
    difference = read(file.getvalue(), (40, 52)).astype(float) - np.asarray(slow)
    assert np.abs(difference).mean() < 4


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"])
def test_truncated_files_are_broken_images(kind: str) -> None:
    file = io.BytesIO()
    Image.fromarray(photograph(2)).save(file, kind)
    data = file.getvalue()
    with pytest.raises(BrokenImageError, match="it: "):
        read(data[: len(data) // 2])


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0" + b"\0" * 40])
def test_files_that_are_no_images_are_named(data: bytes) -> None:
    with pytest.raises(BrokenImageError, match="it: "):
        read(data)


@pytest.mark.parametrize("side", [9_500, 20_000, 60_000])
def test_decompression_bombs_are_refused_before_they_are_decoded(side: int, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.png"
    header = png(Image.new("1", (8, 8)))
    body = b"IHDR" + side.to_bytes(4, "big") * 2 + header[24:29]
    import zlib

    bomb.write_bytes(header[:12] + body + zlib.crc32(body).to_bytes(4, "big") + header[33:])
    with pytest.raises(BrokenImageError, match="decompression bomb"):
        cut("bomb", open_image("bomb", bomb), (8, 8), "rgb")


def test_an_animation_is_read_as_its_first_image() -> None:
    file = io.BytesIO()
    first, second = Image.new("RGB", (6, 6), (250, 0, 0)), Image.new("RGB", (6, 6), (0, 0, 250))
    first.save(file, "GIF", save_all=True, append_images=[second])
    assert read(file.getvalue())[0, 0, 0] > 240
