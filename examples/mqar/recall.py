"""Multi-query associative recall (Arora et al. 2023, "Zoology", section 3): pairs first, then keys alone, out of order.

A sequence begins with `pairs` keys, each followed by its value; later each key stands once more, and the model is asked
for its value there. All other places hold values drawn at random. As in the paper's generator keys are the lower half
of the vocabulary, values the upper half, and a place where a key is asked for is drawn with a probability that falls
as place^(a−1), a = 0.01.

Shapes in names: b sequences, t positions, p pairs, s places for a query, q queries of all sequences, v vocabulary.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own convention

from trainwright.files import sha256_of_bytes
from trainwright.models import huggingface
from trainwright.models.state_space import Mamba2Decoder, Shape
from trainwright.models.token_model import Count
from trainwright.state import State, StateValue, require
from trainwright.torch_trainable import TorchTrainable
from trainwright.trainable import Metric, Setup, Unit

POWER = 0.01
Positive = Annotated[float, Field(gt=0)]
Range = tuple[Positive, Positive]
HELD_OUT_SEED = 2**40  # no run draws by it whose seed is below 65,536


class RecallOptions(BaseModel):
    """The section `model:`. `net`: ours, or transformers' class of the same shape, for comparison.

    The last three are of the weights at first, in either net. A head forgets by exp(Δ·A) a position and writes by Δ, so
    these ranges begin with heads that write much and keep it for longer than a sequence. The paper's own (A 1 … 16,
    Δ 0.001 … 0.1, embeddings 0.02) begin with heads that do one or the other.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str
    net: Literal["trainwright", "transformers"] = "trainwright"
    layers: Count = 2
    width: Count = 64
    head_width: Count = 32
    state_size: Count = 64
    chunk: Count = 32
    vocabulary_size: Count = 256
    length: Count = 64
    pairs: Count = 8
    held_out: Count = 1_000
    a_range: Range = (0.01, 0.1)  # of −A, uniform
    dt_range: Range = (0.1, 1.0)  # of Δ, log-uniform
    embedding_std: Positive = 0.1

    @model_validator(mode="after")
    def _room(self) -> Self:
        if 4 * self.pairs > self.length:
            raise ValueError(f"pairs {self.pairs} need a length of {4 * self.pairs}, it is {self.length}")
        if self.pairs >= self.vocabulary_size // 2:
            raise ValueError(f"pairs {self.pairs} need more than {2 * self.pairs} kinds of token")
        return self

    def shape(self) -> Shape:
        return Shape(
            layers=self.layers,
            width=self.width,
            head_width=self.head_width,
            state_size=self.state_size,
            context=self.length,
            vocabulary_size=self.vocabulary_size,
            chunk=self.chunk,
        )


class RecallBatch(NamedTuple):
    """Tokens; where a key is asked for, as sequence and position; and the value that is right there."""

    tokens_bt: Tensor
    asked_q2: Tensor
    values_q: Tensor


