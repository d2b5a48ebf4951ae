"""The language model: a decoder fitted to the next token of every position of token shards."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from trainwright.errors import InputError
from trainwright.models.decoder import RMS_EPS, ROPE_THETA, Decoder, Shape
from trainwright.models.token_model import Count, DataOptions, TokenModel, fitting_vocabulary, known_preset

__all__ = ["LM", "PRESETS", "DataOptions", "LMOptions"]

# A name counts the parameters at the vocabulary of its row. With data, the vocabulary is the data's.
PRESETS: Final[Mapping[str, Shape]] = {
    "0.8m": Shape(4, 128, 4, 4, 344, 64, 65),
    "4.3m": Shape(4, 256, 4, 4, 704, 128, 4_096),
    "15m": Shape(6, 288, 6, 6, 768, 256, 32_000),
    "50m": Shape(8, 512, 8, 8, 1_376, 512, 50_257),
    "124m": Shape(12, 768, 12, 12, 2_048, 1_024, 50_257),
    "370m": Shape(25, 1_024, 16, 16, 2_816, 512, 50_257),
}


class LMOptions(BaseModel):
    """The section `model:` of a language model. A value that is given wins over the preset's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["lm"] = "lm"
    preset: str | None = None
    layers: Count | None = None
    width: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None  # None: one for each head
    mlp_width: Count | None = None  # None: 8/3 of the width, up to a multiple of 8 (Shazeer 2020, section 2)
    context: Count | None = None
    vocabulary_size: Count | None = None  # None: the data's
    tied: bool | None = None  # None: one matrix embeds and predicts

    @field_validator("preset")
    @classmethod
    def _known(cls, preset: str | None) -> str | None:
        return known_preset(preset, PRESETS)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        missing = [name for name in ("layers", "width", "heads", "context") if getattr(self, name) is None]
        if self.preset is None and missing:
            raise ValueError(f"give {', '.join(missing)}, or a preset: {', '.join(PRESETS)}")
        try:
            self.shape(self.vocabulary_size or 1)
        except InputError as error:
            raise ValueError(str(error)) from error
        return self

    def shape(self, data_vocabulary_size: int | None = None) -> Shape:
        """Give the whole shape. Errors: InputError when numbers do not fit each other or the data's vocabulary."""
        names = ("layers", "width", "heads", "kv_heads", "mlp_width", "context", "vocabulary_size", "tied")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if "heads" in given:
            given.setdefault("kv_heads", given["heads"])
        if data_vocabulary_size is not None:
            given.setdefault("vocabulary_size", data_vocabulary_size)
        if self.preset is not None:
            return _fitting(replace(PRESETS[self.preset], **given), data_vocabulary_size)
        if "vocabulary_size" not in given:
            raise InputError("model.vocabulary_size is not given and there are no data to take it from; set it")
        return _fitting(Shape(**{"mlp_width": 8 * math.ceil(given["width"] / 3), **given}), data_vocabulary_size)


def _fitting(shape: Shape, data_vocabulary_size: int | None) -> Shape:
    fitting_vocabulary(shape.vocabulary_size, data_vocabulary_size)
    return shape


class LM(TokenModel):
    """A language model in the Llama shape."""

    model_type = "lm"
    options = LMOptions
    decoder: Decoder
    decoder_class = Decoder
    shape_class = Shape
    constants: ClassVar = {"rms_eps": RMS_EPS, "rope_theta": ROPE_THETA}

    @property
    def flops_per_item(self) -> float:
        """Give the fewest operations of a token: 6 a weight that multiplies it, and attention to the tokens before.

        Kaplan et al. 2020, section 2.1, and Chowdhery et al. 2022 (PaLM), appendix B; of the latter's 12 · layers ·
        width · context for attention, the half that a causal mask leaves.
        """
        shape = self.decoder.shape
        return 6.0 * self.multiplying_weights + 6.0 * shape.layers * shape.width * shape.context
