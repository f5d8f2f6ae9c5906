"""`[data]`: what the samples are, where they come from and how they are prepared; one class a `type`.

Knows: the fields of each type. Does not know: files, stores.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from cotswold.recipe.bounds import at_most, items
from cotswold.recipe.schema.augment import Colour, Transform
from cotswold.recipe.schema.fields import ByteSize, Features, Fraction, Pair, Samples, Section, Text, Texts


class SourcedData(Section):
    """Samples that are read from files and kept in a store."""

    type: str
    """What a sample is."""
    source: Text | None = None
    """Where the samples are."""
    store: Text | None = None
    """A store that `cotswold prepare` wrote; used as it is. Either `source` or `store` is needed."""
    splits: Literal["auto", "random", "folders"] = "auto"
    """`folders`: the top folders (or files, or arrays) are named train, validation (or val, dev) and test (or
    eval); `random`: `validation` and `test` are drawn at random, from each class alike, but what is named
    test or validation stays there; `auto`: `folders` where everything has such a name, otherwise `random`."""
    validation: Fraction = 0.05
    """The part of the training samples that is kept for validation."""
    test: Fraction = 0.0
    """The part of the samples that is kept for testing, where splits are drawn at random."""
    servers: Annotated[int, Field(ge=0), at_most(10_000)] | Text = 0
    """Data servers: processes apart that read, augment and hand out training samples. A number: so many are
    started with the run, and end with it; a text, `HOST:PORT`: a pool that somebody has started; 0:
    the run reads for itself. No bit of a result depends on it."""
    cache: ByteSize = "1 GB"
    """Memory in which each data server keeps shards of the data, at most: `512 MB`, `4 GB`. For servers that
    the run starts, and for `cotswold serve data` with this recipe; a pool at `HOST:PORT` keeps to what it was
    started with."""

    @field_validator("servers")
    @classmethod
    def _are_somewhere(cls, value: int | str) -> int | str:
        if isinstance(value, str):
            server_place(value)
        return value


def server_place(text: str) -> tuple[str, int]:
    """Host and port of a pool of data servers; raises ValueError for what names none.

    >>> server_place("10.0.0.1:4000"), server_place("[::1]:4000")
    (('10.0.0.1', 4000), ('::1', 4000))
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ValueError(f"{text!r:.80} names no pool; write a number of servers to start, or HOST:PORT")
    return host, int(port)


class PictureData(SourcedData):
    """Pictures, scaled and cut to one size."""

    type: Literal["pictures"] = "pictures"
    """`pictures`, where nothing is said: a sample is a picture."""
    source: Text | None = None
    """A folder or zip of pictures, an .npy or .npz file, MNIST's idx, CIFAR-10's binary files, or
    `builtin:demo`; `${NAME}` is replaced by the environment variable. Prepared on first use."""
    include: Texts = Field(default_factory=list)
    """Patterns of paths inside the source that are read, such as `train/*`; empty for all."""
    exclude: Texts = Field(default_factory=list)
    """Patterns of paths inside the source that are left out, such as `Faces/*`."""
    labels: Literal["none", "folders", "file"] = "none"
    """`folders`: a picture's parent folder is its label; `file`: the labels that npz, idx and CIFAR-10
    carry."""
    size: Pair = 200
    """Height and width in pixels; the picture is scaled to cover them and cut in the centre."""
    colour: Annotated[
        Literal["rgb", "grey"], BeforeValidator(lambda value: "grey" if value == "gray" else value)
    ] = "rgb"
    """Channels of the prepared pictures: 3 or 1."""
    contrast: bool = True
    """Subtract each picture's mean and divide by its standard deviation."""
    whiten: bool = True
    """Whiten by a filter made from the set's own power spectrum and colour covariance."""
    band: Annotated[float, Field(gt=0, le=1)] = 0.7
    """The upper end of the whitened band, as a fraction of the highest frequency (Nyquist) of the smaller
    side; the filter rolls off above it."""
    unit: bool = False
    """Scale every prepared picture to a root mean square of 1."""
    dtype: Literal["float16", "uint8"] = "float16"
    """How the store keeps values; uint8 keeps one scale for the whole set."""
    limit: Samples | None = None
    """Read at most so many pictures."""
    augment: Annotated[list[Transform], items(100)] = Field(default_factory=list)
    """Transforms of the pictures that are learnt from, in this order; each epoch sees another variant."""

    @model_validator(mode="after")
    def _has_colours(self) -> PictureData:
        if self.whiten and self.store is None and any(isinstance(each, Colour) for each in self.augment):
            raise ValueError(
                "data.augment has a transform of colours, and whitened pictures have none left; set whiten = "
                "false, or leave it out"
            )
        for each in self.augment if self.store is None else []:
            if self.colour == "grey" and isinstance(each, Colour) and (each.hue or each.saturation):
                name = "hue" if each.hue else "saturation"
                raise ValueError(
                    f"data.augment has a colour transform with {name}, and grey pictures have none; take "
                    f'{name} out, or set colour = "rgb"'
                )
        return self


