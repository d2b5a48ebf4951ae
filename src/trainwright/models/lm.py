"""The language model: a decoder fitted to the next token of every position of token shards.

Shapes in names: b sequences, t positions, v vocabulary.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  torch's own convention

from trainwright.data import shards
from trainwright.data.windows import TokenBatch, TokenSource
from trainwright.errors import DataError, InputError, about
from trainwright.models.cross_entropy import mean_cross_entropy
from trainwright.models.decoder import RMS_EPS, ROPE_THETA, Decoder, Shape
from trainwright.torch_trainable import TorchTrainable
from trainwright.trainable import Metric, Setup

Count = Annotated[int, Field(ge=1)]


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
        if preset is not None and preset not in PRESETS:
            nearest = difflib.get_close_matches(preset.lower(), PRESETS, n=1, cutoff=0.5)
            advice = f"did you mean {nearest[0]!r}?" if nearest else f"known presets: {', '.join(PRESETS)}"
            raise ValueError(f"unknown preset {preset!r}; {advice}")
        return preset

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
    if data_vocabulary_size is not None and data_vocabulary_size > shape.vocabulary_size:
        raise InputError(
            f"the data's vocabulary has {data_vocabulary_size} tokens, model.vocabulary_size is "
            f"{shape.vocabulary_size}; raise it, or leave it out to take the data's"
        )
    return shape


class DataOptions(BaseModel):
    """The section `data:` of a language model: a folder of token shards."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path
    exhaustion: Literal["cycle", "halt"] = "cycle"
    verify: bool = True  # hash every shard before step 0; False: trust that they are as the manifest says
    dtype: shards.Dtype = "uint32"  # this and the next for a folder without a manifest only
    vocabulary_size: Count | None = None  # None: as the largest token needs


def _shards(data: DataOptions) -> shards.Shards:
    """Open the folder. Errors: DataError for one that is not as its manifest says, or holds no validation data."""
    found = shards.load(data.path, dtype=data.dtype, vocabulary_size=data.vocabulary_size)
    if not found.validation:
        advice = (
            "prepare it again with a larger --validation-share"
            if found.manifest
            else "add a file whose name holds val, as in val.bin"
        )
        raise DataError(f"{data.path}: holds no validation data; {advice}")
    if data.verify:
        found.verify_hashes()
    return found


class LM(TorchTrainable):
    """Fits a `Decoder` to the next token of every position; the loss is the mean cross entropy in nats."""

    model_type = "lm"
    options = LMOptions
    data_options = DataOptions

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        model: LMOptions = setup.model
        data: DataOptions = setup.data
        with about("data.path"):
            self.shards = _shards(data)
        with about("model.vocabulary_size"):
            shape = model.shape(self.shards.vocabulary_size)
        with about("data.path"):
            self.source = TokenSource(
                self.shards,
                context=shape.context,
                batch_size=setup.batch_size,
                seed=setup.seed,
                exhaustion=data.exhaustion,
                validation_batches=setup.validation_batches,
            )
        self.decoder = Decoder(shape)

    @property
    def architecture(self) -> Mapping[str, str | int | float | bool]:
        """Give all that determines tensors and mathematics, for a checkpoint to be matched with."""
        return {"type": self.model_type, **asdict(self.decoder.shape), "rms_eps": RMS_EPS, "rope_theta": ROPE_THETA}

    @property
    def flops_per_item(self) -> float:
        """Give the fewest operations of a token: 6 a weight that multiplies it, and attention to the tokens before.

        Kaplan et al. 2020, section 2.1, and Chowdhery et al. 2022 (PaLM), appendix B; of the latter's 12 · layers ·
        width · context for attention, the half that a causal mask leaves. The look-up of an embedding is no operation.
        """
        shape, embedding = self.decoder.shape, self.decoder.embed_tokens.weight
        matrices = sum(weight.numel() for weight in self.decoder.parameters() if weight.dim() == 2)
        multiplying = matrices if shape.tied else matrices - embedding.numel()
        return 6.0 * multiplying + 6.0 * shape.layers * shape.width * shape.context

    @property
    def validation_metric(self) -> Metric:
        return Metric("val_loss", "nats", "min")

    @cached_property
    def baselines(self) -> Mapping[str, float]:
        """Give the entropy in nats of the validation tokens without context, and of equally likely tokens."""
        return {
            "unigram_entropy": shards.unigram_entropy(self.shards.validation.values()),
            "uniform_entropy": math.log(self.decoder.shape.vocabulary_size),
        }

    def forward(self, batch: TokenBatch) -> Tensor:
        """Give logits_btv."""
        return self.decoder(batch.inputs_bt)  # type: ignore[no-any-return]  # nn.Module gives Any

    def compute_loss(self, predictions: Tensor, batch: TokenBatch) -> tuple[Tensor, int]:
        """Give the mean cross entropy of logits_btv in nats, computed in fp32, and the number of targets."""
        loss = mean_cross_entropy(predictions.float().flatten(0, 1), batch.targets_bt.flatten())
        return loss, batch.targets_bt.numel()

    def losses_of(self, batch: TokenBatch) -> Sequence[tuple[float, int]]:
        """Give the loss and length of each sequence."""
        logits_nv = self.forward(batch).float().flatten(0, 1)
        losses_n = F.cross_entropy(logits_nv, batch.targets_bt.flatten(), reduction="none")
        losses_bt = losses_n.view_as(batch.targets_bt)
        return [(loss, losses_bt.shape[1]) for loss in losses_bt.mean(1).tolist()]
