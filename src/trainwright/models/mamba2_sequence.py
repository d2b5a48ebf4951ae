"""Mamba-2 over whole sequences of reals or tokens: it tells the class of each, or numbers.

Shapes in names: b sequences, t positions, f features, d width, c classes, o numbers of a target.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own convention

from trainwright.data.passes import spread
from trainwright.data.sequence_batches import SequenceSource
from trainwright.data.sequences import SequenceBatch, Sequences, load, load_like
from trainwright.errors import DataError, InputError, about
from trainwright.models.decoder import RMSNorm
from trainwright.models.networks import Moments
from trainwright.models.state_space import NORM_EPS, Blocks, stack
from trainwright.torch_trainable import TorchTrainable, to_device
from trainwright.trainable import DataSize, Metric, Setup, Validation, summarize

Count = Annotated[int, Field(ge=1)]
Pooling = Literal["mean", "last"]


class Mamba2SequenceOptions(BaseModel):
    """The section `model:`. `task`: what is told of a sequence; `pooling`: of which positions the answer is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["mamba2_sequence"] = "mamba2_sequence"
    task: Literal["classification", "regression"]
    pooling: Pooling = "mean"
    layers: Count = 2
    width: Count = 64
    expand: Count = 2  # inner width as a multiple of the width
    head_width: Count = 32
    groups: Count = 1  # of heads that share B and C
    state_size: Count = 32
    conv_width: Count = 4
    chunk: Count = 64  # positions taken at once: other bits and speed, the same mathematics
    classes: Count | None = None  # this and the next: None for as many as the data have
    vocabulary_size: Count | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            self.blocks()
        except InputError as error:
            raise ValueError(str(error)) from error
        return self

    def blocks(self) -> Blocks:
        return Blocks(
            self.layers,
            self.width,
            self.head_width,
            self.state_size,
            expand=self.expand,
            groups=self.groups,
            conv_width=self.conv_width,
            chunk=self.chunk,
        )


class SequenceDataOptions(BaseModel):
    """The section `data:`: a file of arrays, as `data.sequences.load` reads it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path
    exhaustion: Literal["cycle", "halt"] = "cycle"


@final
class Classifier(nn.Module):
    """The judge of logits (b, c): cross entropy in nats, and whether the largest is that of the class."""

    metric = Metric("val_accuracy", "share", "max")
    measure = Metric("cross_entropy", "nats", "min")

    def losses(self, logits_bc: Tensor, class_b: Tensor) -> Tensor:
        return F.cross_entropy(logits_bc, class_b, reduction="none")

    def judged(self, logits_bc: Tensor, class_b: Tensor) -> tuple[Tensor, Tensor]:
        """Give what metric and measure are the means of, (b,) each."""
        return (logits_bc.argmax(-1) == class_b).float(), self.losses(logits_bc, class_b)

    def baselines(self, data: Sequences) -> Mapping[str, float]:
        """Give the accuracy of the class that is most frequent in training, and the cross entropy in nats of shares.

        These are the classes' shares in training with each class counted once more, so that none is impossible.
        """
        counts_c = data.train.y.bincount(minlength=data.kinds("y"))
        shares_c = (counts_c + 1).double() / (counts_c + 1).sum()
        return {
            "majority_accuracy": (data.validation.y == counts_c.argmax()).double().mean().item(),
            "class_entropy": -shares_c.log()[data.validation.y].mean().item(),
        }


@final
class Regressor(nn.Module):
    """The judge of numbers (b, o) in deviations from the training targets' mean: squared error, so a mean scores 1."""

    metric = Metric("val_mse", "training variance", "min")
    measure = Metric("mae", "target", "min")

    def __init__(self, targets_bo: Tensor) -> None:
        super().__init__()
        self.moments = Moments(targets_bo.shape[1])
        self.moments.update(targets_bo)

    def losses(self, told_bo: Tensor, targets_bo: Tensor) -> Tensor:
        scaled_bo = ((targets_bo.double() - self.moments.mean) / self.moments.scale()).float()
        return (told_bo - scaled_bo).square().mean(-1)

    def judged(self, told_bo: Tensor, targets_bo: Tensor) -> tuple[Tensor, Tensor]:
        """Give what metric and measure are the means of, (b,) each."""
        numbers_bo = told_bo * self.moments.scale() + self.moments.mean
        return self.losses(told_bo, targets_bo), (numbers_bo - targets_bo).abs().mean(-1)

    def baselines(self, data: Sequences) -> Mapping[str, float]:
        """Give the error of the training targets' mean."""
        targets_bo = data.validation.y.to(self.moments.mean.device)
        return {"mean_mse": self.losses(torch.zeros_like(targets_bo), targets_bo).double().mean().item()}


@final
class SequenceNet(nn.Module):
    """Mamba-2 blocks between an entry and a head.

    Reals (`features` is not None) are normalised by `moments` and clipped to ±10 deviations.
    """

    def __init__(self, blocks: Blocks, *, features: int | None, vocabulary_size: int, outputs: int) -> None:
        super().__init__()
        self.moments = None if features is None else Moments(features)
        self.entry: nn.Module = (
            nn.Embedding(vocabulary_size, blocks.width) if features is None else nn.Linear(features, blocks.width)
        )
        self.layers = stack(blocks)
        self.norm_f = RMSNorm(blocks.width, NORM_EPS)
        self.head = nn.Linear(blocks.width, outputs)

    def forward(self, inputs: Tensor, lengths_b: Tensor, pooling: Pooling) -> Tensor:
        """Give logits (b, c) or numbers (b, o): of the mean over each sequence's positions, or of its last one."""
        x_btd = self.entry(inputs if self.moments is None else self.moments(inputs))
        for layer in self.layers:
            x_btd, _ = layer(x_btd)
        x_btd = self.norm_f(x_btd)
        if pooling == "last":
            last_b1d = (lengths_b - 1)[:, None, None].expand(-1, 1, x_btd.shape[2])
            return self.head(x_btd.gather(1, last_b1d)[:, 0])  # type: ignore[no-any-return]  # nn.Module gives Any
        counts_bt = torch.arange(x_btd.shape[1], device=lengths_b.device) < lengths_b[:, None]
        return self.head((x_btd * counts_bt[..., None]).sum(1) / lengths_b[:, None])  # type: ignore[no-any-return]  # as above


