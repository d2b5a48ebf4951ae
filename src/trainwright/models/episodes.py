"""One episode of an agent, as a panel: what it expected at each step, and what then came.

Shapes in names: n environments (one here), f features.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from trainwright.data.environments import Array, Kind, spaces_of
from trainwright.illustrations import Line, Lines

Act: TypeAlias = Callable[[Array], Array]

LONGEST: Final = 1000  # steps that are shown; what would follow is told by the agent's own expectation
RETURN: Final = "discounted return"


class Moment(NamedTuple):
    """One step: the return that was expected before it, its reward, and what is expected after it (0 at the end)."""

    expected: float
    reward: float
    expected_after: float
    is_last: bool  # by the environment's own end, not by a limit of steps


def episode_panel(kind: Kind, seed: int, act: Act, expect: Act, discount: float) -> Lines:
    """Play one episode by `act`, at most 1,000 steps of it; draw what `expect` gave beside the return that followed.

    `expect` gives the discounted return that the agent awaits, shape (n,), of observations (n, f).
    """
    moments = list(_moments(kind, seed, act, expect))
    steps = [float(step) for step in range(len(moments))]
    about = f"{RETURN} at each step of an episode of {len(moments)} steps, by the policy without exploration"
    if not moments[-1].is_last:
        about += "; it was cut there: what would have followed is what the agent expected"
    return Lines(
        title="One episode",
        about=about,
        x_unit="env steps",
        y_unit=RETURN,
        lines=[
            Line("followed", steps, _returns(moments, discount)),
            Line("expected", steps, [moment.expected for moment in moments]),
        ],
    )


def _moments(kind: Kind, seed: int, act: Act, expect: Act) -> Iterator[Moment]:
    environment = kind.make()
    actions = spaces_of(environment).actions
    seen_nf = _observed(environment.reset(seed=seed)[0])
    expected = float(expect(seen_nf)[0])
    for _ in range(LONGEST):
        [action] = actions.taken(act(seen_nf))
        seen, reward, terminated, truncated, _ = environment.step(actions.shaped(action))
        seen_nf = _observed(seen)
        after = 0.0 if terminated else float(expect(seen_nf)[0])
        yield Moment(expected, float(reward), after, bool(terminated))
        if terminated or truncated:
            return
        expected = after


def _observed(seen: Array) -> Array:
    return np.ravel(seen).astype(np.float32)[None]


def _returns(moments: Sequence[Moment], discount: float) -> list[float]:
    """Give the discounted return from each step on; where the episode was cut, the expectation stands for the rest."""
    coming, found = moments[-1].expected_after, []
    for moment in reversed(moments):
        coming = moment.reward + discount * coming
        found.append(coming)
    return found[::-1]
