"""Windows of tokens as batches, in an order that a seed and a pass decide and that needs no memory.

Shapes: B windows in a batch, T tokens of context.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainwright.data.shards import Shards, Tokens
from trainwright.errors import DamagedCheckpointError, DataError, DataExhaustedError
from trainwright.state import State, StateValue, require
from trainwright.trainable import Unit

ROUNDS = 8
WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15

Indices = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


def permuted_batch(indices: Indices, n: int, key: int) -> Indices:
    """Give where a permutation of range(n), chosen by `key`, sends each of `indices`; no state, no table.

    A balanced Feistel network (Luby and Rackoff 1988, "How to construct pseudorandom permutations from pseudorandom
    functions") permutes the smallest range of 4^h that holds n; what lands outside range(n) is sent on until it lands
    inside, at most four times on average (the cycle-walking cipher of Black and Rogaway 2002, "Ciphers with arbitrary
    finite domains"). The round function is the finalizer of splitmix64 (Steele, Lea and Flood 2014, "Fast splittable
    pseudorandom number generators"). It shuffles; it keeps no secret.
    Limits: 0 <= index < n <= 2^62.
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = _round_keys(key)
    words = _feistel(indices.astype(np.uint64), half, keys)
    while len(outside := np.flatnonzero(words >= n)):
        words[outside] = _feistel(words[outside], half, keys)
    return words.astype(np.int64)


@lru_cache(maxsize=8)
def _round_keys(key: int) -> tuple[Words, ...]:
    return tuple(np.array(_mix_int(key + (number + 1) * GOLDEN), np.uint64) for number in range(ROUNDS))


def _feistel(words: Words, half: int, keys: tuple[Words, ...]) -> Words:
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = words >> shift, words & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & mask)
    return (left << shift) | right


def _mix(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _mix_int(value: int) -> int:
    return int(_mix(np.array([value % WORD], np.uint64))[0])


def pass_key(seed: int, epoch: int) -> int:
    """Give the permutation's key of one pass over the data."""
    return _mix_int(_mix_int(seed) + (epoch + 1) * GOLDEN)


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
        self._shards, self._seed, self._exhaustion = shards, seed, exhaustion
        self._batch_size, self._validation_limit = batch_size, validation_batches
        self._windows, self._validation = (
            Windows(shards.train.values(), context),
            Windows(shards.validation.values(), context),
        )
        self.epoch = self._position = 0
        _check_length(shards.directory, shards.train, self._windows, batch_size)
        if shards.validation:
            _check_length(shards.directory, shards.validation, self._validation, 1)

    @property
    def micro_batches_per_epoch(self) -> int:
        return -(-len(self._windows) // self._batch_size)

    @property
    def micro_batches_left(self) -> int:
        return -(-(len(self._windows) - self._position) // self._batch_size)

    @property
    def items_per_epoch(self) -> int:
        """Give the tokens that one pass predicts."""
        return len(self._windows) * self._windows.context

    @property
    def hashes(self) -> Mapping[str, str]:
        hashes = {"data": self._shards.data_sha256, "tokenizer": self._shards.tokenizer_sha256}
        return {name: value for name, value in hashes.items() if value is not None}

    def next_batch(self) -> TokenBatch:
        """Give the next batch. Errors: DataExhaustedError under `halt` after the first pass."""
        if self.epoch and self._exhaustion == "halt":
            raise DataExhaustedError(
                f"{self._shards.directory}: all {len(self._windows):,} training windows were seen once and "
                "exhaustion is 'halt'; set it to 'cycle', or give more data or fewer steps"
            )
        n = len(self._windows)
        end = min(n, self._position + self._batch_size)
        indices = permuted_batch(np.arange(self._position, end), n, pass_key(self._seed, self.epoch))
        self.epoch, self._position = (self.epoch + 1, 0) if end == n else (self.epoch, end)
        return self._windows.batch(indices)

    def validation_batches(self) -> Iterator[TokenBatch]:
        """Give batches of the validation windows in their order; when limited, spread evenly over all of them."""
        n, size = len(self._validation), self._batch_size
        total = -(-n // size)
        count = total if self._validation_limit is None else min(total, self._validation_limit)
        for number in range(count):
            start = number * total // count * size
            yield self._validation.batch(np.arange(start, min(n, start + size)))

    def save(self) -> dict[str, StateValue]:
        return {"epoch": self.epoch, "position": self._position}

    def load(self, state: State) -> None:
        """Go on where `save` was. Errors: DamagedCheckpointError for an entry that is missing or out of range."""
        epoch, position = require(state, "epoch"), require(state, "position")
        if not isinstance(epoch, int) or epoch < 0:
            raise DamagedCheckpointError(f"entry 'epoch' of the data position is {epoch!r}, expected a count from 0")
        if not isinstance(position, int) or not 0 <= position < len(self._windows):
            raise DamagedCheckpointError(
                f"entry 'position' of the data position is {position!r}; these data have {len(self._windows)} windows"
            )
        self.epoch, self._position = epoch, position


def _check_length(directory: Path, shards: Mapping[str, Tokens], windows: Windows, least: int) -> None:
    if len(windows) < least:
        names = ", ".join(shards) or "no training shard"
        raise DataError(
            f"{directory}: {names}: {sum(map(len, windows.shards)):,} tokens give {len(windows)} windows of "
            f"{windows.context} + 1 tokens, one batch needs {least}; give more data, a shorter context, a smaller batch"
        )
