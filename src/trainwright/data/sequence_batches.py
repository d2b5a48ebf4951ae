"""Labelled sequences as batches."""

from collections.abc import Iterator, Mapping
from typing import Literal

import torch

from trainwright.data.passes import Passes, spread
from trainwright.data.sequences import SequenceBatch, Sequences
from trainwright.errors import DataError
from trainwright.state import State, StateValue
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
        self._data, self._batch_size, self._validation_limit = data, batch_size, validation_batches
        count = len(data.train.x)
        if count < batch_size:
            raise DataError(
                f"{data.path}: {count} training sequences are fewer than a batch of {batch_size}; "
                "give more data or a smaller batch"
            )
        self._passes = Passes(
            count,
            batch_size=batch_size,
            seed=seed,
            exhaustion=exhaustion,
            of=f"{data.path}: all {count:,} training sequences",
        )

    @property
    def epoch(self) -> int:
        return self._passes.epoch

    @property
    def items_per_epoch(self) -> int:
        return self._passes.items

    @property
    def micro_batches_per_epoch(self) -> int:
        return self._passes.batches

    @property
    def micro_batches_left(self) -> int:
        return self._passes.batches_left

    @property
    def hashes(self) -> Mapping[str, str]:
        return {"data": self._data.sha256}

    def next_batch(self) -> SequenceBatch:
        """Give the next batch. Errors: DataExhaustedError under `halt` after the first pass."""
        rows_b = torch.from_numpy(self._passes.next())
        return SequenceBatch(*(part[rows_b] for part in self._data.train))

    def validation_batches(self) -> Iterator[SequenceBatch]:
        """Give the held-out sequences in batches; when limited, spread evenly over all of them."""
        held_out = self._data.validation
        for part in spread(len(held_out.x), self._batch_size, self._validation_limit):
            yield SequenceBatch(*(array[part] for array in held_out))

    def save(self) -> dict[str, StateValue]:
        return self._passes.save()

    def load(self, state: State) -> None:
        """Go on where `save` was. Errors: DamagedCheckpointError for an entry that is missing or out of range."""
        self._passes.load(state)
