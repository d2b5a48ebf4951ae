"""Passes over items: each once in a pass, an order that seed and pass decide, a position that goes on anywhere."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.data import passes
from trainwright.data.passes import Passes, pass_key, permuted_batch


def over(items: int, batch_size: int, *, seed: int = 3) -> Passes:
    return Passes(items, batch_size=batch_size, seed=seed, exhaustion="cycle", of="items")


@pytest.fixture(autouse=True)
def few_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "AHEAD", 8)


@given(st.integers(1, 60), st.integers(1, 70), st.integers(0, 2**40))
def test_a_pass_is_the_permutation_of_its_key_whatever_the_batches(items: int, batch_size: int, seed: int) -> None:
    made = over(items, batch_size, seed=seed)
    for epoch in range(2):
        numbers = np.concatenate([made.next() for _ in range(made.batches)])
        assert numbers.tolist() == permuted_batch(np.arange(items), items, pass_key(seed, epoch)).tolist()
        assert sorted(numbers.tolist()) == list(range(items))
        assert made.epoch == epoch + 1


def test_another_batch_size_goes_on_at_the_same_item() -> None:
    made, other = over(50, 7), over(50, 11)
    seen = [number for _ in range(3) for number in made.next()]
    other.load(made.save())
    assert other.batches_left == 3
    rest = [number for _ in range(3) for number in other.next()]
    assert sorted(seen + rest) == list(range(50))
