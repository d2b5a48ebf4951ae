"""Text of a decoder, one token after the other. Shapes in names: b sequences, t positions, v vocabulary."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainwright.errors import InputError
from trainwright.models.token_net import TokenNet


def generate(
    decoder: TokenNet,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    stop_token: int | None = None,
) -> list[int]:
    """Give up to `max_new_tokens` ids that follow the prompt, without it and without the stop token.

    Temperature 0 takes the likeliest token; otherwise one is drawn from the `top_k` likeliest (Fan et al. 2018,
    section 5.1; None: from all) by a stream of its own, so equal seeds give equal ids and no other stream moves.
    What a model with a fixed context sees past it are the newest tokens alone. Errors: InputError for a wrong argument.
    """
    _check(decoder, prompt_ids, max_new_tokens, temperature, top_k)
    stream, read = torch.Generator().manual_seed(seed), decoder.reader()
    ids = list(prompt_ids)
    was_training = decoder.training
    decoder.eval()
    try:
        for _ in range(max_new_tokens):
            chosen = _choose(_next_logits(read, ids), temperature, top_k, stream)
            if chosen == stop_token:
                break
            ids.append(chosen)
    finally:
        decoder.train(was_training)
    return ids[len(prompt_ids) :]


def _check(
    decoder: TokenNet, prompt_ids: Sequence[int], max_new_tokens: int, temperature: float, top_k: int | None
) -> None:
    size = decoder.shape.vocabulary_size
    wrong = [token for token in prompt_ids if not 0 <= token < size]
    if not prompt_ids:
        raise InputError("the prompt is empty; give at least one token to continue")
    if wrong:
        raise InputError(f"the prompt holds token {wrong[0]}; the model's vocabulary ends at {size - 1}")
    if max_new_tokens < 0:
        raise InputError(f"max_new_tokens is {max_new_tokens}; expected 0 or more")
    if not 0 <= temperature < float("inf"):
        raise InputError(f"temperature is {temperature}; expected 0 (the likeliest token) or a positive number")
    if top_k is not None and top_k < 1:
        raise InputError(f"top_k is {top_k}; expected 1 or more, or none for the whole vocabulary")


@torch.no_grad()
def _next_logits(read: Callable[[Sequence[int]], Tensor], ids: Sequence[int]) -> Tensor:
    return read(ids).float().cpu()


def _choose(logits_v: Tensor, temperature: float, top_k: int | None, stream: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_v.argmax())
    if top_k is not None and top_k < logits_v.numel():
        kept = logits_v.topk(top_k)
        logits_v = torch.full_like(logits_v, -torch.inf).scatter(0, kept.indices, kept.values)
    return int(torch.multinomial((logits_v / temperature).softmax(-1), 1, generator=stream))
