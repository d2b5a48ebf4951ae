from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.data.passes import pass_key, permuted_batch
from trainwright.data.shards import Shards
from trainwright.data.windows import TokenBatch, TokenSource
from trainwright.errors import DamagedCheckpointError, DataError, DataExhaustedError

KEYS = st.integers(0, 2**64 - 1)


class Counted(np.ndarray[Any, np.dtype[np.uint32]]):
    """Tokens that count how often they are read, and how many of them."""

    reads = 0
    items = 0

    def __getitem__(self, key: Any) -> Any:
        found = np.asarray(super().__getitem__(key))
        Counted.reads += 1
        Counted.items += found.size
        return found


def of(*lengths: int, validation: int = 0) -> Shards:
    """Shards whose tokens count on from one shard to the next, so that each window shows where it is from."""
    ends = np.cumsum([0, *lengths])
    train = {
        f"train-{n}.bin": np.arange(ends[n], ends[n + 1], dtype=np.uint32).view(Counted) for n in range(len(lengths))
    }
    held_out = {"val.bin": np.arange(10**6, 10**6 + validation, dtype=np.uint32)} if validation else {}
    return Shards(Path("folder"), train, held_out, 2**21)


def source(shards: Shards, **options: Any) -> TokenSource:
    return TokenSource(shards, **{"context": 4, "batch_size": 3, "seed": 0, **options})


def starts(batch: TokenBatch) -> list[int]:
    found: list[int] = batch.inputs_bt[:, 0].tolist()
    return found


def one_pass(tokens: TokenSource) -> list[int]:
    epoch, seen = tokens.epoch, list[int]()
    while tokens.epoch == epoch:
        seen += starts(tokens.next_batch())
    return seen


@given(st.integers(1, 3000), KEYS)
def test_any_key_permutes_any_range(n: int, key: int) -> None:
    assert sorted(permuted_batch(np.arange(n), n, key).tolist()) == list(range(n))


@given(st.integers(1, 2**62), KEYS, st.data())
def test_the_permutation_stays_inside_a_large_range_whatever_stands_in_the_batch(n: int, key: int, data: Any) -> None:
    index = data.draw(st.integers(0, n - 1))
    [alone] = permuted_batch(np.array([index]), n, key)
    assert 0 <= alone < n
    assert permuted_batch(np.array([0, index]), n, key)[1] == alone


@given(st.integers(0, 2**32), st.integers(0, 1000), st.integers(1, 1000), st.integers(64, 2000))
def test_different_epochs_have_different_orders(seed: int, epoch: int, later: int, n: int) -> None:
    one, other = (permuted_batch(np.arange(n), n, pass_key(seed, e)) for e in (epoch, epoch + later))
    assert not np.array_equal(one, other)


