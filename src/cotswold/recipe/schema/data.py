"""`[data]`: the samples, their source and their preprocessing; one class per `type`.

Knows: the fields of each type. Does not know: files, stores.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from cotswold.recipe.bounds import hidden_maximum, items
from cotswold.recipe.schema.augment import ColourJitter, Transform
from cotswold.recipe.schema.fields import ByteSize, Features, Fraction, Pair, Samples, Section, Text, Texts


class SourcedData(Section):
    """Samples that are read from files and prepared into a store."""

    type: str
    """Type of the samples."""
    source: Text | None = None
    """Location of the samples."""
    store: Text | None = None
    """A store written by `cotswold prepare`; used as it is. Give either `source` or `store`."""
    splits: Literal["auto", "random", "folders"] = "auto"
    """Split into training, validation and test samples. `folders`: by the names of top-level folders (or
    files, or arrays): train, validation (or val, dev) and test (or eval). `random`: draw `validation` and
    `test` at random, evenly from each class; folders named test or validation keep their role. `auto`:
    `folders` if everything has such a name, otherwise `random`.
    """
    validation: Fraction = 0.05
    """Fraction of the samples that is kept for validation: of all samples for random splits, of the training
    samples if folders name no validation samples.
    """
    test: Fraction = 0.0
    """Fraction of the samples that is kept for testing, for random splits."""
    servers: Annotated[int, Field(ge=0), hidden_maximum(10_000)] | Text = 0
    """Data servers: separate processes that read, augment and deliver training samples. A number: start
    this many with the run, and stop them with it. A text `HOST:PORT`: use a running pool. 0: the run reads
    the samples itself. Results have the same bits in every case.
    """
    cache: ByteSize = "1 GB"
    """Memory for cached shards of the data per data server: `512 MB`, `4 GB`. It applies to servers that
    the run starts, and to `cotswold serve data` with this recipe; a pool at `HOST:PORT` keeps its own
    setting.
    """

    @field_validator("servers")
    @classmethod
    def _check_servers(cls, value: int | str) -> int | str:
        if isinstance(value, str):
            server_place(value)
        return value


def server_place(text: str) -> tuple[str, int]:
    """Return host and port of a pool of data servers; raises ValueError for any other text.

    >>> server_place("10.0.0.1:4000"), server_place("[::1]:4000")
    (('10.0.0.1', 4000), ('::1', 4000))
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ValueError(f"{text!r:.80} is not a pool; write a number of servers to start, or HOST:PORT")
    return host, int(port)


