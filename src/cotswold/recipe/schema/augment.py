"""`[[data.augment]]`: augmentations of images, applied in order; one class per `name`.

Knows: the parameters of each, their units and ranges. Does not know: how images are transformed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from cotswold.recipe.bounds import hidden_maximum
from cotswold.recipe.schema.fields import Section, Text

Probability = Annotated[float, Field(ge=0, le=1)]
Shift = Annotated[int, Field(ge=0), hidden_maximum(1 << 15)]
Part = Annotated[float, Field(ge=0, le=1)]
Fill = Literal["edge", "reflect", "zero"]
Factors = Annotated[
    tuple[Annotated[float, Field(gt=0, le=100)], Annotated[float, Field(gt=0, le=100)]],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
]


def _ascending(name: str, values: tuple[float, float]) -> None:
    if values[0] > values[1]:
        raise ValueError(f"{name} must be [least, greatest], got {list(values)}")


class _Some(Section):
    probability: Probability = 1.0
    """Fraction of images to transform, 0 to 1; the others stay unchanged."""


class _Moved(_Some):
    fill: Fill = "edge"
    """Values outside the image: `edge`, the nearest pixel; `reflect`, the mirror image; `zero`, the
    prepared value 0, which is the mean grey with `per_image_standardise` or `whiten`, black otherwise.
    """


class Translation(_Moved):
    """Shift by whole pixels."""

    name: Literal["translation"] = "translation"
    """`translation`: a random shift by whole pixels, vertical and horizontal."""
    pixels: Shift | None = None
    """Largest shift in pixels, in each direction. Give either this or `fraction`."""
    fraction: Part | None = None
    """Largest shift as a fraction of the height and of the width."""

    @model_validator(mode="after")
    def _has_one(self) -> Translation:
        if (self.pixels is None) == (self.fraction is None):
            raise ValueError("translation needs either pixels or fraction; give one of them")
        return self


class Flip(Section):
    """Horizontal and vertical flips."""

    name: Literal["flip"] = "flip"
    """`flip`: random flips, left-right or up-down."""
    horizontal: Probability = 0.5
    """Probability of a horizontal flip (left-right)."""
    vertical: Probability = 0.0
    """Probability of a vertical flip (up-down)."""
    fill: Fill = "edge"
    """Fill of the neighbouring geometric transforms: with the same fill they are combined into one."""


class Rotation(_Moved):
    """Rotation about the centre."""

    name: Literal["rotation"] = "rotation"
    """`rotation`: a random rotation about the centre."""
    degrees: Annotated[float, Field(ge=0, le=180)]
    """Largest angle in degrees, in either direction."""


class Affine(_Moved):
    """Scale, stretch and shear."""

    name: Literal["affine"] = "affine"
    """`affine`: random scale, aspect ratio and shear."""
    scale: Factors = (1.0, 1.0)
    """Smallest and largest scale factor."""
    aspect: Annotated[float, Field(ge=1, le=10)] = 1.0
    """Largest factor by which the aspect ratio changes, in either direction."""
    shear: Annotated[float, Field(ge=0, le=80)] = 0.0
    """Largest shear angle of the columns in degrees, in either direction."""

    @model_validator(mode="after")
    def _check_scale(self) -> Affine:
        _ascending("scale", self.scale)
        return self


class Elastic(_Moved):
    """Elastic distortion."""

    name: Literal["elastic"] = "elastic"
    """`elastic`: a smooth random displacement of each pixel (Simard, Steinkraus, Platt 2003)."""
    alpha: Annotated[float, Field(ge=0, le=10_000)]
    """Factor of the smoothed random displacements, in pixels; before smoothing they are uniform in -1 to
    1.
    """
    sigma: Annotated[float, Field(gt=0, le=100)]
    """Standard deviation of the smoothing Gaussian, in pixels."""


class RandomCrop(_Moved):
    """Random crop of unchanged size."""

    name: Literal["random_crop"] = "random_crop"
    """`random_crop`: a random crop of the image, padded before or enlarged after, so that the size stays the
    same.
    """
    padding: Shift | None = None
    """Margin in pixels: pad the image by it, then crop a random part of the original size. Give either
    this or `area`.
    """
    area: Factors | None = None
    """Smallest and largest area of the crop, as fractions of the image (at most 1); the crop is enlarged
    to the original size.
    """
    aspect: Annotated[float, Field(ge=1, le=10)] = 1.0
    """With `area`: largest factor between the aspect ratios of the crop and of the image."""

    @model_validator(mode="after")
    def _has_one(self) -> RandomCrop:
        if (self.padding is None) == (self.area is None):
            raise ValueError("random_crop needs either padding or area; give one of them")
        if self.area is None:
            if self.aspect != 1:
                raise ValueError("aspect belongs to area; remove it, or give area instead of padding")
            return self
        _ascending("area", self.area)
        if self.area[1] > 1:
            raise ValueError(f"area must be fractions of the image, at most 1; got {list(self.area)}")
        return self


class ColourJitter(_Some):
    """Brightness, contrast, saturation, hue."""

    name: Literal["colour_jitter"] = "colour_jitter"
    """`colour_jitter`: random brightness, contrast, saturation and hue; not with `whiten`."""
    brightness: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Largest shift of all values, as a multiple of the image's standard deviation."""
    contrast: Part = 0.0
    """Largest relative change of the distance from the image's mean: 0.2 gives factors from 0.8 to 1.2."""
    saturation: Part = 0.0
    """Largest relative change of each pixel's distance from grey: 0.2 gives factors from 0.8 to 1.2."""
    hue: Annotated[float, Field(ge=0, le=180)] = 0.0
    """Largest rotation of colours about the grey axis in degrees, in either direction."""


class Cutout(_Some):
    """Cutout of a square."""

    name: Literal["cutout"] = "cutout"
    """`cutout`: set a random square to the image's mean (DeVries, Taylor 2017)."""
    pixels: Annotated[int, Field(gt=0), hidden_maximum(1 << 15)]
    """Side of the square in pixels; it may extend beyond the image."""


class Noise(_Some):
    """Additive noise."""

    name: Literal["noise"] = "noise"
    """`noise`: independent Gaussian noise on each value."""
    std: Annotated[float, Field(ge=0, le=10)]
    """Standard deviation of the noise, as a multiple of the image's."""


class Custom(Section):
    """A custom function."""

    model_config = ConfigDict(extra="allow")

    name: Literal["custom"] = "custom"
    """`custom`: a custom function; all other keys of the table are its parameters."""
    function: Text
    """`module:function`, called with values (image, channel, y, x), keys (image,) and the parameters."""

    @model_validator(mode="after")
    def _check_function(self) -> Custom:
        module, _, function = self.function.partition(":")
        if not all(part.isidentifier() for part in module.split(".")) or not function.isidentifier():
            raise ValueError(f'function must be "module:function", got "{self.function}"')
        return self


def _named(value: object) -> object:
    if isinstance(value, dict) and "name" not in value:
        raise ValueError("a transform needs a name, such as rotation")
    return value


Transform = Annotated[
    Translation | Flip | Rotation | Affine | Elastic | RandomCrop | ColourJitter | Cutout | Noise | Custom,
    Field(discriminator="name"),
    BeforeValidator(_named),
]
