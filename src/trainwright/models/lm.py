"""The language model: a decoder fitted to the next token of every position of token shards."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from trainwright.models.decoder import RMS_EPS, ROPE_THETA, Decoder, Shape
from trainwright.models.token_model import Count, DataOptions, TokenModel, TokenModelOptions

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


class LMOptions(TokenModelOptions):
    """The section `model:` of a language model in the Llama shape."""

    presets = PRESETS
    shape_class = Shape
    needed = ("layers", "width", "heads", "context")

    type: Literal["lm"] = "lm"
    heads: Count | None = None
    kv_heads: Count | None = None  # None: one for each head
    mlp_width: Count | None = None  # None: 8/3 of the width, up to a multiple of 8 (Shazeer 2020, section 2)

    def filled(self, given: dict[str, Any]) -> dict[str, Any]:
        of_heads = {"kv_heads": given["heads"]} if "heads" in given else {}
        of_width = {"mlp_width": 8 * math.ceil(given["width"] / 3)} if self.preset is None else {}
        return {**of_heads, **of_width, **given}


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
