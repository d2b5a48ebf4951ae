"""What every language model over token shards shares, whatever its decoder: data, loss, validation, baselines, presets.

Shapes in names: b sequences, t positions, v vocabulary.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  torch's own convention

from trainwright.data import shards
from trainwright.data.shards import Tokens
from trainwright.data.windows import TokenBatch, TokenSource
from trainwright.errors import DataError, InputError, about
from trainwright.models.cross_entropy import mean_cross_entropy
from trainwright.models.presets import known_preset
from trainwright.models.token_net import TokenNet, TokenShape
from trainwright.torch_trainable import TorchTrainable
from trainwright.trainable import Metric, Setup

Count = Annotated[int, Field(ge=1)]
Stamp = Mapping[str, str | int | float | bool]


class DataOptions(BaseModel):
    """The section `data:` of a language model: a folder of token shards."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path
    exhaustion: Literal["cycle", "halt"] = "cycle"
    verify: bool = True  # hash every shard before step 0; False: trust that they are as the manifest says
    dtype: shards.Dtype = "uint32"  # this and the next for a folder without a manifest only
    vocabulary_size: Count | None = None  # None: as the largest token needs


class TokenModelOptions(BaseModel):
    """The section `model:` of a language model. A value that is given wins over the preset's.

    A subclass names its presets, the class of their shapes, whose fields its own options are, and which of them are
    `needed` where no preset is given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    presets: ClassVar[Mapping[str, Any]]
    shape_class: ClassVar[type[Any]]
    needed: ClassVar[Sequence[str]]

    preset: str | None = None
    layers: Count | None = None
    width: Count | None = None
    context: Count | None = None
    vocabulary_size: Count | None = None  # None: the data's
    tied: bool | None = None  # None: one matrix embeds and predicts

    @field_validator("preset")
    @classmethod
    def _known(cls, preset: str | None) -> str | None:
        return known_preset(preset, cls.presets)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        missing = [name for name in self.needed if getattr(self, name) is None]
        if self.preset is None and missing:
            raise ValueError(f"give {', '.join(missing)}, or a preset: {', '.join(self.presets)}")
        try:
            self.shape(self.vocabulary_size or 1)
        except InputError as error:
            raise ValueError(str(error)) from error
        return self

    def shape(self, data_vocabulary_size: int | None = None) -> Any:
        """Give the whole shape. Errors: InputError when numbers do not fit each other or the data's vocabulary."""
        names = [field.name for field in fields(self.shape_class)]
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if data_vocabulary_size is not None:
            given.setdefault("vocabulary_size", data_vocabulary_size)
        if self.preset is None and "vocabulary_size" not in given:
            raise InputError("model.vocabulary_size is not given and there are no data to take it from; set it")
        given = self.filled(given)
        shape = self.shape_class(**given) if self.preset is None else replace(self.presets[self.preset], **given)
        check_vocabulary(shape.vocabulary_size, data_vocabulary_size)
        return shape

    def filled(self, given: dict[str, Any]) -> dict[str, Any]:
        """Give the values of a shape with those that follow from others."""
        return given


def check_vocabulary(size: int, data_size: int | None) -> None:
    """Errors: InputError when the data's vocabulary is larger than the model's."""
    if data_size is not None and data_size > size:
        raise InputError(
            f"the data's vocabulary has {data_size} tokens, model.vocabulary_size is "
            f"{size}; raise it, or leave it out to take the data's"
        )


def open_shards(data: DataOptions) -> shards.Shards:
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


def entropies(parts: Iterable[Tokens], vocabulary_size: int) -> Mapping[str, float]:
    """Give the entropy in nats of these tokens without context, and of equally likely tokens."""
    return {"unigram_entropy": shards.unigram_entropy(parts), "uniform_entropy": math.log(vocabulary_size)}


def sequence_losses(logits_btv: Tensor, batch: TokenBatch) -> Sequence[tuple[float, int]]:
    """Give the mean cross entropy in nats and the length of each sequence, computed in fp32."""
    losses_n = F.cross_entropy(logits_btv.float().flatten(0, 1), batch.targets_bt.flatten(), reduction="none")
    losses_bt = losses_n.view_as(batch.targets_bt)
    return [(loss, losses_bt.shape[1]) for loss in losses_bt.mean(1).tolist()]


class TokenModel(TorchTrainable):
    """Fits a decoder to the next token of every position; the loss is the mean cross entropy in nats.

    A subclass names the class of its decoder, that of the decoder's shape, and the numbers besides the shape that
    decide the mathematics; its options give the shape with `shape(data_vocabulary_size)`.
    """

    data_options = DataOptions
    decoder: TokenNet
    decoder_class: ClassVar[type[Any]]  # of `TokenNet`, called with a shape
    shape_class: ClassVar[type[Any]]
    constants: ClassVar[Mapping[str, float]]

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        data: DataOptions = setup.data
        with about("data.path"):
            self.shards = open_shards(data)
        with about("model.vocabulary_size"):
            shape: TokenShape = setup.model.shape(self.shards.vocabulary_size)
        with about("data.path"):
            self.source = TokenSource(
                self.shards,
                context=shape.context,
                batch_size=setup.batch_size,
                seed=setup.seed,
                exhaustion=data.exhaustion,
                validation_batches=setup.validation_batches,
            )
        self.decoder = self.decoder_class(shape)

    @property
    def architecture(self) -> Stamp:
        """Give all that determines tensors and mathematics, for a checkpoint to be matched with."""
        return {"type": self.model_type, **asdict(self.decoder.shape), **self.constants}

    @classmethod
    def rebuilt(cls, stamped: Mapping[str, Any]) -> TokenNet:
        """Make a decoder of a stamped architecture. Errors: InputError with what this release cannot build."""
        names = [field.name for field in fields(cls.shape_class)]
        differing = [f"{key} {stamped.get(key)!r}" for key, value in cls.constants.items() if stamped.get(key) != value]
        missing = [name for name in names if name not in stamped]
        if differing or missing:
            raise InputError(f"this release cannot build its architecture: {', '.join((*differing, *missing))}")
        return cast("TokenNet", cls.decoder_class(cls.shape_class(**{name: stamped[name] for name in names})))

    @property
    def multiplying_weights(self) -> int:
        """Give the number of weights in matrices that multiply a token: the look-up of an embedding is no operation."""
        matrices = sum(weight.numel() for weight in self.decoder.parameters() if weight.dim() == 2)
        shape = self.decoder.shape
        return matrices if shape.tied else matrices - shape.vocabulary_size * shape.width

    @property
    def validation_metric(self) -> Metric:
        return Metric("val_loss", "nats", "min")

    @cached_property
    def baselines(self) -> Mapping[str, float]:
        """Give the entropy in nats of the validation tokens without context, and of equally likely tokens."""
        return entropies(self.shards.validation.values(), self.decoder.shape.vocabulary_size)

    def forward(self, batch: TokenBatch) -> Tensor:
        """Give logits_btv."""
        return self.decoder(batch.inputs_bt)  # type: ignore[no-any-return]  # nn.Module gives Any

    def compute_loss(self, predictions: Tensor, batch: TokenBatch) -> tuple[Tensor, int]:
        """Give the mean cross entropy of logits_btv in nats, computed in fp32, and the number of targets."""
        loss = mean_cross_entropy(predictions.float().flatten(0, 1), batch.targets_bt.flatten())
        return loss, batch.targets_bt.numel()

    def losses_of(self, batch: TokenBatch) -> Sequence[tuple[float, int]]:
        """Give the loss and length of each sequence."""
        return sequence_losses(self.forward(batch), batch)
