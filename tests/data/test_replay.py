"""The ring of transitions against a plain list of what was done, by rows that tell their own number."""

from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.memory import MemoryStore
from trainwright.data.environments import Stepped
from trainwright.data.replay import Replay
from trainwright.equality import bit_differences
from trainwright.errors import DamagedCheckpointError
from trainwright.manifest import Stamp
from trainwright.state import Segment, with_prefix

COUNT, DISCOUNT = 2, 0.9


def stepped(number: int, ended: tuple[int, ...] = (0, 0), reward: float = 1.0) -> Stepped:
    """Give what row `number` led to: 0.5 beyond it, rewards by number and environment; `ended` 1 terminates, 2 cuts."""
    seen = observed(number + 1)
    rewards = reward * np.array([number, -2.0 * number])
    kinds = np.array(ended)
    return Stepped(seen, observed(number) + 0.5, rewards, kinds == 1, kinds == 2, [])


def observed(number: int) -> Any:
    return np.array([[number, environment] for environment in range(COUNT)], np.float32)


def replay(rows: int = 12, n_step: int = 1) -> Replay:
    return Replay(2, COUNT, rows=rows, n_step=n_step, discount=DISCOUNT)


def fill(made: Replay, first: int, last: int) -> Replay:
    for number in range(first, last):
        made.add(observed(number), np.array([number % 3, 2]), stepped(number))
    return made


def everything(made: Replay) -> Any:
    return made.at(made.places_of(np.arange(made.complete)))


def test_a_transition_is_what_was_seen_and_done_and_what_followed() -> None:
    found = everything(fill(replay(), 0, 3))
    assert found.seen.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]
    assert found.following.tolist() == [[n + 0.5, e + 0.5] for n in range(3) for e in range(2)]
    assert found.actions.tolist() == [0, 2, 1, 2, 2, 2]
    assert found.returns.tolist() == [0, 0, 1, -2, 2, -4]
    assert found.discounts.tolist() == [np.float32(DISCOUNT)] * 6


def test_the_oldest_rows_give_way_to_the_newest() -> None:
    made = fill(replay(rows=4), 0, 7)
    assert everything(made).seen[:, 0].tolist() == [3, 3, 4, 4, 5, 5, 6, 6]
    assert (made.oldest, made.written, made.filled) == (3, 7, 1.0)


def test_a_return_of_three_steps_adds_discounted_rewards_and_looks_at_what_followed_the_third() -> None:
    made = fill(replay(n_step=3), 0, 5)
    found = everything(made)
    assert found.seen[:, 0].tolist() == [0, 0, 1, 1, 2, 2], "the returns of the last two rows are not whole yet"
    assert found.returns[2] == pytest.approx(1 + 2 * 0.9 + 3 * 0.81)
    assert found.returns[3] == pytest.approx(-2 * (1 + 2 * 0.9 + 3 * 0.81))
    assert found.following[2].tolist() == [3.5, 0.5]
    assert found.discounts[2] == pytest.approx(0.729)


@pytest.mark.parametrize(("how", "discount"), [(1, 0.0), (2, 0.81)], ids=["terminated", "truncated"])
def test_a_return_ends_with_its_episode_and_only_a_truncated_one_has_a_value_after_it(
    how: int, discount: float
) -> None:
    made = fill(replay(n_step=3), 0, 2)
    made.add(observed(2), np.array([0, 0]), stepped(2, (how, 0)))
    fill(made, 3, 6)
    found = everything(made)
    assert found.returns[2] == pytest.approx(1 + 2 * 0.9), "of row 1 in the environment whose episode ended in row 2"
    assert found.following[2].tolist() == [2.5, 0.5], "what was seen before the reset"
    assert found.discounts[2] == pytest.approx(discount)
    assert found.discounts[3] == pytest.approx(0.729), "the other environment's goes on"


def test_the_largest_reward_is_known_by_its_size_and_one_that_is_no_number_is_none() -> None:
    made = fill(replay(), 0, 4)
    assert made.largest_reward == 6.0
    made.add(observed(4), np.array([0, 0]), stepped(4, reward=float("nan")))
    assert made.largest_reward == 6.0