class VectorData(SourcedData):
    """Rows of an array of shape (n, d)."""

    type: Literal["vectors"] = "vectors"
    """`vectors`: a sample is one row of d values."""
    source: Text | None = None
    """An .npy, .npz or idx file with an array of shape (n, d); or a set of `cotswold data make japanese-ocr`,
    `folder:611200` for so many training patterns. `${NAME}` is replaced by the environment variable.
    Prepared on first use."""
    labels: Literal["none", "file"] = "none"
    """`file`: the labels in `name.labels.npy` beside, in the same npz, or in the idx file beside."""
    features: Features | None = None
    """Values of a vector, d. The prepared data say it; give it where they are not at hand, as `cotswold info`
    needs it then."""
    standardise: bool = True
    """Subtract from each value the mean over the training samples, and divide by the standard deviation."""
    dtype: Literal["float32", "float16"] = "float32"
    """How the store keeps values."""
    limit: Samples | None = None
    """Read at most so many vectors."""


class FrameData(SourcedData):
    """Frames of sequences, such as speech: arrays of shape (n, d)."""

    type: Literal["frames"] = "frames"
    """`frames`: a sample is a frame of d values with `context` frames on each side, (2 * context + 1) * d
    values. Samples never cross sequences, and splits are made of whole sequences."""
    source: Text | None = None
    """A folder or zip of .npy files, each a sequence of shape (n, d), or an .npz file with `frames` (n, d)
    and `lengths`; or a folder or zip of spoken digits, `<digit>_<speaker>_<number>.flac`, whose labels are
    thirds of digits. `${NAME}` is replaced by the environment variable. Prepared on first use."""
    include: Texts = Field(default_factory=list)
    """Patterns of sequences' names that are read; empty for all."""
    exclude: Texts = Field(default_factory=list)
    """Patterns of sequences' names that are left out."""
    labels: Literal["none", "file", "folders"] = "none"
    """`file`: those in `name.labels.npy` beside each sequence, or in the npz; `folders`: a sequence's parent
    folder is the label of its frames."""
    context: Annotated[int, Field(ge=0, le=1000)] = 5
    """Frames on each side that belong to a sample."""
    features: Features | None = None
    """Values of one frame, d. The prepared data say it; give it where they are not at hand, as `cotswold
    info` needs it then."""
    standardise: bool = True
    """Subtract from each value the mean over the training frames, and divide by the standard deviation."""
    dtype: Literal["float32", "float16"] = "float32"
    """How the store keeps values."""
    limit: Samples | None = None
    """Read at most so many sequences."""


class GivenData(Section):
    """What a Python program gives; such a run is resumed from Python only."""

    type: Literal["dataset"] = "dataset"
    """`dataset`: samples and labels are those of a data set in Python."""
    samples: Samples | None = None
    """How many samples it has, where it has a length."""
    classes: Samples | None = None
    """How many classes its labels name, where they do."""
    validation: Fraction | Literal["dataset"] | None = None
    """The fraction of it that was kept for validation; `dataset`: a data set of its own."""

    @property
    def source(self) -> None:
        """It has no file."""

    @property
    def store(self) -> None:
        """It has no store."""


def _typed(values: object) -> object:
    """Pictures, where a table does not say its type."""
    return {"type": "pictures", **values} if isinstance(values, dict) else values


Data = Annotated[
    PictureData | VectorData | FrameData | GivenData, Field(discriminator="type"), BeforeValidator(_typed)
]
