"""Windows over series as batches. Those to train on lie wholly in the training rows; others end in their part.

Shapes in names: b windows, c steps of context, h of horizon, t of both; n rows of all series.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, final

import numpy as np
import torch

from trainwright.data.passes import Passes, pass_key, permuted_batch
from trainwright.data.series import Window
from trainwright.data.series_arrays import Arrays
from trainwright.data.series_options import Part
from trainwright.data.series_scaling import Scales, scaled
from trainwright.data.series_times import Ticks
from trainwright.errors import DataError, about
from trainwright.state import State, StateValue
from trainwright.trainable import Unit

BLOCK_HORIZONS: Final = 3


@final
class SeriesWindows:
    """The windows of some series on one scale. A window is named by its first row."""

    def __init__(self, arrays: Arrays, scales: Scales) -> None:
        self.arrays = arrays
        self.context, self.horizon = arrays.options.context, arrays.options.horizon
        self._begins = arrays.table.begins
        self._known_nk = torch.from_numpy(arrays.known.codes)
        self._observed_nk = torch.from_numpy(arrays.observed.codes)
        self._static_sk = torch.from_numpy(arrays.static.codes)
        self._weight_n = torch.from_numpy((~np.isnan(arrays.observed.reals[:, 0])).astype(np.float32))
        self.rescale(scales)

    @property
    def size_bytes(self) -> int:
        """Give the bytes of the columns as they were read, as numbers, and on their scale; of texts their places."""
        arrays, table = self.arrays, self.arrays.table
        read = (table.times, *table.numbers.values(), *table.texts.values())
        kinds = (part for kind in (arrays.static, arrays.known, arrays.observed) for part in (kind.reals, kind.codes))
        scaled = (self._observed_nr, self._known_nr, self._static_sr, self._weight_n)
        return sum(part.nbytes for part in (*read, *kinds, *scaled) if part is not None)

    def rescale(self, scales: Scales) -> None:
        """Put all values on other scales; `scales` are then these."""
        self.scales = scales
        observed_nr, known_nr, static_sr = map(torch.from_numpy, scaled(self.arrays, scales))
        self._observed_nr, self._known_nr, self._static_sr = observed_nr.contiguous(), known_nr.contiguous(), static_sr

    def starts(self, part: Part) -> Ticks:
        """Give the first row of every window of a part, each with a target in its horizon that is not missing.

        The context of what is not trained on may reach back before its part, the horizon never.
        """
        found = []
        for begin, rows in zip(self._begins[:-1].tolist(), self.arrays.spans(part), strict=True):
            first = max(begin, rows.start - self.context)  # of training: where the series begins
            found.append(np.arange(first, rows.stop - self.context - self.horizon + 1))
        starts = np.concatenate(found)
        there = np.concatenate(([0.0], np.cumsum(self._weight_n.numpy(), dtype=np.float64)))
        horizons = starts + self.context
        return np.asarray(starts[there[horizons + self.horizon] > there[horizons]])

    def owners(self, starts: Ticks) -> Ticks:
        """Give the number of the series of each window."""
        return np.searchsorted(self._begins, starts, side="right") - 1

    def rows_before(self, starts: Ticks) -> Ticks:
        """Give how many rows of its series lie before each window."""
        return starts - self._begins[self.owners(starts)]

    def rows_beyond_training(self, starts: Ticks) -> int:
        """Give by how many rows, at most, these windows reach beyond the training rows of their series."""
        ends = starts + self.context + self.horizon
        return int(np.maximum(ends - self.arrays.ends_sp[self.owners(starts), 0], 0).max())

    def halves(self, starts: Ticks) -> tuple[torch.Tensor, torch.Tensor]:
        """Tell whose horizon is in the first half of the validation rows of its series, and whose in the second, (b,).

        One across both is in neither.
        """
        ends_p = self.arrays.ends_sp[self.owners(starts)]
        middles, horizons = (ends_p[:, 0] + ends_p[:, 1]) // 2, starts + self.context
        return torch.from_numpy(horizons + self.horizon <= middles), torch.from_numpy(horizons >= middles)

    def batch(self, starts: Ticks) -> Window:
        """Cut the windows that begin at `starts`, shape (b,)."""
        rows_bt = torch.from_numpy(starts)[:, None] + torch.arange(self.context + self.horizon)
        rows_bc, rows_bh = rows_bt[:, : self.context], rows_bt[:, self.context :]
        owners_b = torch.from_numpy(self.owners(starts))
        return Window(
            static_reals=self._static_sr[owners_b],
            static_codes=self._static_sk[owners_b],
            known_reals=_rows(self._known_nr, rows_bt),
            known_codes=_rows(self._known_nk, rows_bt),
            observed_reals=_rows(self._observed_nr, rows_bc),
            observed_codes=_rows(self._observed_nk, rows_bc),
            target=self._observed_nr[:, 0][rows_bh],
            weight=self._weight_n[rows_bh],
        )

    def observed_before(self, starts: Ticks) -> torch.Tensor:
        """Give 1 where the target was observed in the context of a window, (b, c), 0 where it is carried on."""
        return self._weight_n[torch.from_numpy(starts)[:, None] + torch.arange(self.context)]

    def batches(self, starts: Ticks, size: int) -> Iterator[Window]:
        for begin in range(0, len(starts), size):
            yield self.batch(starts[begin : begin + size])

    def season_before(self, starts: Ticks, season: int) -> torch.Tensor:
        """Give the targets (b, h) of the last season before each horizon, over and over."""
        first_b = torch.from_numpy(starts) + self.context - season
        return self._observed_nr[:, 0][first_b[:, None] + torch.arange(self.horizon) % season]


@final
class SeriesSource:
    """Batches of windows; one pass gives each training window exactly once, and a window is a sample."""

    unit: Unit = "samples"

    def __init__(
        self,
        arrays: Arrays,
        scales: Scales,
        *,
        batch_size: int,
        seed: int,
        validation_batches: int | None = None,
    ) -> None:
        """Errors: DataError when the training rows give less than one batch, or those of validation no window."""
        self.windows = SeriesWindows(arrays, scales)
        self.batch_size, self._path = batch_size, arrays.table.path
        self._training = self.windows.starts("training")
        self._held_out = self.windows.starts("validation")
        self._validation_batches = validation_batches
        self.rows_beyond_training = 0  # to which the windows that were drawn reached, at most
        self._check_length()
        exhaustion: Literal["cycle", "halt"] = arrays.options.exhaustion
        self._passes = Passes(
            len(self._training),
            batch_size=batch_size,
            seed=seed,
            exhaustion=exhaustion,
            of=f"{self._path}: training windows: all {len(self._training):,}",
        )

    def _check_length(self) -> None:
        window = f"of {self.windows.context} + {self.windows.horizon} rows"
        with about("data.split"):
            if len(self._training) < self.batch_size:
                raise DataError(
                    f"{self._path}: gives {len(self._training)} training windows {window}, one batch needs "
                    f"{self.batch_size}; give more data, a shorter window or a smaller batch"
                )
            if not len(self._held_out):
                raise DataError(
                    f"{self._path}: gives no validation window {window}; give that part more rows, at least a horizon"
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
        return self._passes.items

    @property
    def hashes(self) -> Mapping[str, str]:
        return {"data": self.windows.arrays.table.sha256}

    def next_batch(self) -> Window:
        """Give the next batch. Errors: DataExhaustedError under `halt` after the first pass."""
        starts = self._training[self._passes.next()]
        self.rows_beyond_training = max(self.rows_beyond_training, self.windows.rows_beyond_training(starts))
        return self.windows.batch(starts)

    def validation_starts(self) -> Ticks:
        """Give the windows to validate on: every `validation_stride`-th, and of these an even part where limited."""
        starts = self._held_out[:: self.windows.arrays.options.validation_stride]
        if self._validation_batches is None:
            return starts
        count = min(len(starts), self._validation_batches * self.batch_size)
        return starts[np.arange(count) * len(starts) // count]

    def validation_batches(self) -> Iterator[Window]:
        """Give every window of the validation rows, at any stride, in an order that mixes time and series.

        An audit holds batches of training against the first 4,096 of these, which are of all times and series.
        """
        count = len(self._held_out)
        mixed = permuted_batch(np.arange(count), count, pass_key(0, 0))
        yield from self.windows.batches(self._held_out[mixed], self.batch_size)

    def save(self) -> dict[str, StateValue]:
        return self._passes.save()

    def load(self, state: State) -> None:
        self._passes.load(state)


def _rows(values_nk: torch.Tensor, rows_bt: torch.Tensor) -> torch.Tensor:
    """Give values_nk[rows_bt] at half the cost."""
    return values_nk.index_select(0, rows_bt.reshape(-1)).view(*rows_bt.shape, values_nk.shape[1])


def block_of(windows: SeriesWindows, starts: Ticks) -> Any:
    """Give the block of each window: one series, and horizons that begin within three of their lengths of each other.

    Windows of two blocks that touch share rows; blocks of one horizon would share most of theirs.
    """
    places = windows.rows_before(starts) // (BLOCK_HORIZONS * windows.horizon)
    return np.unique(np.stack((windows.owners(starts), places)), axis=1, return_inverse=True)[1].ravel()