class AgainstAList(RuleBasedStateMachine):
    """Rows are added, and saved and loaded into another ring; each transition equals the one made of a plain list."""

    @initialize(rows=st.integers(4, 24), n_step=st.integers(1, 3))
    def make(self, rows: int, n_step: int) -> None:
        self.rows, self.n_step, self.done = rows, n_step, list[tuple[int, tuple[int, int]]]()
        self.replay = replay(rows, n_step)

    @rule(ends=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=9))
    def act(self, ends: list[tuple[int, int]]) -> None:
        for ended in ends:
            number = len(self.done)
            self.replay.add(observed(number), np.array([number % 5, 1]), stepped(number, ended))
            self.done.append((number, ended))

    @rule()
    def resume(self) -> None:
        other = fill(replay(self.rows, self.n_step), 100, 103)
        other.load(self.replay.save())
        assert not list(bit_differences(self.replay.save(), other.save()))
        self.replay = other

    @invariant()
    def transitions_are_those_of_the_list(self) -> None:
        held = self.done[-self.rows :]
        expected = [
            self.expected(held[at : at + self.n_step], environment)
            for at in range(len(held) - self.n_step + 1)
            for environment in range(COUNT)
        ]
        found = everything(self.replay)
        assert self.replay.complete == len(expected)
        for index, (seen, following, gained, discount) in enumerate(expected):
            assert found.seen[index].tolist() == seen
            assert found.following[index].tolist() == following
            assert found.returns[index] == pytest.approx(gained, rel=1e-6)
            assert found.discounts[index] == pytest.approx(discount)

    def expected(self, rows: list[tuple[int, tuple[int, int]]], environment: int) -> tuple[Any, Any, float, float]:
        gained, weight = 0.0, 1.0
        for number, ended in rows:
            gained += weight * number * (1, -2)[environment]
            weight *= DISCOUNT
            if ended[environment]:
                break
        discount = 0.0 if ended[environment] == 1 else weight
        return [rows[0][0], environment], [number + 0.5, environment + 0.5], gained, discount


AgainstAList.TestCase.settings = hypothesis.settings(max_examples=30, stateful_step_count=12, deadline=None)
test_a_replay_equals_a_plain_list = AgainstAList.TestCase


# -- what is saved ---------------------------------------------------------------------------------------------------


def test_whole_blocks_are_segments_that_are_hashed_once() -> None:
    made = fill(replay(rows=40), 0, 35)
    first, second = made.save(), fill(made, 35, 36).save()
    blocks = [name for name, value in first.items() if isinstance(value, Segment)]
    assert blocks == ["block.0", "block.1", "block.2"]
    assert all(first[name] is second[name] for name in blocks)


class Counting(MemoryStore):
    """Counts the bytes that are put."""

    written = 0

    def put(self, key: str, *parts: bytes | memoryview) -> None:
        self.written += sum(map(len, parts))
        super().put(key, *parts)


def test_a_second_save_writes_little_more_than_what_is_new() -> None:
    made, store = Replay(4, 8, rows=8192, n_step=1, discount=0.9), Counting()
    checkpoints, row_bytes = Checkpoints(store), 8 * 44
    blank, no = np.zeros((8, 4), np.float32), np.zeros(8, bool)
    told = []
    for rows in (5000, 10):
        for _ in range(rows):
            made.add(blank + made.written, np.zeros(8, int), Stepped(blank, blank, np.ones(8), no, no, []))
        before = store.written
        stamp = Stamp(run="run", attempt=1, model_type="dqn", config_sha256="")
        checkpoints.write(with_prefix("replay", made.save()), step=made.written, stamp=stamp, time="now").commit()
        told.append(store.written - before)
    assert told[0] > 5000 * row_bytes
    assert told[1] < 512 * row_bytes + 10_000, "what is no whole block yet, and a manifest"


def test_a_state_of_another_ring_is_refused_by_its_entry() -> None:
    saved = fill(replay(rows=12), 0, 20).save()
    with pytest.raises(DamagedCheckpointError, match="is one of 12 steps of each environment, this one of 16"):
        replay(rows=16).load(saved)
    with pytest.raises(DamagedCheckpointError, match="12 rows of 72 bytes are those of these 2 env"):
        Replay(3, COUNT, rows=12, n_step=1, discount=DISCOUNT).load(saved)
    with pytest.raises(DamagedCheckpointError, match="no entry 'older'"):
        replay(rows=12).load({key: value for key, value in saved.items() if key != "older"})
