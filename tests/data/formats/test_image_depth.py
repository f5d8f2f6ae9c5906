"""Images of more than 8 bits, of several pages, and DICOM: read with all their bits, or refused by name."""

from __future__ import annotations

import io
import re
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from cotswold.data import open_source
from cotswold.data.formats.image import BrokenImageError, cut, numbers, open_image
from cotswold.errors import MissingExtraError

tifffile = pytest.importorskip("tifffile", reason="needs tifffile, which writes every kind of TIFF")
RAMP = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
COLOURS = np.stack([RAMP * 16] * 3, -1)


def tiff(array: NDArray[Any], **options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, array, **options)
    return file.getvalue()


def deep_png(colour: int, channels: int) -> bytes:
    """Return a PNG of 16 bits, whose colour type Pillow cannot write."""
    row = b"\0" + (np.arange(8 * channels, dtype=">u2") * 257).tobytes()

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(row * 8)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("options", [{"byteorder": "<"}, {"byteorder": ">"}, {"compression": "zlib"}])
@pytest.mark.parametrize("dtype", ["uint16", "int16", "float32"])
def test_grey_tiffs_of_either_byte_order_keep_their_numbers(dtype: str, options: dict[str, Any]) -> None:
    values = (RAMP.astype(np.int64) - (2000 if dtype == "int16" else 0)).astype(dtype)
    found = numbers("it", open_image("it", tiff(values, **options)))
    assert found is not None and np.array_equal(found.astype(np.float64), values.astype(np.float64))


def test_unsigned_numbers_of_32_bits_do_not_become_negative() -> None:
    values = RAMP.astype(np.uint32) + (1 << 31)
    found = numbers("it", open_image("it", tiff(values)))
    assert found is not None and np.array_equal(found, values)


@pytest.mark.parametrize(
    "data",
    [
        tiff(COLOURS, photometric="rgb"),
        tiff(COLOURS, photometric="rgb", byteorder=">"),
        tiff(COLOURS, photometric="rgb", compression="zlib"),
        tiff(COLOURS.transpose(2, 0, 1), photometric="rgb", planarconfig="separate"),
        deep_png(2, 3),
        deep_png(4, 2),
        deep_png(6, 4),
        b"P6 4 4 65535 " + bytes(96),
    ],
)
def test_colours_of_16_bits_are_refused_instead_of_losing_8(data: bytes) -> None:
    with pytest.raises(
        BrokenImageError, match=r"it: its colours have 16 bits, of which 8 would be read; conv"
    ):
        open_image("it", data)


def saved(mode: str, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (64, 64), 7 if mode == "I;16" else (7,) * len(mode)).save(file, kind, **options)
    return file.getvalue()


def jpeg_2000(mode: str, bits: int, **options: Any) -> bytes:
    """Return a JPEG 2000 file whose header states the bits of each channel; Pillow writes only 8 or 16."""
    found = bytearray(saved(mode, "JPEG2000", **options))
    at = found.index(b"\xff\x4f\xff\x51") + 40
    for channel in range(int.from_bytes(found[at : at + 2])):
        found[at + 2 + 3 * channel] = bits - 1
    return bytes(found)


def avif(bits: int, mode: str = "RGB") -> bytes:
    """Return an AVIF file whose configuration states the bits of a channel; Pillow writes only 8."""
    found = bytearray(saved(mode, "AVIF"))
    for match in re.finditer(b"av1C", bytes(found)):
        found[match.end() + 2] |= {10: 0x40, 12: 0x60}[bits]
    for match in re.finditer(b"pixi", bytes(found)):
        for channel in range(found[match.end() + 4]):
            found[match.end() + 5 + channel] = bits
    return bytes(found)


def dds(form: int) -> bytes:
    """Return a DDS texture of 4 x 4 pixels in one block of 16 bytes."""
    head = struct.pack("<7I44x", 124, 0x81007, 4, 4, 16, 0, 0) + struct.pack("<2I4s20x", 32, 4, b"DX10")
    return (
        b"DDS "
        + head
        + struct.pack("<5I", 0x1000, 0, 0, 0, 0)
        + struct.pack("<5I", form, 3, 0, 1, 0)
        + bytes(16)
    )


@pytest.mark.parametrize(
    ("data", "bits", "read"),
    [
        (jpeg_2000("RGB", 12), 12, 8),
        (jpeg_2000("RGB", 16, no_jp2=True), 16, 8),
        (jpeg_2000("RGBA", 10), 10, 8),
        (jpeg_2000("LA", 16), 16, 8),
        (jpeg_2000("I;16", 20), 20, 16),
        (avif(10), 10, 8),
        (avif(12, "RGBA"), 12, 8),
        (dds(95), 16, 8),
    ],
)
def test_jpeg_2000_avif_and_dds_of_more_bits_than_pillow_reads_are_refused(
    data: bytes, bits: int, read: int, tmp_path: Path
) -> None:
    said = f"its colours have {bits} bits, of which {read} would be read; convert"
    (tmp_path / "it.png").write_bytes(data)
    for file in (data, tmp_path / "it.png"):
        with pytest.raises(BrokenImageError, match=said):
            open_image("it", file)


@pytest.mark.parametrize(
    "data", [saved("RGB", "JPEG2000"), saved("RGB", "AVIF"), saved("RGBA", "AVIF"), dds(98)]
)
def test_jpeg_2000_avif_and_dds_of_8_bits_are_read(data: bytes) -> None:
    assert cut("it", open_image("it", data), (4, 4), "rgb").shape == (4, 4, 3)


