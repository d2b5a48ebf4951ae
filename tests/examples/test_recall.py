"""What the sequences of examples/mqar are, and what its trainable counts."""

import pytest
import torch
from pydantic import ValidationError

from examples.mqar.recall import HELD_OUT_SEED, Recall, RecallBatch, RecallOptions, drawn
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

    def forward(batch: RecallBatch) -> torch.Tensor:
        rights = torch.nn.functional.one_hot(batch.values_q, 256).float()
        rights[::4] *= -1  # a quarter is wrong
        return rights

    trainable.forward = forward  # type: ignore[method-assign]  # the instance's stands before the class's
    validation = trainable.validate()
    assert (validation.metric, validation.n) == ("val_accuracy", 30)
    assert validation.value == pytest.approx(0.75)


def test_batches_of_validation_ask_for_the_same_values_as_all_held_out_sequences_at_once() -> None:
    options = OPTIONS.model_copy(update={"held_out": 10})
    batches = list(Recall.build(Setup(options, {}, batch_size=4)).source.validation_batches())
    whole = drawn(options, 10, HELD_OUT_SEED)
    assert [len(batch.tokens_bt) for batch in batches] == [4, 4, 2]
    assert torch.equal(torch.cat([batch.values_q for batch in batches]), whole.values_q)
    keys_q = torch.cat([batch.tokens_bt[tuple(batch.asked_q2.T)] for batch in batches])
    assert torch.equal(keys_q, whole.tokens_bt[tuple(whole.asked_q2.T)])


def test_a_length_without_room_for_the_queries_is_refused() -> None:
    with pytest.raises(ValidationError, match="pairs 8 need a length of 32, it is 31"):
        RecallOptions(type=Recall.model_type, length=31)


@pytest.mark.parametrize("net", ["trainwright", "transformers"])
def test_either_net_begins_with_heads_of_the_ranges_that_were_asked_for(net: str) -> None:
    options = RecallOptions(type=Recall.model_type, net=net, a_range=(2.0, 3.0), dt_range=(0.2, 0.4), embedding_std=0.5)
    made = Recall.build(Setup(options, {}, batch_size=4)).net
    found = {name.rpartition(".")[2]: parameter.detach() for name, parameter in made.named_parameters()}
    assert 2 <= found["A_log"].exp().min() < found["A_log"].exp().max() <= 3
    steps = torch.nn.functional.softplus(found["dt_bias"])
    assert 0.2 <= steps.min() < steps.max() <= 0.4
    (embeddings,) = (parameter for name, parameter in made.named_parameters() if name.endswith("embeddings.weight"))
    assert embeddings.std().item() == pytest.approx(0.5, rel=0.05)
