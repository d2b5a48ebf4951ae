"""Where a source stands in its passes over n items, in an order that seed and pass decide and that needs no memory."""

from typing import Final, Literal, final

import numpy as np

from trainwright.data.windows import Indices, pass_key, permuted_batch
from trainwright.errors import DamagedCheckpointError, DataExhaustedError
from trainwright.state import State, StateValue, require

AHEAD: Final = 8_192  # numbers that are made at once: a few at a time cost as much


@final
class Passes:
    """Numbers of items, a batch at a time; one pass gives each of `items` once. The last batch may be smaller.

    The state is two numbers and counts items, not batches: another batch size goes on at the same item.
    """

    def __init__(
        self, items: int, *, batch_size: int, seed: int, exhaustion: Literal["cycle", "halt"], of: str
    ) -> None:
        """`of` tells what the items are, for an error: `etth1.csv: training windows`."""
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
                f"{self._of}: all {self.items:,} were seen once and exhaustion is 'halt'; set it to 'cycle', or give "
                "more data or fewer steps"
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
                f"entry 'position' of the data position is {position!r}; {self._of} are {self.items}"
            )
        self.epoch, self._position = epoch, position