def test_places_after_the_permutation_are_spread_evenly() -> None:
    n, keys = 50, 4000
    places = np.array([permuted_batch(np.array([7, 8]), n, key) for key in range(keys)])
    expected = keys / n
    for column in places.T:
        chi_square = ((np.bincount(column, minlength=n) - expected) ** 2 / expected).sum()
        assert chi_square < 49 + 5 * np.sqrt(2 * 49)
    assert abs(np.corrcoef(places.T)[0, 1]) < 0.1


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=4),
    st.integers(1, 7),
    st.integers(1, 5),
    st.integers(0, 99),
    st.data(),
)
def test_one_pass_sees_each_window_once_wherever_it_is_cut_and_restored(
    lengths: list[int], context: int, batch_size: int, seed: int, data: Any
) -> None:
    shards = of(*lengths)
    ends = np.cumsum([0, *lengths])
    expected = [
        int(begin) + n * context
        for begin, length in zip(ends, lengths, strict=False)
        for n in range((length - 1) // context)
    ]
    if len(expected) < batch_size:
        return
    options = {"context": context, "batch_size": batch_size, "seed": seed}
    whole = source(shards, **options)
    uncut = [starts(whole.next_batch()) for _ in range(2 * whole.micro_batches_per_epoch)]
    cut = data.draw(st.integers(0, len(uncut) - 1))
    first, second = source(shards, **options), source(shards, **options)
    before = [starts(first.next_batch()) for _ in range(cut)]
    second.load(first.save())
    assert before + [starts(second.next_batch()) for _ in range(len(uncut) - cut)] == uncut
    half = whole.micro_batches_per_epoch
    assert sorted(chain(*uncut[:half])) == sorted(chain(*uncut[half:])) == expected
    assert second.save() == {"epoch": 2, "position": 0}


def test_targets_are_the_tokens_that_follow() -> None:
    batch = source(of(101), batch_size=25).next_batch()
    assert batch.inputs_bt.shape == batch.targets_bt.shape == (25, 4)
    assert batch.inputs_bt.dtype == batch.targets_bt.dtype == torch.int64
    assert torch.equal(batch.targets_bt, batch.inputs_bt + 1)


def test_no_window_crosses_from_one_shard_into_the_next() -> None:
    assert sorted(one_pass(source(of(9, 5, 4, 10)))) == [0, 4, 9, 18, 22]


def test_the_last_batch_of_a_pass_is_smaller() -> None:
    tokens = source(of(29))
    assert tokens.micro_batches_per_epoch == 3
    assert [len(tokens.next_batch().inputs_bt) for _ in range(4)] == [3, 3, 1, 3]


def test_what_is_left_of_a_pass_counts_down_to_its_last_batch_and_begins_anew() -> None:
    tokens, left = source(of(29)), []
    for _ in range(4):
        left.append(tokens.micro_batches_left)
        tokens.next_batch()
    assert left == [3, 2, 1, 3]
    other = source(of(29), batch_size=2)
    other.load({"epoch": 0, "position": 3})
    assert other.micro_batches_left == 2


def test_the_epoch_counts_when_the_last_batch_was_handed_out() -> None:
    tokens = source(of(25))
    epochs = []
    for _ in range(4):
        tokens.next_batch()
        epochs.append(tokens.epoch)
    assert epochs == [0, 1, 1, 2]


def test_passes_and_seeds_differ_in_order_and_equal_seeds_agree() -> None:
    shards = of(401)
    tokens = source(shards)
    first, second = one_pass(tokens), one_pass(tokens)
    assert first != second
    assert first == one_pass(source(shards)) != one_pass(source(shards, seed=1))


def test_halt_raises_on_the_call_after_the_first_pass() -> None:
    tokens = source(of(25), exhaustion="halt")
    assert len(one_pass(tokens)) == 6
    restored = source(of(25), exhaustion="halt")
    restored.load(tokens.save())
    for halted in (tokens, restored):
        with pytest.raises(DataExhaustedError, match="6 training windows"):
            halted.next_batch()


def test_restoring_at_position_100_000_reads_as_much_as_at_the_start() -> None:
    shards = of(100_001, 200_001)
    for position in (0, 100_000):
        tokens = source(shards, context=1)
        Counted.reads = Counted.items = 0
        tokens.load({"epoch": 0, "position": position})
        assert Counted.reads == 0
        tokens.next_batch()
        assert Counted.reads <= 2
        assert Counted.items == 3 * (1 + 1)


def test_another_batch_size_goes_on_at_the_same_window() -> None:
    shards = of(101)
    tokens = source(shards, batch_size=5)
    before = starts(tokens.next_batch()) + starts(tokens.next_batch())
    other = source(shards, batch_size=7)
    other.load(tokens.save())
    assert sorted(before + one_pass(other)) == list(range(0, 100, 4))


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ({"epoch": 0}, "position"),
        ({"position": 0}, "epoch"),
        ({"epoch": 0, "position": 25}, "position"),
        ({"epoch": 0, "position": -1}, "position"),
        ({"epoch": "0", "position": 0}, "epoch"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_the_entry(state: dict[str, Any], named: str) -> None:
    with pytest.raises(DamagedCheckpointError, match=named):
        source(of(101)).load(state)


def test_validation_gives_its_windows_in_order_and_leaves_the_position_alone() -> None:
    tokens = source(of(101, validation=30))
    before = tokens.save()
    batches = [starts(batch) for batch in tokens.validation_batches()]
    assert batches == [[10**6, 10**6 + 4, 10**6 + 8], [10**6 + 12, 10**6 + 16, 10**6 + 20], [10**6 + 24]]
    assert tokens.save() == before


def test_limited_validation_is_spread_over_all_of_it() -> None:
    tokens = source(of(101, validation=401), batch_size=5, validation_batches=4)
    assert [starts(batch)[0] - 10**6 for batch in tokens.validation_batches()] == [0, 100, 200, 300]
    assert len(list(source(of(101, validation=9), validation_batches=4).validation_batches())) == 1


def test_training_data_shorter_than_one_batch_are_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"train-0\.bin: 12 tokens give 2 windows .* needs 3"):
        source(of(12))


def test_validation_data_shorter_than_one_window_are_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"val\.bin"):
        source(of(101, validation=4))


def test_no_training_shard_is_refused() -> None:
    with pytest.raises(DataError, match="no training shard"):
        source(of())