class ImageData(SourcedData):
    """Images, scaled and cropped to one size."""

    type: Literal["images"] = "images"
    """`images` (default): each sample is an image."""
    source: Text | None = None
    """A folder or zip of images, tar files, an .npy or .npz file, MNIST's idx, CIFAR-10's binary files, or
    `builtin:demo`; `${NAME}` is replaced by the environment variable. Prepared on first use.
    """
    include: Texts = Field(default_factory=list)
    """Glob patterns of paths inside the source to read, such as `train/*`; empty for all."""
    exclude: Texts = Field(default_factory=list)
    """Glob patterns of paths inside the source to skip, such as `Faces/*`."""
    labels: Literal["none", "folders", "file"] = "none"
    """`folders`: an image's parent folder is its label; `file`: labels from npz, idx and CIFAR-10 files, or
    from the members `.cls` and `.json` of tar files.
    """
    size: Pair = 200
    """Height and width in pixels; each image is scaled to cover them and cropped at the centre."""
    colour: Annotated[
        Literal["rgb", "grey"], BeforeValidator(lambda value: "grey" if value == "gray" else value)
    ] = "rgb"
    """Channels of the prepared images: 3 (`rgb`) or 1 (`grey`)."""
    per_image_standardise: bool = True
    """Subtract each image's mean and divide by its standard deviation."""
    whiten: bool = True
    """Whiten images by a filter computed from the data set's power spectrum and colour covariance."""
    whiten_cutoff: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Cutoff of the whitening filter, as a fraction of the Nyquist frequency of the smaller side; the
    filter rolls off above it.
    """
    unit_rms: bool = False
    """Scale every prepared image to a root mean square of 1."""
    dtype: Literal["float16", "uint8"] = "float16"
    """Type of the stored values; uint8 uses one scale for the whole data set."""
    limit: Samples | None = None
    """Read at most this many images."""
    augment: Annotated[list[Transform], items(100)] = Field(default_factory=list)
    """Augmentations of the training images, in this order; each epoch sees a new variant."""

    @model_validator(mode="after")
    def _check_colours(self) -> ImageData:
        if (
            self.whiten
            and self.store is None
            and any(isinstance(each, ColourJitter) for each in self.augment)
        ):
            raise ValueError(
                "data.augment has a colour_jitter transform, but whitened images have no colours left; set "
                "whiten = false, or remove the transform"
            )
        for each in self.augment if self.store is None else []:
            if self.colour == "grey" and isinstance(each, ColourJitter) and (each.hue or each.saturation):
                name = "hue" if each.hue else "saturation"
                raise ValueError(
                    f"data.augment has a colour_jitter transform with {name}, but grey images have none; "
                    f'remove {name}, or set colour = "rgb"'
                )
        return self


class VectorData(SourcedData):
    """Rows of an array of shape (n, d)."""

    type: Literal["vectors"] = "vectors"
    """`vectors`: each sample is a row of d values."""
    source: Text | None = None
    """An .npy, .npz or idx file with an array of shape (n, d); or a set of `cotswold data make
    japanese-ocr`, `folder:611200` for 611,200 training samples. `${NAME}` is replaced by the environment
    variable. Prepared on first use.
    """
    labels: Literal["none", "file"] = "none"
    """`file`: labels from `name.labels.npy` in the same folder, from the same npz, or from the matching
    idx file.
    """
    features: Features | None = None
    """Values per vector, d. Prepared data know it; give it if they are not available, as for `cotswold
    info`.
    """
    standardise: bool = True
    """Subtract the mean over the training samples from each value, and divide by the standard deviation."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of the stored values."""
    limit: Samples | None = None
    """Read at most this many vectors."""


class FrameData(SourcedData):
    """Frames of sequences, such as speech: arrays of shape (n, d)."""

    type: Literal["frames"] = "frames"
    """`frames`: each sample is a frame of d values with `context` frames on each side, (2 * context + 1) *
    d values. Samples never cross sequences, and splits consist of whole sequences.
    """
    source: Text | None = None
    """A folder or zip of .npy files, each a sequence of shape (n, d); an .npz file with `frames` (n, d)
    and `lengths`; or a folder or zip of recordings (.wav, .flac), of which each becomes frames of 40 mel
    bands. `${NAME}` is replaced by the environment variable. Prepared on first use.
    """
    include: Texts = Field(default_factory=list)
    """Glob patterns of sequence names to read; empty for all."""
    exclude: Texts = Field(default_factory=list)
    """Glob patterns of sequence names to skip."""
    labels: Literal["none", "file", "folders"] = "none"
    """`file`: labels from `name.labels.npy` in the folder of each sequence, or from the npz; spoken digits,
    `<digit>_<speaker>_<number>.flac`, are labelled by thirds of digits. `folders`: a sequence's parent folder
    is the label of its frames.
    """
    context: Annotated[int, Field(ge=0, le=1000)] = 5
    """Context frames on each side of a sample's frame."""
    features: Features | None = None
    """Values per frame, d. Prepared data know it; give it if they are not available, as for `cotswold
    info`.
    """
    standardise: bool = True
    """Subtract the mean over the training frames from each value, and divide by the standard deviation."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of the stored values."""
    limit: Samples | None = None
    """Read at most this many sequences."""


Column = Text | int
"""A column by its name or its position from 0; a negative position counts from the end."""
Columns = Annotated[list[Column], items(10_000)]


