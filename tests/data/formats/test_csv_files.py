"""Text tables: delimiters, quotes, byte order marks, compression, and faults that name their line."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from cotswold.data.formats.csv_files import CsvTable, read_csv
from cotswold.data.formats.text_columns import TextColumn
from cotswold.errors import SourceError

MISSING = frozenset(["", "?", "NA"])


def read(path: Path, content: str | bytes, **options: object) -> CsvTable:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    delimiter, header = options.get("delimiter"), options.get("header")
    assert isinstance(delimiter, str | None) and isinstance(header, bool | None)
    return read_csv(path, delimiter, header, MISSING)


def rows_of(found: CsvTable) -> list[tuple[str, ...]]:
    return list(zip(*found.columns, strict=True))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_the_one_that_cuts_lines_into_equally_many_values(
    delimiter: str, tmp_path: Path
) -> None:
    rows = [["age", "job"], ["30", "a clerk, at times; in town"], ["41", "cook"]]
    text = "\n".join(delimiter.join(f'"{value}"' for value in row) for row in rows)
    found = read(tmp_path / "a.csv", text)
    assert found.header == ("age", "job")
    assert rows_of(found) == [("30", "a clerk, at times; in town"), ("41", "cook")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_marks_of_byte_order_line_ends_and_blanks_around_values_are_removed(
    encoding: str, tmp_path: Path
) -> None:
    found = read(tmp_path / "a.csv", 'size, weight \r\n 1.5 ,2 \r\n\r\n 3, "4"\r\n'.encode(encoding))
    assert found.header == ("size", "weight")
    assert rows_of(found) == [("1.5", "2"), ("3", "4")]
    assert found.lines.tolist() == [2, 4]


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    found = read(tmp_path / "a.csv.gz", gzip.compress(b"a,b\n1,2\n"))
    assert rows_of(found) == [("1", "2")]


@pytest.mark.parametrize(("first", "is_header"), [("a,b", True), ("a,2", False), ("a,?", False)])
def test_a_first_line_with_a_number_or_a_missing_value_is_a_row(
    first: str, is_header: bool, tmp_path: Path
) -> None:
    found = read(tmp_path / "a.csv", f"{first}\nx,3\ny,4\n")
    assert (found.header is not None) == is_header
    assert len(rows_of(found)) == (2 if is_header else 3)


def test_a_line_of_another_width_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.csv, line 4: 3 values separated by ',', but line 1 has 2"):
        read(tmp_path / "a.csv", 'a,b\n"x\ny",2\n3,4,5\n')


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no rows"),
        (b"\n \n", "has no rows"),
        (b"a,b\n", "has one line, which is taken as names"),
        (b'a;b\n"x";2\n"x;2\n3;4\n', r"line 3: the line cannot be read .* correct its quotes"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), r"is compressed by gzip; rename it to a\.csv\.gz"),
        (b'1 2\n3 4\n"5 6\n', r"has 2 values separated by blanks"),
        (b"PK\x03\x04\x14\0", r"is a zip file, as those of Excel are; .* pandas\.read_excel"),
        (b"a,b\nM\xfcller,2\n", r"line \d: the text is not UTF-8 .* iconv -f latin1"),
    ],
)
def test_a_file_that_is_not_a_table_is_refused_with_its_line(
    content: bytes, said: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=said):
        read(tmp_path / "a.csv", content)


def test_a_damaged_compressed_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.csv\.gz cannot be read"):
        read(tmp_path / "a.csv.gz", gzip.compress(b"a,b\n1,2\n" * 1000)[:-20])


def test_a_value_takes_few_bytes_while_a_file_is_read(tmp_path: Path) -> None:
    rows, columns = 20_000, 5
    lines = (",".join(f"{row * 7.3 + at:.4f}" for at in range(columns)) for row in range(rows))
    (tmp_path / "a.csv").write_text("\n".join(lines))
    tracemalloc.start()
    found = read_csv(tmp_path / "a.csv", None, None, MISSING)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.lines) == rows and list(found.columns[2])[:2] == ["2.0000", "9.3000"]
    assert peak < 90 * rows * columns  # texts of Python in lists of rows and columns take 170 bytes


def test_texts_without_utf_8_and_long_ones_are_kept() -> None:
    texts = ["", "a", "\ud800", "x" * 100, "\0", "\u00e9"] * 2000
    found = TextColumn(texts)
    assert list(found) == texts and len(found) == len(texts)
    assert "x" * 100 in found and "b" not in found


def test_numbers_between_blanks_need_a_word(tmp_path: Path) -> None:
    text = " a  b c\n1  2 3\n 4 5    6.5\n"
    with pytest.raises(SourceError, match=r'a\.txt has 3 values separated by blanks .*; set delimiter = " "'):
        read(tmp_path / "a.txt", text)
    found = read(tmp_path / "a.txt", text, delimiter=" ")
    assert found.header == ("a", "b", "c") and rows_of(found) == [("1", "2", "3"), ("4", "5", "6.5")]
    assert rows_of(read(tmp_path / "b.txt", "name\nAnn Lee\nJo Ray\n")) == [("Ann Lee",), ("Jo Ray",)]
