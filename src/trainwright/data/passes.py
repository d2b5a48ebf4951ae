"""Where a source stands in its passes over n items, in an order that seed and pass decide and that needs no memory."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt

from trainwright.errors import DamagedCheckpointError, DataExhaustedError
from trainwright.state import State, StateValue, require

ROUNDS: Final = 8
WORD: Final = 2**64
GOLDEN: Final = 0x9E3779B97F4A7C15
AHEAD: Final = 8_192  # numbers that are made at once: a few at a time cost as much

Indices: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]


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


def spread(items: int, size: int, limit: int | None) -> Iterator[slice]:
    """Give batches of `size` of the items, in order; where there may be `limit` of them, spread evenly over all."""
    total = -(-items // size)
    count = total if limit is None else min(total, limit)
    for number in range(count):
        start = number * total // count * size
        yield slice(start, min(items, start + size))


@final
class Passes:
    """Numbers of items, a batch at a time; one pass gives each of `items` once. The last batch may be smaller.

    The state is two numbers and counts items, not batches: another batch size goes on at the same item.
    """

    def __init__(
        self, items: int, *, batch_size: int, seed: int, exhaustion: Literal["cycle", "halt"], of: str
    ) -> None:
        """`of` names all the items, for an error: `etth1.csv: all 1,000 training windows`."""
        self.items, self.batch_size = items, batch_size
        self._seed, self._exhaustion, self._of = seed, exhaustion, of
        self.epoch = self._position = 0
        self._made_of, self._made = (-1, -1), np.zeros(0, np.int64)

    @property
    def batches(self) -> int:
        return -(-self.items // self.batch_size)

    @property
    def batches_left(self) -> int:
        return -(-(self.items - self._position) // self.batch_size)

    def next(self) -> Indices:
        """Give the next numbers. Errors: DataExhaustedError under `halt` after the first pass."""
        if self.epoch and self._exhaustion == "halt":
            raise DataExhaustedError(
                f"{self._of} were seen once and exhaustion is 'halt'; "
                "set it to 'cycle', or give more data or fewer steps"
            )
        end = min(self.items, self._position + self.batch_size)
        first = self._position // AHEAD
        blocks = [self._permuted(block) for block in range(first, -(-end // AHEAD))]
        numbers = np.concatenate(blocks)[self._position - first * AHEAD : end - first * AHEAD]
        self.epoch, self._position = (self.epoch + 1, 0) if end == self.items else (self.epoch, end)
        return numbers

    def _permuted(self, block: int) -> Indices:
        """Give the numbers of `AHEAD` places from `block` times as many on, which are made at once."""
        if self._made_of != (self.epoch, block):
            places = np.arange(block * AHEAD, min(self.items, (block + 1) * AHEAD))
            self._made = permuted_batch(places, self.items, pass_key(self._seed, self.epoch))
            self._made_of = self.epoch, block
        return self._made

    def save(self) -> dict[str, StateValue]:
        return {"epoch": self.epoch, "position": self._position}

    def load(self, state: State) -> None:
        """Go on where `save` was. Errors: DamagedCheckpointError for an entry that is missing or out of range."""
        epoch, position = require(state, "epoch"), require(state, "position")
        if not isinstance(epoch, int) or epoch < 0:
            raise DamagedCheckpointError(f"entry 'epoch' of the data position is {epoch!r}, expected a count from 0")
        if not isinstance(position, int) or not 0 <= position < self.items:
            raise DamagedCheckpointError(
                f"entry 'position' of the data position is {position!r}; these data have {self.items} items"
            )
        self.epoch, self._position = epoch, position