class TableData(SourcedData):
    """Rows of a table: numbers and categories."""

    type: Literal["table"] = "table"
    """`table`: each sample is a row of a CSV or Parquet file. A category becomes a feature for each of its
    values, 1 for the row's own and 0 for the others.
    """
    source: Text | None = None
    """A CSV file (`.csv`, `.tsv`, `.txt`, also `.gz`) or a Parquet file. `${NAME}` is replaced by the
    environment variable. Prepared on first use.
    """
    test_source: Text | None = None
    """A file with the same columns, whose rows are the test samples."""
    target: Column | None = None
    """The column to predict: its name, or its position from 0; -1 is the last column."""
    target_kind: Literal["auto", "class", "number"] = "auto"
    """`class`: values of the target are classes; `number`: regression; `auto`: texts, and integers of at most
    20 different values, are classes.
    """
    features: Columns = Field(default_factory=list)
    """Columns to read, by name or position; empty for all but the target and `ignore`."""
    ignore: Columns = Field(default_factory=list)
    """Columns to leave out, by name or position."""
    categorical: Columns = Field(default_factory=list)
    """Columns whose numbers are categories, such as postal codes."""
    missing: Literal["refuse", "impute"] = "refuse"
    """`refuse`: a missing value is an error; `impute`: replace it by the median of the column, or the most
    frequent category, of the training samples.
    """
    missing_values: Texts = Field(
        default_factory=lambda: [
            *("", "?", "-"),
            *("NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>"),
            *("NaN", "nan", "-NaN", "-nan"),
            *("1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
            *("NULL", "null", "None", "NaT"),
        ]
    )
    """Texts that mean a missing value; an empty value always does. The default is the list of pandas, with
    `?`, `-` and `NaT`.
    """
    new_categories: Literal["zeros", "refuse"] = "zeros"
    """A category in other data that the source lacks. `zeros`: none of the known ones, and
    an error if 20 rows or more have no known one; `refuse`: an error."""
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    """Character between the values of a line. Detected if not set."""
    header: bool | None = None
    """True if the first line has the names of columns. Detected if not set: a first line with a number or a
    missing value is a row.
    """
    decimal: Literal[".", ","] = "."
    """Decimal mark of numbers."""
    sequence: Column | None = None
    """The column that names the sequence of each row, such as an utterance. The rows of a sequence follow
    each other. Splits consist of whole sequences, and `limit` counts sequences.
    """
    context: Annotated[int, Field(ge=0, le=1000)] = 0
    """Rows of the same sequence on each side that are joined with a row to make one sample."""
    width: Features | None = None
    """Number of features of a row. Prepared data know it; give it if they are not available, as for
    `cotswold info`.
    """
    standardise: bool = True
    """Subtract the mean over the training samples from each column of numbers, and divide by the standard
    deviation. Regression targets are standardised too.
    """
    dtype: Literal["float32", "float16"] = "float32"
    """Type of the stored values."""
    limit: Samples | None = None
    """Read at most this many rows."""

    @property
    def labels(self) -> Literal["none", "file"]:
        """`file` if there is a target, else `none`."""
        return "none" if self.target is None else "file"

    @model_validator(mode="after")
    def _check_context(self) -> TableData:
        if self.context and self.sequence is None and self.store is None:
            raise ValueError("data.context joins rows of one sequence; name the column with data.sequence")
        return self


class GivenData(Section):
    """Data from a Python program; such a run can only be resumed from Python."""

    type: Literal["dataset"] = "dataset"
    """`dataset`: samples and labels come from a data set in Python."""
    samples: Samples | None = None
    """Number of samples, if the data set has a length."""
    classes: Samples | None = None
    """Number of classes, if the labels are classes."""
    validation: Fraction | Literal["dataset"] | None = None
    """Fraction of the data set that was kept for validation; `dataset` for a separate validation set."""

    @property
    def source(self) -> None:
        """Always None: the data have no file."""

    @property
    def store(self) -> None:
        """Always None: the data have no store."""


def _typed(values: object) -> object:
    """Set type to images if a table states none."""
    return {"type": "images", **values} if isinstance(values, dict) else values


Data = Annotated[
    ImageData | VectorData | FrameData | TableData | GivenData,
    Field(discriminator="type"),
    BeforeValidator(_typed),
]
