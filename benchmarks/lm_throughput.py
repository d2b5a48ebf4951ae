"""Tokens per second of the 4.3M decoder: our trainable and transformers' Llama, alternating, same batches and weights.

    python benchmarks/lm_throughput.py --rounds 10 --steps 8

Ours takes the loop's own steps, with deterministic algorithms as the loop has them on a CPU. Theirs is a bare PyTorch
loop without: zero_grad, forward, cross entropy, backward, clip to 1.0, the same fused AdamW, loss.item().
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  torch's own convention
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from trainwright.budget import LoopSettings
from trainwright.data.windows import TokenBatch
from trainwright.guards import ExplosionGuard
from trainwright.models import huggingface
from trainwright.models.lm import LM, LMOptions
from trainwright.models.token_model import DataOptions, TokenModel, TokenModelOptions
from trainwright.optimizers import build_optimizer
from trainwright.schedules import Schedule
from trainwright.steps import HostStepper
from trainwright.trainable import Setup

PRESET, BATCH_SIZE, MAX_NORM = "4.3m", 8, 1.0
SAME_LOSS = 1e-5  # at the first step, nats

Step: TypeAlias = Callable[[TokenBatch], float]
Contestants: TypeAlias = tuple[Step, Step, Sequence[TokenBatch]]
ModelT = TypeVar("ModelT", bound=TokenModel)


def main() -> None:
    parser = argparse.ArgumentParser(description="compare the throughput of the decoder with transformers' Llama")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=8, help="steps of each side in a round")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010  as a run has it; untyped in torch
    with tempfile.TemporaryDirectory() as folder:
        trainable = synthetic(LM, LMOptions(preset=PRESET), Path(folder), BATCH_SIZE, arguments.steps)
        oracle = LlamaForCausalLM(LlamaConfig(**huggingface.configuration(trainable.decoder.shape)))
        compare(*contestants(trainable, oracle, arguments.steps), arguments.rounds)


def contestants(trainable: TokenModel, oracle: PreTrainedModel, steps: int) -> Contestants:
    """Give both sides the same weights, and draw the batches that each sees in every round."""
    missing = oracle.load_state_dict(
        huggingface.weights(cast("huggingface.AnyDecoder", trainable.decoder)), strict=False
    )
    assert missing.missing_keys in ([], ["lm_head.weight"])
    assert not missing.unexpected_keys
    oracle.tie_weights()
    oracle.train()
    batches = [trainable.next_batch() for _ in range(steps)]
    return our_step(trainable), their_step(oracle, trainable.setup), batches


def synthetic(kind: type[ModelT], options: TokenModelOptions, folder: Path, batch_size: int, steps: int) -> ModelT:
    """Build a trainable over random tokens, enough of them for `steps`."""
    shape = options.shape()
    tokens = (steps + 4) * batch_size * (shape.context + 1)
    drawn = np.random.default_rng(0).integers(shape.vocabulary_size, size=tokens, dtype=np.uint16)
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(drawn.astype("<u2").tobytes())
    data = DataOptions(path=folder, dtype="uint16", vocabulary_size=shape.vocabulary_size)
    return kind.build(Setup(options, data, batch_size))


def our_step(trainable: TokenModel) -> Step:
    """Drive the trainable by the loop's stepper, which also takes the norm, holds the guards and keeps the time."""
    explosion = ExplosionGuard("warn", ratio=10.0, window=100, max_skips=10)
    settings = LoopSettings(Schedule(trainable.learning_rate, "constant"), clip_norm=MAX_NORM)
    stepper = HostStepper(trainable, settings, explosion)

    def step(batch: TokenBatch) -> float:
        trainable.next_batch = lambda: batch  # type: ignore[method-assign]  # the instance's stands before the class's
        torch.use_deterministic_algorithms(True)
        (done,) = stepper.take(trainable.step)
        torch.use_deterministic_algorithms(False)
        return done.loss

    return step


def their_step(model: nn.Module, setup: Setup) -> Step:
    optimizer = build_optimizer(dict(model.named_parameters()), setup.optimizer)
    parameters = list(model.parameters())

    def step(batch: TokenBatch) -> float:
        optimizer.zero_grad()
        logits_btv = model(input_ids=batch.inputs_bt, use_cache=False).logits
        loss = F.cross_entropy(logits_btv.float().flatten(0, 1), batch.targets_bt.flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        optimizer.step()
        return float(loss.item())

    return step


def compare(ours: Step, theirs: Step, batches: Sequence[TokenBatch], rounds: int) -> None:
    first, other = ours(batches[0]), theirs(batches[0])
    assert abs(first - other) < SAME_LOSS, f"the first losses differ: ours {first}, transformers {other}"
    print(f"first loss: ours {first:.6f}, transformers {other:.6f}")
    ratios = []
    for index in range(rounds):
        rates = {}
        for name, step in sorted({"ours": ours, "transformers": theirs}.items(), reverse=index % 2 == 1):
            rates[name] = tokens_per_second(step, batches)
        ratios.append(rates["ours"] / rates["transformers"])
        print(
            f"round {index}: ours {rates['ours']:,.0f} tok/s, transformers {rates['transformers']:,.0f}, "
            f"ratio {ratios[-1]:.3f}"
        )
    print(
        f"median ratio over {rounds} rounds: {statistics.median(ratios):.3f} "
        f"(lowest {min(ratios):.3f}, highest {max(ratios):.3f})"
    )


def tokens_per_second(step: Step, batches: Sequence[TokenBatch]) -> float:
    start = time.perf_counter()
    for batch in batches:
        step(batch)
    return sum(batch.targets_bt.numel() for batch in batches) / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
