"""The Mamba-2 language model: a state-space decoder fitted to the next token of every position of token shards."""

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from trainwright.models.state_space import NORM_EPS, Mamba2Decoder, Shape
from trainwright.models.token_model import Count, TokenModel, TokenModelOptions

# A name counts the parameters at the vocabulary of its row. With data, the vocabulary is the data's.
PRESETS: Final[Mapping[str, Shape]] = {
    "0.54m": Shape(4, 128, 32, 64, 256, 512),
    "3.2m": Shape(5, 256, 64, 64, 128, 4_096),
    "15m": Shape(6, 384, 64, 64, 256, 24_000),
    "50m": Shape(14, 512, 64, 128, 512, 50_257),
    "130m": Shape(24, 768, 64, 128, 1_024, 50_257),
    "370m": Shape(48, 1_024, 64, 128, 512, 50_257),
}


class Mamba2Options(TokenModelOptions):
    """The section `model:` of a Mamba-2 language model."""

    presets = PRESETS
    shape_class = Shape
    needed = ("layers", "width", "head_width", "state_size", "context")

    type: Literal["mamba2"] = "mamba2"
    expand: Count | None = None  # inner width as a multiple of the width; None: 2
    head_width: Count | None = None
    groups: Count | None = None  # of heads that share B and C; None: 1
    state_size: Count | None = None
    conv_width: Count | None = None  # None: 4
    chunk: Count | None = None  # positions taken at once: other bits and speed, the same mathematics; None: 64


class Mamba2(TokenModel):
    """A language model of Mamba-2 blocks (Dao and Gu 2024)."""

    model_type = "mamba2"
    options = Mamba2Options
    decoder: Mamba2Decoder
    decoder_class = Mamba2Decoder
    shape_class = Shape
    constants: ClassVar = {"norm_eps": NORM_EPS}

    @property
    def flops_per_item(self) -> float:
        """Give the fewest operations of a token: 6 a weight that multiplies it, and of the mixing the cheaper form.

        Of the dual forms the recurrence takes two multiplications and additions for each number of the state, and the
        quadratic one, with what is causal alone, (n + p·heads) for each position before (Dao and Gu 2024, section 6).
        """
        shape = self.decoder.shape
        convolved = shape.conv_width * shape.channels
        recurrent = 2 * shape.inner_width * shape.state_size
        quadratic = (shape.context + 1) / 2 * (shape.groups * shape.state_size + shape.inner_width)
        return 6.0 * (self.multiplying_weights + shape.layers * (convolved + min(recurrent, quadratic)))
