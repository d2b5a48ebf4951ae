"""The options of the Temporal Fusion Transformer, as run.yaml gives them: the section `model:`."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from trainwright.errors import InputError
from trainwright.models.forecasters import ForecasterOptions
from trainwright.models.presets import known_preset
from trainwright.models.tft_network import Shape

Count = Annotated[int, Field(ge=1)]

PRESETS: Final[Mapping[str, Shape]] = {
    "small": Shape(width=16, heads=2),
    "medium": Shape(width=64, heads=4),
    "large": Shape(width=160, heads=4),  # the paper's for electricity and for volatility
}


class TFTOptions(ForecasterOptions):
    """The section `model:`. A value that is given wins over the preset's."""

    type: Literal["tft"] = "tft"
    preset: str | None = None
    width: Count | None = None  # of every vector in the net
    heads: Count | None = None  # of attention; they divide the width
    lstm_layers: Count | None = None  # None: the preset's, or else 1
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None  # None: the preset's, or else 0.1

    @field_validator("preset")
    @classmethod
    def _known(cls, preset: str | None) -> str | None:
        return known_preset(preset, PRESETS)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        missing = [name for name in ("width", "heads") if getattr(self, name) is None]
        if self.preset is None and missing:
            raise ValueError(f"give {', '.join(missing)}, or a preset: {', '.join(PRESETS)}")
        try:
            self.shape()
        except InputError as error:
            raise ValueError(str(error)) from error
        return self

    def shape(self) -> Shape:
        """Give the whole shape. Errors: InputError when numbers do not fit each other."""
        names = [field.name for field in fields(Shape)]
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return Shape(**given) if self.preset is None else replace(PRESETS[self.preset], **given)