class Mamba2Sequence(TorchTrainable):
    """Fits Mamba-2 to labelled sequences; the loss counts sequences."""

    model_type = "mamba2_sequence"
    options = Mamba2SequenceOptions
    data_options = SequenceDataOptions

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        options: Mamba2SequenceOptions = setup.model
        with about("data.path"):
            self.data = load(setup.data.path, "classes" if options.task == "classification" else "numbers")
            self.source = SequenceSource(
                self.data,
                batch_size=setup.batch_size,
                seed=setup.seed,
                exhaustion=setup.data.exhaustion,
                validation_batches=setup.validation_batches,
            )
        self.judge = Classifier() if options.task == "classification" else Regressor(self.data.train.y)
        self._sizes = _sizes(self.data, options)
        self.net = SequenceNet(options.blocks(), **self._sizes)
        if self.net.moments is not None:
            train = self.data.train
            self.net.moments.update(train.x[torch.arange(train.x.shape[1]) < train.lengths_b[:, None]])

    @property
    def architecture(self) -> Mapping[str, Any]:
        options: Mamba2SequenceOptions = self.setup.model
        told = {"type": self.model_type, "task": options.task, "pooling": options.pooling, "norm_eps": NORM_EPS}
        return {**told, **self._sizes, **asdict(options.blocks())}

    @property
    def data_size(self) -> DataSize:
        return DataSize(held_bytes=self.data.size_bytes)

    @property
    def interface(self) -> Mapping[str, Any]:
        """Give what the outputs are: logits of the classes, or numbers to be scaled by moments among the weights."""
        if isinstance(self.judge, Classifier):
            return {"outputs": "logits of the classes, in order"}
        return {"outputs": "numbers; times sqrt(judge.moments.variance), plus judge.moments.mean"}

    @property
    def validation_metric(self) -> Metric:
        return self.judge.metric

    @property
    def validation_measures(self) -> Sequence[Metric]:
        return (self.judge.measure,)

    @property
    def baselines(self) -> Mapping[str, float]:
        return self.judge.baselines(self.data)

    def forward(self, batch: SequenceBatch) -> Tensor:
        """Give logits (b, c), or numbers (b, o) in deviations from the mean of training."""
        return self.net(batch.x, batch.lengths_b, self.setup.model.pooling)  # type: ignore[no-any-return]  # as above

    def compute_loss(self, predictions: Tensor, batch: SequenceBatch) -> tuple[Tensor, int]:
        """Give the mean loss of the judge, computed in fp32, and the number of sequences."""
        return self.judge.losses(predictions.float(), batch.y).mean(), len(batch.y)

    def validate(self) -> Validation:
        """Judge every held-out sequence; each is a sample of the standard error."""
        return self._judged(self.source.validation_batches())

    def evaluate(self, other: Path | None = None) -> tuple[Validation, Mapping[str, float]]:
        """Judge all held-out sequences of the run, or all of another file, and give the baselines over the same.

        Errors: DataError as `load_like`, and for a class or token that the model does not know.
        """
        held_out = self.data.validation if other is None else load_like(other, self.data)
        data = replace(self.data, validation=held_out)
        if other is not None:
            self._check_known(other, data)
        parts = spread(len(held_out.x), self.setup.batch_size, None)
        found = self._judged(SequenceBatch(*(array[part] for array in held_out)) for part in parts)
        return found, self.judge.baselines(data)

    def _check_known(self, path: Path, data: Sequences) -> None:
        tokens = data.kinds("x") if data.features is None else 0
        classes = data.kinds("y") if isinstance(self.judge, Classifier) else 0
        for name, found, known in (
            ("token", tokens, self._sizes["vocabulary_size"]),
            ("class", classes, self._sizes["outputs"]),
        ):
            if found > known:
                raise DataError(f"{path}: holds {name} {found - 1}; expected 0 … {known - 1}, which the model knows")

    def _judged(self, given: Iterable[SequenceBatch]) -> Validation:
        with self.undisturbed():
            batches = (to_device(batch, self.device) for batch in given)
            judged = [self.judge.judged(self.forward(batch).float(), batch.y) for batch in batches]
        values, measures = (torch.cat(part).double().tolist() for part in zip(*judged, strict=True))
        measured = summarize(self.judge.measure.name, [(value, 1) for value in measures])
        found = summarize(self.judge.metric.name, [(value, 1) for value in values])
        return replace(found, measures={measured.metric: measured.value})


def _sizes(data: Sequences, options: Mamba2SequenceOptions) -> Mapping[str, Any]:
    """Give what the data add to the shape of the net. Errors: InputError where the options have too little room."""
    is_class = options.task == "classification"
    return {
        "features": data.features,
        "vocabulary_size": _room("vocabulary_size", options.vocabulary_size, data, "x") if data.features is None else 0,
        "outputs": _room("classes", options.classes, data, "y") if is_class else data.train.y.shape[1],
    }


def _room(key: str, given: int | None, data: Sequences, of: Literal["x", "y"]) -> int:
    if given is not None and given < (needed := data.kinds(of)):
        with about(f"model.{key}"):
            raise InputError(f"{given} are too few: the data have {needed}; raise it, or leave it out")
    return given or data.kinds(of)
