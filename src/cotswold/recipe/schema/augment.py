"""`[[data.augment]]`: transforms that make variants of pictures, in their order; one class a `name`.

Knows: the parameters of each, their units and ranges. Does not know: how pictures are transformed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from cotswold.recipe.bounds import at_most
from cotswold.recipe.schema.fields import Section, Text

Probability = Annotated[float, Field(ge=0, le=1)]
Shift = Annotated[int, Field(ge=0), at_most(1 << 15)]
Part = Annotated[float, Field(ge=0, le=1)]
Fill = Literal["edge", "reflect", "zero"]
Factors = Annotated[
    tuple[Annotated[float, Field(gt=0, le=100)], Annotated[float, Field(gt=0, le=100)]],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
]


def _ascending(name: str, values: tuple[float, float]) -> None:
    if values[0] > values[1]:
        raise ValueError(f"{name} is {list(values)}; give the least, then the greatest")


class _Some(Section):
    probability: Probability = 1.0
    """Of how many of the pictures it is done, 0 to 1; others pass it unchanged."""


class _Moved(_Some):
    fill: Fill = "edge"
    """What comes from outside of the picture: `edge`, its nearest pixel; `reflect`, its mirror image; `zero`,
    the prepared value 0, which is black where neither `contrast` nor `whiten` is set, else the mean grey."""


class Translation(_Moved):
    """A shift by whole pixels."""

    name: Literal["translation"] = "translation"
    """`translation`: a shift by whole pixels, up, down, left and right."""
    pixels: Shift | None = None
    """By so many pixels at most, each way. Either this or `fraction`."""
    fraction: Part | None = None
    """By this part of the height, and of the width, at most."""

    @model_validator(mode="after")
    def _has_one(self) -> Translation:
        if (self.pixels is None) == (self.fraction is None):
            raise ValueError("translation needs either pixels or fraction; give one of them")
        return self


class Reflection(Section):
    """Mirror images."""

    name: Literal["reflection"] = "reflection"
    """`reflection`: left and right exchanged, or up and down."""
    horizontal: Probability = 0.5
    """How likely left and right are exchanged."""
    vertical: Probability = 0.0
    """How likely up and down are exchanged."""
    fill: Fill = "edge"
    """That of the moves beside it: with the same fill they are taken in one."""


class Rotation(_Moved):
    """A turn."""

    name: Literal["rotation"] = "rotation"
    """`rotation`: a turn about the middle."""
    degrees: Annotated[float, Field(ge=0, le=180)]
    """By so many degrees at most, either way."""


class Affine(_Moved):
    """Scale, stretch and shear."""

    name: Literal["affine"] = "affine"
    """`affine`: larger or smaller, stretched, sheared."""
    scale: Factors = (1.0, 1.0)
    """Least and greatest factor of the size."""
    aspect: Annotated[float, Field(ge=1, le=10)] = 1.0
    """Height against width changes by a factor of at most this, either way."""
    shear: Annotated[float, Field(ge=0, le=80)] = 0.0
    """Columns lean by so many degrees at most, either way."""

    @model_validator(mode="after")
    def _is_ascending(self) -> Affine:
        _ascending("scale", self.scale)
        return self


class Elastic(_Moved):
    """Elastic distortion."""

    name: Literal["elastic"] = "elastic"
    """`elastic`: a smooth random displacement of each pixel (Simard, Steinkraus, Platt 2003)."""
    alpha: Annotated[float, Field(ge=0, le=10_000)]
    """What the smoothed random numbers, uniform in -1 to 1 before, are multiplied by, pixels."""
    sigma: Annotated[float, Field(gt=0, le=100)]
    """Standard deviation of the Gaussian that smoothes them, pixels."""


class Crop(_Moved):
    """A part of the picture, as large as the picture."""

    name: Literal["crop"] = "crop"
    """`crop`: a part of the picture, or of the picture with a margin, of the same size afterwards."""
    pad: Shift | None = None
    """Put a margin of so many pixels around it, then cut a part of its size anywhere. Either this or
    `area`."""
    area: Factors | None = None
    """Cut a part of this area, least and greatest as parts of the whole (at most 1), and enlarge it."""
    aspect: Annotated[float, Field(ge=1, le=10)] = 1.0
    """With `area`: height against width of the part differ from the picture's by this factor at most."""

    @model_validator(mode="after")
    def _has_one(self) -> Crop:
        if (self.pad is None) == (self.area is None):
            raise ValueError("crop needs either pad or area; give one of them")
        if self.area is None:
            if self.aspect != 1:
                raise ValueError("aspect belongs to area; take it out, or give area instead of pad")
            return self
        _ascending("area", self.area)
        if self.area[1] > 1:
            raise ValueError(f"area is {list(self.area)}: parts of the picture, 1 at most")
        return self


class Colour(_Some):
    """Brightness, contrast, saturation, hue."""

    name: Literal["colour"] = "colour"
    """`colour`: brightness, contrast, saturation and hue; not with `whiten`."""
    brightness: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Shift all values by at most this times the picture's standard deviation."""
    contrast: Part = 0.0
    """Multiply the distance from the picture's mean by a factor of up to this more or less than 1."""
    saturation: Part = 0.0
    """Multiply the distance from grey, pixel by pixel, by a factor of up to this more or less than 1."""
    hue: Annotated[float, Field(ge=0, le=180)] = 0.0
    """Turn colours about the grey axis by so many degrees at most, either way."""


class Erase(_Some):
    """A square is erased."""

    name: Literal["erase"] = "erase"
    """`erase`: a square set to the picture's mean (DeVries, Taylor 2017)."""
    pixels: Annotated[int, Field(gt=0), at_most(1 << 15)]
    """Its side; what would lie outside of the picture is cut off."""


class Noise(_Some):
    """Noise."""

    name: Literal["noise"] = "noise"
    """`noise`: normal noise, each value its own."""
    deviation: Annotated[float, Field(ge=0, le=10)]
    """Its standard deviation, as a part of the picture's own."""


class Own(Section):
    """A function of one's own."""

    model_config = ConfigDict(extra="allow")

    name: Literal["own"] = "own"
    """`own`: a function of yours; what else stands in the table are its parameters."""
    function: Text
    """`module:function`, called with values (image, channel, y, x), keys (image,) and the parameters."""

    @model_validator(mode="after")
    def _is_a_function(self) -> Own:
        module, _, function = self.function.partition(":")
        if not all(part.isidentifier() for part in module.split(".")) or not function.isidentifier():
            raise ValueError(f'function is "{self.function}"; write module:function')
        return self


def _named(value: object) -> object:
    if isinstance(value, dict) and "name" not in value:
        raise ValueError("a transform needs a name, such as rotation")
    return value


Transform = Annotated[
    Translation | Reflection | Rotation | Affine | Elastic | Crop | Colour | Erase | Noise | Own,
    Field(discriminator="name"),
    BeforeValidator(_named),
]
