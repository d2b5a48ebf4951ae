"""Labelled sequences as batches, in an order that a seed and a pass decide and that needs no memory."""

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import torch

from trainwright.data.sequences import SequenceBatch, Sequences
from trainwright.data.windows import pass_key, permuted_batch
from trainwright.errors import DamagedCheckpointError, DataError, DataExhaustedError
from trainwright.state import State, StateValue, require
from trainwright.trainable import Unit


class SequenceSource:
    """Batches of the training sequences; one pass gives each of them once. The last batch of a pass may be smaller."""

    unit: Unit = "samples"

    def __init__(
        self,
        data: Sequences,
        *,
        batch_size: int,
        seed: int,
        exhaustion: Literal["cycle", "halt"] = "cycle",
        validation_batches: int | None = None,
    ) -> None:
        """Errors: DataError when there are fewer training sequences than a batch has."""
        self._data, self._seed, self._exhaustion = data, seed, exhaustion
        self._batch_size, self._validation_limit = batch_size, validation_batches
        self.epoch = self._position = 0
        if self.items_per_epoch < batch_size:
            raise DataError(
                f"{data.path}: {self.items_per_epoch} training sequences are fewer than a batch of {batch_size}; "
                "give more data or a smaller batch"
            )

    @property
    def items_per_epoch(self) -> int:
        return len(self._data.train.x)

    @property
    def micro_batches_per_epoch(self) -> int:
        return -(-self.items_per_epoch // self._batch_size)

    @property
    def micro_batches_left(self) -> int:
        return -(-(self.items_per_epoch - self._position) // self._batch_size)

    @property
    def hashes(self) -> Mapping[str, str]:
        return {"data": self._data.sha256}

    def next_batch(self) -> SequenceBatch:
        """Give the next batch. Errors: DataExhaustedError under `halt` after the first pass."""
        n = self.items_per_epoch
        if self.epoch and self._exhaustion == "halt":
            raise DataExhaustedError(
                f"{self._data.path}: all {n:,} training sequences were seen once and exhaustion is 'halt'; "
                "set it to 'cycle', or give more data or fewer steps"
            )
        end = min(n, self._position + self._batch_size)
        rows_b = torch.from_numpy(permuted_batch(np.arange(self._position, end), n, pass_key(self._seed, self.epoch)))
        self.epoch, self._position = (self.epoch + 1, 0) if end == n else (self.epoch, end)
        return SequenceBatch(*(part[rows_b] for part in self._data.train))

    def validation_batches(self) -> Iterator[SequenceBatch]:
        """Give the held-out sequences in batches; when limited, spread evenly over all of them."""
        held_out, size = self._data.validation, self._batch_size
        total = -(-len(held_out.x) // size)
        count = total if self._validation_limit is None else min(total, self._validation_limit)
        for number in range(count):
            start = number * total // count * size
            yield SequenceBatch(*(part[start : start + size] for part in held_out))

    def save(self) -> dict[str, StateValue]:
        return {"epoch": self.epoch, "position": self._position}

    def load(self, state: State) -> None:
        """Go on where `save` was. Errors: DamagedCheckpointError for an entry that is missing or out of range."""
        epoch, position = require(state, "epoch"), require(state, "position")
        if not isinstance(epoch, int) or not isinstance(position, int) or not 0 <= position < self.items_per_epoch:
            raise DamagedCheckpointError(
                f"the data position is pass {epoch!r}, sequence {position!r}; these data have {self.items_per_epoch}"
            )
        self.epoch, self._position = epoch, position