@pytest.mark.parametrize("options", [{}, {"no_jp2": True}])
def test_grey_jpeg_2000_of_16_bits_keeps_its_numbers(options: dict[str, Any]) -> None:
    file = io.BytesIO()
    Image.fromarray(RAMP * 16).save(file, "JPEG2000", **options)
    found = numbers("it", open_image("it", file.getvalue()))
    assert found is not None and np.array_equal(found, RAMP * 16)


def test_a_file_of_boxes_that_ends_early_is_named() -> None:
    content = saved("RGB", "JPEG2000")
    for end in (13, 60, 100):
        with pytest.raises(BrokenImageError, match=r"^it: "):
            cut("it", open_image("it", content[:end]), (4, 4), "rgb")


def test_a_tiff_of_several_pages_is_refused_and_smaller_versions_do_not_count() -> None:
    with pytest.raises(BrokenImageError, match="it: it has 2 pages, of which one would be read"):
        open_image("it", tiff(np.stack([RAMP, RAMP])))
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        writer.write(RAMP)
        writer.write(RAMP[::2, ::2], subfiletype=1)
    found = numbers("it", open_image("it", file.getvalue()))
    assert found is not None and np.array_equal(found, RAMP)


def dicom(path: Path, values: NDArray[Any], **tags: Any) -> None:
    """Write a DICOM file of grey values, or of colours."""
    pydicom = pytest.importorskip("pydicom", reason="needs pydicom, the extra `medical`")
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    found = pydicom.Dataset()
    found.file_meta = pydicom.dataset.FileMetaDataset()
    found.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    found.file_meta.MediaStorageSOPClassUID = found.SOPClassUID = CTImageStorage
    found.file_meta.MediaStorageSOPInstanceUID = found.SOPInstanceUID = generate_uid()
    found.Rows, found.Columns = values.shape[-2:] if values.ndim == 2 else values.shape[:2]
    found.SamplesPerPixel = 1 if values.ndim == 2 else 3
    found.PhotometricInterpretation = "MONOCHROME2" if values.ndim == 2 else "RGB"
    if values.ndim == 3:
        found.PlanarConfiguration = 0
    found.BitsAllocated = 8 * values.dtype.itemsize
    found.BitsStored = tags.pop("bits", found.BitsAllocated)
    found.HighBit = found.BitsStored - 1
    found.PixelRepresentation = int(values.dtype.kind == "i")
    found.PixelData = values.tobytes()
    for name, value in tags.items():
        setattr(found, name, value)
    found.save_as(path, enforce_file_format=True)


def test_dicom_of_12_bits_is_read_in_units_of_the_modality(tmp_path: Path) -> None:
    dicom(tmp_path / "a.dcm", RAMP, bits=12, RescaleSlope="2", RescaleIntercept="-1024")
    found = numbers("it", open_image("it", (tmp_path / "a.dcm").read_bytes()))
    assert found is not None and np.array_equal(found, RAMP.astype(np.int64) * 2 - 1024)


def test_dicom_whose_zero_is_white_is_inverted(tmp_path: Path) -> None:
    dicom(tmp_path / "a.dcm", RAMP, bits=12, PhotometricInterpretation="MONOCHROME1")
    found = numbers("it", open_image("a.dcm", tmp_path / "a.dcm"))
    assert found is not None and np.array_equal(found, 4095 - RAMP)


def test_a_folder_of_dicom_has_one_range(tmp_path: Path) -> None:
    dicom(tmp_path / "a.dcm", RAMP, bits=12)
    dicom(tmp_path / "b.dcm", RAMP // 16, bits=12)
    source = open_source(tmp_path)
    assert source.settle() == ("grey levels: integers from 0 to 4095 are read as 12 bits",)
    assert len(np.unique(np.asarray(source.read(0)))) == 256
    assert np.asarray(source.read(1)).max() == 15


def test_dicom_of_colours_and_frames(tmp_path: Path) -> None:
    colours = (COLOURS // 256).astype(np.uint8)
    dicom(tmp_path / "a.dcm", colours)
    assert np.array_equal(np.asarray(open_image("a.dcm", tmp_path / "a.dcm")), colours)
    dicom(tmp_path / "b.dcm", RAMP, NumberOfFrames="3")
    with pytest.raises(BrokenImageError, match=r"b\.dcm: it has 3 frames, of which one would be read"):
        open_image("b.dcm", tmp_path / "b.dcm")
    (tmp_path / "c.dcm").write_bytes(b"no image")
    with pytest.raises(BrokenImageError, match=r"c\.dcm: "):
        open_image("c.dcm", tmp_path / "c.dcm")


def test_dicom_with_a_palette_is_refused(tmp_path: Path) -> None:
    dicom(tmp_path / "a.dcm", RAMP, bits=12, PhotometricInterpretation="PALETTE COLOR")
    with pytest.raises(BrokenImageError, match=r"a\.dcm: its numbers are places in a palette"):
        open_image("a.dcm", tmp_path / "a.dcm")


def test_dicom_without_pydicom_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dicom(tmp_path / "a.dcm", RAMP)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(MissingExtraError, match=r"DICOM files need pydicom; run .*\[medical\]"):
        open_source(tmp_path).settle()


def test_an_8_bit_tiff_of_one_page_is_still_read() -> None:
    image = open_image("it", tiff((COLOURS // 256).astype(np.uint8), photometric="rgb"))
    assert (image.mode, image.size) == ("RGB", (64, 64))
    assert isinstance(image, Image.Image)
