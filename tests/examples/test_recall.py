"""What the sequences of examples/mqar are, and what its trainable counts."""

import pytest
import torch
from pydantic import ValidationError

from examples.mqar.recall import HELD_OUT_SEED, Recall, RecallOptions, drawn
from trainwright.trainable import Setup

OPTIONS = RecallOptions(type=Recall.model_type)


def test_each_key_stands_before_one_value_and_is_asked_for_once_after_the_pairs() -> None:
    batch = drawn(OPTIONS, 50, seed=3)
    assert batch.tokens_bt.shape == (50, 64)
    for number, tokens in enumerate(batch.tokens_bt.tolist()):
        pairs = dict(zip(tokens[0:16:2], tokens[1:16:2], strict=True))
        assert len(pairs) == 8
        assert all(key < 128 <= value for key, value in pairs.items())
        asked = batch.asked_q2[batch.asked_q2[:, 0] == number, 1].tolist()
        assert sorted(tokens[place] for place in asked) == sorted(pairs)
        assert {place for place, token in enumerate(tokens) if place >= 16 and token < 128} == set(asked)
        rights = batch.values_q[number * 8 : (number + 1) * 8].tolist()
        assert [pairs[tokens[place]] for place in asked] == rights


def test_seeds_decide_the_sequences_and_held_out_ones_are_others() -> None:
    same, again, other = (drawn(OPTIONS, 20, seed) for seed in (1, 1, HELD_OUT_SEED))
    assert torch.equal(same.tokens_bt, again.tokens_bt)
    assert not (same.tokens_bt[:, None] == other.tokens_bt[None]).all(-1).any()


def test_accuracy_counts_right_answers_at_asked_positions_alone() -> None:
    options = OPTIONS.model_copy(update={"held_out": 30, "width": 32})
    trainable = Recall.build(Setup(options, {}, batch_size=4))
    (batch,) = trainable.source.validation_batches()
    rights = torch.nn.functional.one_hot(batch.values_q, 256).float()
    rights[: len(rights) // 4] *= -1  # a quarter is wrong
    trainable.forward = lambda batch: rights  # type: ignore[method-assign]  # the instance's stands before the class's
    validation = trainable.validate()
    assert (validation.metric, validation.n) == ("val_accuracy", 30)
    assert validation.value == pytest.approx(0.75)


def test_a_length_without_room_for_the_queries_is_refused() -> None:
    with pytest.raises(ValidationError, match="pairs 8 need a length of 32, it is 31"):
        RecallOptions(type=Recall.model_type, length=31)
