"""Presets of a section `model:`: the check of their names, and presets that are values of the section's own keys."""

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from pydantic import BaseModel, field_validator, model_validator

Presets: TypeAlias = Mapping[str, Mapping[str, Any]]


def known_preset(preset: str | None, presets: Mapping[str, Any]) -> str | None:
    """Return `preset`. Errors: ValueError, for pydantic to tell, with the nearest name or all of them."""
    if preset is not None and preset not in presets:
        nearest = difflib.get_close_matches(preset.lower(), presets, n=1, cutoff=0.5)
        advice = f"did you mean {nearest[0]!r}?" if nearest else f"known presets: {', '.join(presets)}"
        raise ValueError(f"unknown preset {preset!r}; {advice}")
    return preset


class WithPresets(BaseModel):
    """The base of options with defaults: a value that is given wins over the preset's, this one over the default."""

    presets: ClassVar[Presets]

    preset: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, given: Any) -> Any:
        name = given.get("preset") if isinstance(given, Mapping) else None
        return {**cls.presets[name], **given} if isinstance(name, str) and name in cls.presets else given

    @field_validator("preset")
    @classmethod
    def _known(cls, preset: str | None) -> str | None:
        return known_preset(preset, cls.presets)
