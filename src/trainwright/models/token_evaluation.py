"""How well a language model tells every token of shards, in nats, as perplexity, and in bits for a byte of text.

Shapes in names: v vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from trainwright.data import shards
from trainwright.data import tokenizer as tokenizers
from trainwright.data.shards import Tokens
from trainwright.data.windows import TokenBatch, Windows, hashes_of
from trainwright.errors import DataError
from trainwright.models.token_model import DataOptions, entropies, open_shards, sequence_losses
from trainwright.models.token_net import TokenNet
from trainwright.trainable import Validation, summarize

LOGITS: Final = 1 << 24  # numbers in the logits of a batch, at most, but those of one window: 64 MiB
LARGEST_EXPONENT: Final = 700.0  # e to the power of it is a float


@dataclass(frozen=True, slots=True)
class TokenText:
    """Shards whose tokens are to be told. `bytes_v`: bytes of text that each token stands for; None: not known."""

    hashes: Mapping[str, str]
    parts: Sequence[Tokens]
    bytes_v: npt.NDArray[np.int64] | None

    @property
    def told_bytes(self) -> int | None:
        """Give the bytes of all tokens that follow another."""
        bytes_v = self.bytes_v
        return None if bytes_v is None else sum(int(bytes_v[part[1:]].sum()) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Scored:
    """The mean cross entropy in nats over `n` tokens, each window a sample of its error; what else tells of it."""

    loss: Validation
    measures: Mapping[str, float | None]  # perplexity, and bits_per_byte; None: a token's bytes are not known
    baselines: Mapping[str, float]  # nats: the entropy of these tokens without context, and of equally likely ones


def held_out(data: DataOptions) -> TokenText:
    """Give the validation tokens of a run's own shards, every file hashed. Errors: DataError as `open_shards`."""
    found = open_shards(data.model_copy(update={"verify": True}))
    return _text(found, found.validation.values())


def all_of(folder: Path, stamped: Mapping[str, str]) -> TokenText:
    """Give every token of other shards, every file hashed; `stamped`: the hashes of the run's own data.

    Errors: DataError for a folder that is damaged, of another tokenizer or of none, and for the run's own.
    """
    found = shards.load(folder)
    if not found.tokenizer_sha256 or found.tokenizer_sha256 != stamped.get("tokenizer"):
        raise DataError(
            f"{folder}: its tokens are not known to be of the run's own tokenizer, SHA-256 "
            f"{found.tokenizer_sha256}, the run's {stamped.get('tokenizer')}; prepare it with the run's: trainwright "
            "data prepare --tokenizer …/tokenizer.json"
        )
    if found.data_sha256 == stamped.get("data"):
        raise DataError(f"{folder}: holds the run's own data, most of which it was trained on; leave --data out")
    found.verify_hashes()
    return _text(found, [*found.train.values(), *found.validation.values()])


def _text(found: shards.Shards, parts: Iterable[Tokens]) -> TokenText:
    bytes_v = tokenizers.bytes_of_tokens(tokenizers.load(found.tokenizer)) if found.tokenizer else None
    return TokenText(hashes_of(found), tuple(parts), bytes_v)


def score(decoder: TokenNet, text: TokenText) -> Scored:
    """Score every token of each part but its first, once, by those before it in its window of the model's context.

    Errors: InputError where no token has one before it.
    """
    with torch.no_grad():
        loss = summarize("val_loss", list(_losses(decoder.eval(), text.parts)))
    perplexity = math.exp(loss.value) if loss.value < LARGEST_EXPONENT else None
    bits = loss.value * loss.n / math.log(2)
    told_bytes = text.told_bytes
    return Scored(
        loss,
        {"perplexity": perplexity, "bits_per_byte": bits / told_bytes if told_bytes else None},
        entropies(text.parts, decoder.shape.vocabulary_size),
    )


def _losses(decoder: TokenNet, parts: Sequence[Tokens]) -> Iterator[tuple[float, int]]:
    """Give mean loss and length of each window."""
    size = max(1, LOGITS // (decoder.shape.context * decoder.shape.vocabulary_size))
    for batch in _batches(parts, decoder.shape.context, size):
        yield from sequence_losses(decoder(batch.inputs_bt), batch)


def _batches(parts: Sequence[Tokens], context: int, size: int) -> Iterator[TokenBatch]:
    """Give all whole windows in batches, then what each part has beyond them, a shorter window of its own."""
    windows = Windows(parts, context)
    for start in range(0, len(windows), size):
        yield windows.batch(np.arange(start, min(start + size, len(windows))))
    for part in parts:
        rest = len(part) - 1 - (len(part) - 1) // context * context
        if rest:
            yield Windows([part[-rest - 1 :]], rest).batch(np.zeros(1, np.int64))
