"""Environments: seeded episodes that are replayed bit for bit, and an end told apart from a time limit."""

import sys
from typing import Any

import numpy as np
import pytest
import torch

from trainwright.data.environments import INSTALL, Environments, Kind, Stepped, episode_seed, play, replay_fault
from trainwright.errors import DamagedCheckpointError, InputError
from trainwright.state import StateValue

CLASSIC = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1")


def acted(environments: Environments, steps: int, seed: int = 0) -> list[Stepped]:
    drawn, actions = np.random.default_rng(seed), environments.spaces.actions
    shape = (steps, len(environments))
    chosen = drawn.integers(actions.count, size=shape) if actions.discrete else drawn.normal(size=(*shape, 1)) * 2
    return [environments.step(action) for action in chosen]


def bits(steps: list[Stepped]) -> list[bytes]:
    return [part.tobytes() for step in steps for part in (step.observations_nf, step.next_nf, step.rewards_n)]


@pytest.mark.parametrize("name", CLASSIC)
@pytest.mark.parametrize("steps", [0, 1, 57, 230])
def test_a_replay_of_its_actions_brings_an_environment_to_the_same_bits(name: str, steps: int) -> None:
    environments = Environments(Kind(name), 3, seed=7)
    acted(environments, steps)
    saved = environments.save()
    ahead = bits(acted(environments, 60, seed=1))
    other = Environments(Kind(name), 3, seed=7)
    acted(other, 11, seed=2)
    other.load(saved)
    assert other.inexact is None
    assert bits(acted(other, 60, seed=1)) == ahead


def test_every_episode_begins_by_the_hash_of_run_environment_and_episode() -> None:
    environments = Environments(Kind("tests.games:Ends-v0"), 2, seed=3)
    begun = [environments.observations_nf.copy(), *(acted(environments, 3)[-1].observations_nf for _ in range(2))]
    for episode, seen_nf in enumerate(begun):
        seeds = [episode_seed(3, "training", index, episode) for index in range(2)]
        expected = [Kind("tests.games:Ends-v0").make().reset(seed=seed)[0] for seed in seeds]
        assert seen_nf.tolist() == np.array(expected, np.float32).tolist()
    assert episode_seed(3, "training", 0, 0) == 5024003010031430952


def test_no_two_purposes_environments_or_episodes_share_a_seed() -> None:
    purposes: tuple[Any, ...] = ("training", "validation", "evaluation")
    seeds = [
        episode_seed(s, purpose, i, e) for purpose in purposes for s in range(9) for i in range(9) for e in range(9)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_time_limit_is_truncation_and_what_followed_the_last_action_is_kept() -> None:
    environments = Environments(Kind("tests.games:Walks-v0"), 1, seed=0)
    first = environments.observations_nf[0, 0]
    steps = acted(environments, 4)
    assert [(bool(s.terminated_n[0]), bool(s.truncated_n[0])) for s in steps] == [(False, False)] * 3 + [(False, True)]
    assert steps[3].next_nf[0, 0] == first + 4
    assert steps[3].observations_nf[0, 0] == environments.observations_nf[0, 0] != first + 4
    assert [list(step.returns) for step in steps] == [[], [], [], [4.0]]


def test_an_end_at_the_time_limit_is_termination_alone() -> None:
    last = acted(Environments(Kind("tests.games:EndsAtLimit-v0"), 1, seed=0), 3)[-1]
    assert (bool(last.terminated_n[0]), bool(last.truncated_n[0])) == (True, False)


def test_an_environment_that_forgets_its_seed_is_declared_not_exact_and_begins_anew_after_a_load() -> None:
    assert "is not exact" in (replay_fault(Kind("tests.games:Forgets-v0")) or "")
    environments = Environments(Kind("tests.games:Forgets-v0"), 1, seed=0)
    assert environments.inexact is not None
    acted(environments, 2)
    environments.load(environments.save())
    assert "its episode began anew" in environments.inexact
    assert environments.save()["episodes"] == [1]


@pytest.mark.parametrize("name", CLASSIC)
def test_the_classic_environments_are_exact(name: str) -> None:
    assert replay_fault(Kind(name)) is None


def test_an_entry_that_is_missing_or_of_other_environments_is_an_error_that_names_it() -> None:
    saved = dict[str, StateValue](Environments(Kind("tests.games:Walks-v0"), 2, seed=0).save())
    with pytest.raises(DamagedCheckpointError, match=r"shape \[2, 1\], these 3 environments give \[3, 1\]"):
        Environments(Kind("tests.games:Walks-v0"), 3, seed=0).load(saved)
    del saved["actions.1"]
    with pytest.raises(DamagedCheckpointError, match=r"'actions\.1'"):
        Environments(Kind("tests.games:Walks-v0"), 2, seed=0).load(saved)


def test_continuous_actions_are_clipped_and_kept_as_they_were_taken() -> None:
    environments = Environments(Kind("Pendulum-v1"), 1, seed=0)
    environments.step(np.array([[7.0]]))
    saved = environments.save()["actions.0"]
    assert isinstance(saved, torch.Tensor)
    assert (saved.tolist(), saved.dtype) == ([[2.0]], torch.float32)


def test_played_episodes_end_and_their_returns_do_not_depend_on_their_neighbours() -> None:
    def act(seen_nf: Any) -> Any:
        return (seen_nf[:, 2] > 0).astype(int)

    seeds = [episode_seed(0, "evaluation", 0, episode) for episode in range(40)]
    together = play(Kind("CartPole-v1"), seeds, act)
    assert together == [play(Kind("CartPole-v1"), [seed], act)[0] for seed in seeds]
    assert len(set(together)) > 3


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Kind("CartPole-v9"), "environment 'CartPole-v9' cannot be made: "),
        (Kind("CartPole-v1", {"gravity": 1}), "cannot be made: .*gravity"),
        (Kind("no_such_module:Game-v0"), "cannot be made: "),
    ],
)
def test_an_environment_that_cannot_be_made_is_an_error_of_its_key(kind: Kind, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        Environments(kind, 1, 0)
    assert refused.value.config_key == "data.environment"


def test_spaces_that_are_not_known_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"'Odd-v0' has observations Box.* and actions MultiBinary\(2\); expected"):
        Environments(Kind("tests.games:Odd-v0"), 1, 0)


def test_a_missing_gymnasium_is_one_line_that_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(InputError) as refused:
        Environments(Kind("CartPole-v1"), 1, 0)
    assert str(refused.value) == INSTALL
    assert "pip install 'trainwright[agents]'" in INSTALL
    assert "\n" not in INSTALL
