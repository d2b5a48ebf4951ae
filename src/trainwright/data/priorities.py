"""Which transitions are replayed: those that were mispredicted most, most often (Schaul et al. 2016).

Shapes in names: b samples.
"""

from collections.abc import Mapping
from typing import Final, cast, final

import numpy as np
import torch

from trainwright.data.environments import Array
from trainwright.errors import DamagedCheckpointError
from trainwright.state import State, StateValue, require, require_tensor

FIRST_PRIORITY: Final = 1.0  # of what is admitted before anything was learnt from


class Tree:
    """Numbers at the leaves of a binary tree whose every node is made of the two below it; `root` is made of all.

    A node is always `combine(left, right)`, so equal leaves make equal trees whatever was put in before.
    """

    def __init__(self, size: int, combine: np.ufunc, empty: float) -> None:
        self._leaves = 1 << max(0, size - 1).bit_length()
        self._combine, self._size = combine, size
        self._nodes = np.full(2 * self._leaves, empty)

    @property
    def size_bytes(self) -> int:
        return self._nodes.nbytes

    @property
    def root(self) -> float:
        return float(self._nodes[1])

    @property
    def leaves(self) -> Array:
        """Give the numbers; not to be written to."""
        return self._nodes[self._leaves : self._leaves + self._size]

    def put(self, places_b: Array, values_b: Array | float) -> None:
        """Set leaves, and what is made of them. Of a place that is given twice the last value counts."""
        nodes = self._nodes
        above = places_b + self._leaves
        nodes[above] = values_b
        for _ in range(self._leaves.bit_length() - 1):
            above = above >> 1
            nodes[above] = self._combine(nodes[2 * above], nodes[2 * above + 1])

    def find(self, masses_b: Array) -> Array:
        """Give the places in which the running sum of the leaves goes beyond each of these, which lie below the root.

        Of a tree of sums. What rounding carries beyond the last leaf that is not zero is given that leaf.
        """
        at, left_over = np.ones(len(masses_b), np.int64), masses_b.copy()
        for _ in range(self._leaves.bit_length() - 1):
            left = self._nodes[2 * at]
            right = (left_over >= left) & (self._nodes[2 * at + 1] > 0)
            left_over -= left * right
            at = 2 * at + right
        return at - self._leaves


@final
class Priorities:
    """A priority for each place, proportional to which it is drawn: (|error| + `floor`)^`alpha`; 0 is never drawn."""

    def __init__(self, places: int, *, alpha: float, floor: float) -> None:
        self._alpha, self._floor = alpha, floor
        self._sums, self._lowest = Tree(places, np.add, 0.0), Tree(places, np.minimum, np.inf)
        self._highest = FIRST_PRIORITY

    @property
    def size_bytes(self) -> int:
        return self._sums.size_bytes + self._lowest.size_bytes

    def admit(self, places: Array) -> None:
        """Let what was never learnt from be drawn as often as the most mispredicted so far."""
        self._put(places, np.full(len(places), self._highest))

    def withdraw(self, places: Array) -> None:
        """Let these be drawn no more."""
        self._sums.put(places, 0.0)
        self._lowest.put(places, np.inf)

    def draw(self, shares_b: Array) -> Array:
        """Give places by numbers of [0, 1): each place as often as its share of the sum of priorities.

        Draws do not depend on each other (the paper draws by strata of a minibatch), so the micro-batches of an update
        are parts of the one big batch.
        """
        return self._sums.find(shares_b * self._sums.root)

    def weights(self, places_b: Array, beta: float) -> Array:
        """Give importance weights (section 3.4), in float32, over the largest that any place has: at most 1.

        By the largest of all, not of a batch, so that a weight does not depend on which batch it is in.
        """
        return ((self._lowest.root / self._sums.leaves[places_b]) ** beta).astype(np.float32)

    def learn(self, places_b: Array, errors_b: Array) -> None:
        """Set priorities by the errors that were seen; a place that cannot be drawn stays so."""
        drawable = self._sums.leaves[places_b] > 0
        priorities = (np.abs(errors_b[drawable].astype(np.float64)) + self._floor) ** self._alpha
        if priorities.size:
            self._highest = max(self._highest, float(priorities.max()))
            self._put(places_b[drawable], priorities)

    def _put(self, places: Array, priorities: Array) -> None:
        self._sums.put(places, priorities)
        self._lowest.put(places, priorities)

    def save(self) -> Mapping[str, StateValue]:
        return {"priorities": torch.from_numpy(self._sums.leaves.copy()), "highest": self._highest}

    def load(self, state: State) -> None:
        """Take up what `save` gave. Errors: DamagedCheckpointError for an entry that is missing or does not fit."""
        leaves = require_tensor(state, "priorities").numpy()
        if leaves.shape != self._sums.leaves.shape:
            raise DamagedCheckpointError(
                f"entry 'priorities' has shape {list(leaves.shape)}, this replay has {len(self._sums.leaves)} places"
            )
        everywhere = np.arange(len(leaves))
        self._sums.put(everywhere, leaves)
        self._lowest.put(everywhere, np.where(leaves > 0, leaves, np.inf))
        self._highest = cast("float", require(state, "highest"))
