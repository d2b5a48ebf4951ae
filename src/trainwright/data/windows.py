"""Windows of tokens as batches.

Shapes: B windows in a batch, T tokens of context.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from trainwright.data.passes import Indices, Passes, spread
from trainwright.data.shards import Shards, Tokens
from trainwright.errors import DataError
from trainwright.state import State, StateValue
from trainwright.trainable import Unit


class TokenBatch(NamedTuple):
    """Tokens, and the tokens that follow each: int64, shapes (B, T)."""

    inputs_bt: torch.Tensor
    targets_bt: torch.Tensor


class Windows:
    """The windows of T + 1 tokens, T apart, of some shards; none crosses from one shard into the next."""

    def __init__(self, shards: Iterable[Tokens], context: int) -> None:
        self.shards = tuple(shards)
        self.context = context
        self._ends = np.cumsum([0, *(max(0, len(tokens) - 1) // context for tokens in self.shards)])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def batch(self, indices: Indices) -> TokenBatch:
        """Read the windows of `indices`, shape (B,): as many reads as shards are touched."""
        rows_bt = np.empty((len(indices), self.context + 1), np.int64)
        owners = np.searchsorted(self._ends, indices, side="right") - 1
        for owner in np.unique(owners):
            mine = np.flatnonzero(owners == owner)
            starts = (indices[mine] - self._ends[owner]) * self.context
            rows_bt[mine] = self.shards[owner][starts[:, None] + np.arange(self.context + 1)]
        return TokenBatch(torch.from_numpy(rows_bt[:, :-1].copy()), torch.from_numpy(rows_bt[:, 1:].copy()))


class TokenSource:
    """Batches of token windows; one pass gives each window of the training shards exactly once.

    The order depends on seed and pass alone, so the state is two numbers, and restoring reads no data. Its position
    counts windows, not batches: another batch size goes on at the same window. The last batch of a pass may be smaller.
    """

    unit: Unit = "tokens"

    def __init__(
        self,
        shards: Shards,
        *,
        context: int,
        batch_size: int,
        seed: int,
        exhaustion: Literal["cycle", "halt"] = "cycle",
        validation_batches: int | None = None,
    ) -> None:
        """Errors: DataError when the training shards are shorter than one batch, or validation than one window."""
        self._shards = shards
        self._batch_size, self._validation_limit = batch_size, validation_batches
        self._windows, self._validation = (
            Windows(shards.train.values(), context),
            Windows(shards.validation.values(), context),
        )
        _check_length(shards.directory, shards.train, self._windows, batch_size)
        if shards.validation:
            _check_length(shards.directory, shards.validation, self._validation, 1)
        self._passes = Passes(
            len(self._windows),
            batch_size=batch_size,
            seed=seed,
            exhaustion=exhaustion,
            of=f"{shards.directory}: all {len(self._windows):,} training windows",
        )

    @property
    def epoch(self) -> int:
        return self._passes.epoch

    @property
    def micro_batches_per_epoch(self) -> int:
        return self._passes.batches

    @property
    def micro_batches_left(self) -> int:
        return self._passes.batches_left

    @property
    def items_per_epoch(self) -> int:
        """Give the tokens that one pass predicts."""
        return len(self._windows) * self._windows.context

    @property
    def hashes(self) -> Mapping[str, str]:
        return hashes_of(self._shards)

    def next_batch(self) -> TokenBatch:
        """Give the next batch. Errors: DataExhaustedError under `halt` after the first pass."""
        return self._windows.batch(self._passes.next())

    def validation_batches(self) -> Iterator[TokenBatch]:
        """Give batches of the validation windows in their order; when limited, spread evenly over all of them."""
        for part in spread(len(self._validation), self._batch_size, self._validation_limit):
            yield self._validation.batch(np.arange(part.start, part.stop))

    def save(self) -> dict[str, StateValue]:
        return self._passes.save()

    def load(self, state: State) -> None:
        """Go on where `save` was. Errors: DamagedCheckpointError for an entry that is missing or out of range."""
        self._passes.load(state)


def hashes_of(shards: Shards) -> Mapping[str, str]:
    """Give what a checkpoint is stamped with: the hash of all shards, and of the tokenizer where there is one."""
    hashes = {"data": shards.data_sha256, "tokenizer": shards.tokenizer_sha256}
    return {name: value for name, value in hashes.items() if value is not None}


def _check_length(directory: Path, shards: Mapping[str, Tokens], windows: Windows, least: int) -> None:
    if len(windows) < least:
        names = ", ".join(shards) or "no training shard"
        raise DataError(
            f"{directory}: {names}: {sum(map(len, windows.shards)):,} tokens give {len(windows)} windows of "
            f"{windows.context} + 1 tokens, one batch needs {least}; give more data, a shorter context, a smaller batch"
        )
