"""Sums and priorities against brute force: plain lists, cumulated sums, and counted draws."""

from itertools import accumulate
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trainwright.data.priorities import FIRST_PRIORITY, Priorities, Tree
from trainwright.equality import bit_differences
from trainwright.errors import DamagedCheckpointError

WHOLE = st.integers(0, 50)  # sums of whole numbers are exact


class AgainstAList(RuleBasedStateMachine):
    """Leaves are set; sum, least and every place that is found equal those of a plain list."""

    @initialize(size=st.integers(1, 40))
    def make(self, size: int) -> None:
        self.sums, self.least = Tree(size, np.add, 0.0), Tree(size, np.minimum, np.inf)
        self.plain = [0.0] * size
        self.low = [np.inf] * size

    @rule(changes=st.lists(st.tuples(st.integers(0, 39), WHOLE), min_size=1, max_size=9))
    def put(self, changes: list[tuple[int, int]]) -> None:
        places = [place % len(self.plain) for place, _ in changes]
        values = [float(value) for _, value in changes]
        for tree, plain in ((self.sums, self.plain), (self.least, self.low)):
            tree.put(np.array(places), np.array(values))
            for place, value in zip(places, values, strict=True):
                plain[place] = value

    @invariant()
    def sums_and_places_are_those_of_the_list(self) -> None:
        assert self.sums.leaves.tolist() == self.plain
        assert (self.sums.root, self.least.root) == (sum(self.plain), min(self.low))
        masses = np.arange(0.5, self.sums.root)
        sums = list(accumulate(self.plain))
        assert self.sums.find(masses).tolist() == [next(i for i, s in enumerate(sums) if s > mass) for mass in masses]


AgainstAList.TestCase.settings = hypothesis.settings(max_examples=30, stateful_step_count=10, deadline=None)
test_a_tree_equals_a_plain_list = AgainstAList.TestCase


def test_a_tree_does_not_depend_on_the_order_in_which_its_leaves_were_set() -> None:
    values = np.random.default_rng(0).random(37)
    one, other = Tree(37, np.add, 0.0), Tree(37, np.add, 0.0)
    one.put(np.arange(37), values)
    for place in np.random.default_rng(1).permutation(37):
        other.put(np.array([place]), 5.0)
        other.put(np.array([place]), values[place])
    assert one.root == other.root
    assert one.root == pytest.approx(values.sum())


def test_what_rounding_carries_beyond_the_end_is_the_last_leaf_that_is_not_zero() -> None:
    tree = Tree(8, np.add, 0.0)
    tree.put(np.array([1, 5]), np.array([0.1, 0.2]))
    assert tree.find(np.array([tree.root, tree.root * 2])).tolist() == [5, 5]


def priorities(**changes: Any) -> Priorities:
    return Priorities(8, **{"alpha": 0.5, "floor": 0.01, **changes})


def learnt() -> tuple[Priorities, Any]:
    """Give priorities of six places, and what they are."""
    made, errors = priorities(), np.array([0.0, 0.15, 0.99, 4.0, 8.99, 0.63])
    made.admit(np.arange(6))
    made.learn(np.arange(6), errors)
    return made, np.array([*(errors + 0.01) ** 0.5, 0.0, 0.0])


def test_places_are_drawn_as_often_as_their_share_of_the_priorities() -> None:
    made, expected = learnt()
    drawn = np.bincount(made.draw(np.random.default_rng(0).random(200_000)), minlength=8) / 200_000
    assert np.abs(drawn - expected / expected.sum()).max() < 0.004
    assert drawn[6:].tolist() == [0, 0]


def test_weights_are_those_of_the_paper_over_the_largest() -> None:
    made, expected = learnt()
    shares = expected[:6] / expected.sum()
    by_the_paper = (1 / 6 / shares) ** 0.4
    np.testing.assert_allclose(made.weights(np.arange(6), 0.4), by_the_paper / by_the_paper.max(), rtol=1e-6)
    assert made.weights(np.arange(6), 0.0).tolist() == [1.0] * 6


def test_what_is_new_is_drawn_as_often_as_the_most_mispredicted_so_far() -> None:
    made, expected = learnt()
    made.learn(np.array([4]), np.array([0.1]))
    made.admit(np.array([6]))
    assert made.save()["priorities"][6] == max(expected)  # type: ignore[index]  # a tensor
    fresh = priorities()
    fresh.admit(np.array([0]))
    assert fresh.save()["priorities"][0] == FIRST_PRIORITY  # type: ignore[index]  # a tensor


def test_what_is_withdrawn_is_drawn_no_more_whatever_is_learnt_of_it() -> None:
    made, _ = learnt()
    made.withdraw(np.array([4]))
    made.learn(np.array([4, 7]), np.array([100.0, 100.0]))
    assert not set(made.draw(np.linspace(0, 0.999999, 1000))) & {4, 6, 7}
    made.withdraw(np.array([0, 1, 2, 3]))
    assert made.weights(np.array([5]), 1.0).tolist() == [1.0], "the least of those that can be drawn"


def test_priorities_come_back_bit_for_bit() -> None:
    made, _ = learnt()
    other = priorities()
    other.admit(np.array([7]))
    other.load(made.save())
    assert not list(bit_differences(made.save(), other.save()))
    shares = np.random.default_rng(3).random(500)
    assert made.draw(shares).tobytes() == other.draw(shares).tobytes()
    assert made.weights(np.arange(6), 0.7).tobytes() == other.weights(np.arange(6), 0.7).tobytes()
    with pytest.raises(DamagedCheckpointError, match=r"entry 'priorities' has shape \[8\], this replay has 9 places"):
        Priorities(9, alpha=0.5, floor=0.01).load(made.save())
