"""What was done in environments, to be learnt from again: a ring of rows, each a time step, each written once.

A return over several steps is made when it is asked for, from the rows that it spans. A transition's place is the row's
slot in the ring × environments + environment. Shapes in names: t rows, n environments, b samples, k steps of a return,
f features.
"""

from typing import Final, NamedTuple, cast, final

import numpy as np
import torch

from trainwright.data.environments import Array, Stepped
from trainwright.errors import DamagedCheckpointError
from trainwright.state import Segment, State, StateValue, require, require_tensor

BLOCK_TRANSITIONS: Final = 4096  # at most; a block of rows is a segment of checkpoints
BLOCKS: Final = 4  # at least, of a whole ring
GOES_ON, TERMINATED, TRUNCATED = 0, 1, 2


class Transitions(NamedTuple):
    """What was seen (b, f) and done (b,), what that gave, what followed (b, f), and how much of its value counts (b,).

    `returns` are the discounted rewards up to the n-th, or to the end of the episode. `discounts` are γ to the number
    of these; 0 where the episode terminated: nothing follows it.
    """

    seen: Array
    actions: Array
    returns: Array
    following: Array
    discounts: Array


@final
class Replay:
    """The newest `rows` time steps of `environments`; `written` counts all that were ever added."""

    def __init__(self, features: int, environments: int, *, rows: int, n_step: int, discount: float) -> None:
        """Make an empty one. A return of `n_step` steps must fit: `rows` is above it."""
        assert rows > n_step
        observation = ("<f4", (features,))
        # all parts of four bytes: none is padded, so a row is its bytes
        parts = [
            ("seen", *observation),
            ("following", *observation),
            ("action", "<i4"),
            ("reward", "<f4"),
            ("ended", "<i4"),
        ]
        self._ring = np.zeros((rows, environments), np.dtype(parts))
        self._flat = self._ring.reshape(-1)
        self.n_step = n_step
        self._powers_k = discount ** np.arange(n_step + 1)
        self._block = max(1, min(BLOCK_TRANSITIONS // environments, rows // BLOCKS))
        self._segments: dict[int, Segment] = {}
        self.written = 0
        self.largest_reward = 0.0

    @property
    def places(self) -> int:
        return len(self._flat)

    @property
    def size_bytes(self) -> int:
        """Give the bytes of the whole ring, whatever of it is filled."""
        return self._ring.nbytes

    @property
    def oldest(self) -> int:
        """Give the number of the oldest row that is held."""
        return max(0, self.written - len(self._ring))

    @property
    def filled(self) -> float:
        """Give the share of the ring that is held."""
        return (self.written - self.oldest) / len(self._ring)

    @property
    def complete(self) -> int:
        """Give how many transitions have a whole return: those of rows with `n_step` - 1 after them."""
        return max(0, self.written - self.n_step + 1 - self.oldest) * self._ring.shape[1]

    def add(self, seen_nf: Array, actions_n: Array, stepped: Stepped) -> None:
        """Write a row: what was seen, what was done in each environment, and what it led to before any reset."""
        row = self._ring[self.written % len(self._ring)]
        row["seen"], row["following"] = seen_nf, stepped.next_nf
        row["action"], row["reward"] = actions_n, stepped.rewards_n
        row["ended"] = np.where(stepped.terminated_n, TERMINATED, np.where(stepped.truncated_n, TRUNCATED, GOES_ON))
        self.written += 1
        self.largest_reward = float(np.fmax(self.largest_reward, np.fmax.reduce(np.abs(stepped.rewards_n))))

    def places_of(self, numbers: Array) -> Array:
        """Give the places of transitions numbered from the oldest that is held."""
        return np.asarray((numbers + self.oldest * self._ring.shape[1]) % self.places)

    def places_of_rows(self, first: int, last: int) -> Array:
        """Give the places of rows `first` up to `last`, which are held."""
        count = self._ring.shape[1]
        return np.arange(first * count, last * count) % self.places

    def at(self, places_b: Array) -> Transitions:
        """Give the transitions at these places, each with a whole return."""
        begun = self._flat[places_b]
        if self.n_step == 1:
            ended, returns_b, lengths_b = begun, begun["reward"], np.ones(len(begun), np.int64)
        else:
            ended, returns_b, lengths_b = self._returns(places_b)
        alive_b = ended["ended"] != TERMINATED
        return Transitions(
            np.ascontiguousarray(begun["seen"]),
            begun["action"].astype(np.int64),
            returns_b.astype(np.float32),
            np.ascontiguousarray(ended["following"]),
            (self._powers_k[lengths_b] * alive_b).astype(np.float32),
        )

    def _returns(self, places_b: Array) -> tuple[Array, Array, Array]:
        """Give the last transition of each return, the return, and its length: no return goes beyond its episode."""
        places_bk = (places_b[:, None] + self._ring.shape[1] * np.arange(self.n_step)) % self.places
        ends_bk = self._flat["ended"][places_bk] != GOES_ON
        last_b = np.where(ends_bk.any(1), ends_bk.argmax(1), self.n_step - 1)
        counts_bk = np.arange(self.n_step) <= last_b[:, None]
        rewards_bk = np.where(counts_bk, self._flat["reward"][places_bk], 0.0)
        ended = self._flat[places_bk[np.arange(len(places_b)), last_b]]
        return ended, rewards_bk @ self._powers_k[:-1], last_b + 1

    # -- state: whole blocks of rows are segments, which checkpoints share; what is left at both ends is not -----------

    def save(self) -> dict[str, StateValue]:
        first, last = self._whole_blocks()
        self._segments = {number: self._segments.get(number) or self._segment(number) for number in range(first, last)}
        return {
            "rows": len(self._ring),
            "written": self.written,
            "largest_reward": self.largest_reward,
            "older": torch.from_numpy(self._bytes(self.oldest, first * self._block)),
            "newer": torch.from_numpy(self._bytes(last * self._block, self.written)),
            **{f"block.{number}": segment for number, segment in self._segments.items()},
        }

    def _whole_blocks(self) -> tuple[int, int]:
        return -(-self.oldest // self._block), self.written // self._block

    def _segment(self, number: int) -> Segment:
        return Segment(self._bytes(number * self._block, (number + 1) * self._block))

    def _bytes(self, first: int, last: int) -> Array:
        return self._ring[np.arange(first, last) % len(self._ring)].view(np.uint8)

    def load(self, state: State) -> None:
        """Take up what `save` gave. Errors: DamagedCheckpointError for an entry that is missing or does not fit."""
        rows, count = require(state, "rows"), self._ring.shape[1]
        if rows != len(self._ring):
            raise DamagedCheckpointError(
                f"entry 'rows' is {rows!r}: the replay that was saved is one of {rows} steps of each environment, this "
                f"one of {len(self._ring)}"
            )
        self.written = cast("int", require(state, "written"))
        self.largest_reward = cast("float", require(state, "largest_reward"))
        first, last = self._whole_blocks()
        self._segments = {number: _segment_in(state, f"block.{number}") for number in range(first, last)}
        older, newer = (require_tensor(state, name).numpy() for name in ("older", "newer"))
        parts = (older, *(segment.array for segment in self._segments.values()), newer)
        held, size = np.arange(self.oldest, self.written), self._ring.dtype.itemsize * count
        if {part.shape[1:] for part in parts} != {(size,)} or sum(map(len, parts)) != len(held):
            raise DamagedCheckpointError(
                f"entry 'replay' holds rows of shapes {sorted({part.shape for part in parts})}; {len(held)} rows of "
                f"{size} bytes are those of these {count} environments"
            )
        self._ring[held % len(self._ring)] = np.concatenate(parts).view(self._ring.dtype)


def _segment_in(state: State, name: str) -> Segment:
    value = require(state, name)
    if not isinstance(value, Segment):
        raise DamagedCheckpointError(
            f"entry {name!r} of the checkpoint is a {type(value).__name__}, expected a segment"
        )
    return value
