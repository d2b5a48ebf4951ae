import pytest
import torch

from trainwright.errors import InputError
from trainwright.models.decoder import Decoder, Shape
from trainwright.models.generate import generate


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(3)
    decoder = Decoder(Shape(2, 32, 4, 2, 48, 8, 37))
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return decoder


def test_temperature_0_takes_the_likeliest_token(decoder: Decoder) -> None:
    ids = generate(decoder, [1, 2, 3], max_new_tokens=4, temperature=0)
    context = [1, 2, 3]
    for token in ids:
        assert token == int(decoder(torch.tensor([context]))[0, -1].argmax())
        context.append(token)
    assert len(ids) == 4


def test_past_the_context_the_window_slides(decoder: Decoder) -> None:
    prompt = list(range(12))
    [token] = generate(decoder, prompt, max_new_tokens=1, temperature=0)
    assert token == int(decoder(torch.tensor([prompt[-8:]]))[0, -1].argmax())
    assert len(generate(decoder, prompt, max_new_tokens=20)) == 20


def test_equal_seeds_give_equal_ids_and_no_other_stream_moves(decoder: Decoder) -> None:
    before = torch.get_rng_state()
    first, again, other = (generate(decoder, [0], max_new_tokens=20, seed=seed) for seed in (7, 7, 8))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), before)


def test_top_k_1_is_greedy_and_a_top_k_past_the_vocabulary_changes_nothing(decoder: Decoder) -> None:
    assert generate(decoder, [5], max_new_tokens=9, top_k=1) == generate(decoder, [5], max_new_tokens=9, temperature=0)
    assert generate(decoder, [5], max_new_tokens=9, top_k=99) == generate(decoder, [5], max_new_tokens=9)


def test_draws_follow_the_probabilities_of_the_k_likeliest(decoder: Decoder) -> None:
    drawn = [generate(decoder, [4], max_new_tokens=1, temperature=2.0, top_k=3, seed=seed)[0] for seed in range(600)]
    with torch.no_grad():
        kept = decoder(torch.tensor([[4]]))[0, -1].topk(3)
    expected = (kept.values / 2.0).softmax(-1).tolist()
    assert set(drawn) <= set(kept.indices.tolist())
    for token, share in zip(kept.indices.tolist(), expected, strict=True):
        assert drawn.count(token) / 600 == pytest.approx(share, abs=0.08)  # four standard errors


def test_it_ends_at_the_stop_token_and_leaves_it_out(decoder: Decoder) -> None:
    ids = generate(decoder, [1, 2, 3], max_new_tokens=10, seed=1)
    stop = ids[4]
    assert generate(decoder, [1, 2, 3], max_new_tokens=10, seed=1, stop_token=stop) == ids[: ids.index(stop)]


@pytest.mark.parametrize("training", [True, False])
def test_it_leaves_the_mode_and_no_gradient(decoder: Decoder, training: bool) -> None:
    decoder.train(training)
    generate(decoder, [1], max_new_tokens=1)
    assert decoder.training is training
    assert all(parameter.grad is None for parameter in decoder.parameters())


@pytest.mark.parametrize(
    ("prompt", "arguments", "message"),
    [
        ([], {}, "prompt is empty"),
        ([1, 37], {}, "token 37; the model's vocabulary ends at 36"),
        ([1], {"max_new_tokens": -1}, "max_new_tokens is -1"),
        ([1], {"temperature": -0.5}, "temperature is -0.5"),
        ([1], {"temperature": float("nan")}, "temperature is nan"),
        ([1], {"top_k": 0}, "top_k is 0"),
    ],
)
def test_wrong_arguments_are_refused(
    decoder: Decoder, prompt: list[int], arguments: dict[str, float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        generate(decoder, prompt, **{"max_new_tokens": 1, **arguments})  # type: ignore[arg-type]  # wrong on purpose