def drawn(options: RecallOptions, count: int, seed: int) -> RecallBatch:
    """Give `count` sequences that the seed decides."""
    stream = torch.Generator().manual_seed(seed)
    half, pairs = options.vocabulary_size // 2, options.pairs
    keys_bp = torch.rand(count, half, generator=stream).argsort(1)[:, :pairs]
    values_bp = half + torch.rand(count, options.vocabulary_size - half, generator=stream).argsort(1)[:, :pairs]
    tokens_bt = torch.randint(half, options.vocabulary_size, (count, options.length), generator=stream)
    tokens_bt[:, 0 : 2 * pairs : 2], tokens_bt[:, 1 : 2 * pairs : 2] = keys_bp, values_bp
    places_bp = 2 * pairs + 2 * _places(count, options.length // 2 - pairs, pairs, stream)
    tokens_bt.scatter_(1, places_bp, keys_bp)
    sequences_bp = torch.arange(count)[:, None].expand_as(places_bp)
    return RecallBatch(tokens_bt, torch.stack((sequences_bp, places_bp), -1).flatten(0, 1), values_bp.flatten())


def _places(count: int, places: int, pairs: int, stream: torch.Generator) -> Tensor:
    """Draw places without repetition, near ones more often (Efraimidis and Spirakis 2006: largest u^(1/w))."""
    weights_s = torch.arange(1, places + 1, dtype=torch.float64) ** (POWER - 1)
    draws_bs = torch.rand(count, places, generator=stream, dtype=torch.float64).log() / weights_s
    return draws_bs.topk(pairs, dim=1).indices


class Sequences:
    """Sequences without an end, and 1,000 held out; the state is the number of sequences so far."""

    unit: Unit = "samples"
    epoch = 0
    micro_batches_per_epoch = micro_batches_left = items_per_epoch = None

    def __init__(self, setup: Setup) -> None:
        self._setup, self._options, self._batches = setup, setup.model, 0
        self._held_out = drawn(self._options, self._options.held_out, HELD_OUT_SEED)

    @property
    def hashes(self) -> Mapping[str, str]:
        return {"data": sha256_of_bytes(*(tensor.numpy().tobytes() for tensor in self._held_out))}

    def next_batch(self) -> RecallBatch:
        self._batches += 1
        return drawn(self._options, self._setup.batch_size, self._setup.seed * 2**24 + self._batches)

    def validation_batches(self) -> Iterator[RecallBatch]:
        """Give the held-out sequences in batches: transformers' path in plain torch takes megabytes for each."""
        (tokens_bt, asked_q2, values_q), size = self._held_out, self._setup.batch_size
        for start in range(0, len(tokens_bt), size):
            asked = slice(start * self._options.pairs, (start + size) * self._options.pairs)
            of_these_q2 = asked_q2[asked] - torch.tensor([start, 0])
            yield RecallBatch(tokens_bt[start : start + size], of_these_q2, values_q[asked])

    def save(self) -> dict[str, StateValue]:
        return {"batches": self._batches}

    def load(self, state: State) -> None:
        self._batches = int(require(state, "batches"))  # type: ignore[arg-type]  # as saved


class Recall(TorchTrainable):
    """A two-layer Mamba-2 that is asked for values; loss and accuracy count the asked positions alone."""

    model_type: ClassVar[str] = "examples.mqar.recall:Recall"
    options: ClassVar[type[Any] | None] = RecallOptions

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        options: RecallOptions = setup.model
        self.source = Sequences(setup)
        self.net = Mamba2Decoder(options.shape()) if options.net == "trainwright" else transformers_net(options.shape())
        begin(self.net, options)

    @property
    def architecture(self) -> Mapping[str, Any]:
        return {"net": self.setup.model.net, "shape": str(self.setup.model.shape())}

    @property
    def validation_metric(self) -> Metric:
        return Metric("val_accuracy", "share", "max")

    def forward(self, batch: RecallBatch) -> Tensor:
        """Give logits_qv of the asked positions."""
        given = self.net(batch.tokens_bt)
        logits_btv: Tensor = given if isinstance(given, Tensor) else given.logits
        return logits_btv[batch.asked_q2[:, 0], batch.asked_q2[:, 1]].float()

    def compute_loss(self, predictions: Tensor, batch: RecallBatch) -> tuple[Tensor, int]:
        """Give the mean cross entropy in nats over the asked positions, and the number of sequences."""
        return F.cross_entropy(predictions, batch.values_q), len(batch.tokens_bt)

    def losses_of(self, batch: RecallBatch) -> Sequence[tuple[float, int]]:
        """Give each sequence's share of right answers."""
        right_q = self.forward(batch).argmax(-1) == batch.values_q
        return [(share, 1) for share in right_q.view(len(batch.tokens_bt), -1).double().mean(1).tolist()]


def transformers_net(shape: Shape) -> nn.Module:
    """Make transformers' Mamba2 of the same shape, with the initial weights that it draws itself."""
    from transformers import Mamba2Config, Mamba2ForCausalLM

    net: nn.Module = Mamba2ForCausalLM(Mamba2Config(**huggingface.configuration(shape), use_cache=False))
    return net


@torch.no_grad()
def begin(net: nn.Module, options: RecallOptions) -> None:
    """Draw A, Δ and the embeddings from the ranges of the options; the rest stays as the net itself has drawn it."""
    for name, parameter in net.named_parameters():
        match name.rpartition("mixer.")[2]:
            case "A_log":
                parameter.uniform_(*options.a_range).log_()
            case "dt_bias":
                dt_h = parameter.uniform_(*map(math.log, options.dt_range)).exp_()
                dt_h.add_(torch.log(-torch.expm1(-dt_h)))  # softplus gives back Δ
            case _ if name.endswith("embeddings.weight"):
                nn.init.normal_(parameter, std=options.embedding_std)
