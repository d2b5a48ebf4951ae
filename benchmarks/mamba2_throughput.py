"""Tokens per second of Mamba-2 with 538k parameters: our trainable and transformers' torch path, alternating.

    python benchmarks/mamba2_throughput.py --rounds 10 --steps 4

Same weights, same batches of 4 × 256 tokens, and the sides are those of lm_throughput.py: ours takes the loop's own
steps, theirs is a bare PyTorch loop. Both take 64 positions at once; `--their-chunk` gives them another number (their
default is 256).
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from lm_throughput import Step, compare, our_step, their_step  # type: ignore[import-not-found]  # of the script's folder
from transformers import Mamba2Config, Mamba2ForCausalLM

from trainwright.data.windows import TokenBatch
from trainwright.models import huggingface
from trainwright.models.mamba2 import PRESETS, Mamba2, Mamba2Options
from trainwright.models.token_model import DataOptions
from trainwright.trainable import Setup

PRESET, BATCH_SIZE = "0.54m", 4


def main() -> None:
    parser = argparse.ArgumentParser(description="compare the throughput of Mamba-2 with transformers' torch path")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=4, help="steps of each side in a round")
    parser.add_argument("--their-chunk", type=int, default=PRESETS[PRESET].chunk)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010  as a run has it; untyped in torch
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs, batches = contestants(Path(folder), arguments.steps, arguments.their_chunk)
        compare(ours, theirs, batches, arguments.rounds)


def contestants(folder: Path, steps: int, their_chunk: int) -> tuple[Step, Step, Sequence[TokenBatch]]:
    """Build both sides from the same weights, and the batches that each sees in every round."""
    trainable = synthetic(folder, tokens=(steps + 4) * BATCH_SIZE * (PRESETS[PRESET].context + 1))
    shape = replace(trainable.decoder.shape, chunk=their_chunk)
    oracle = Mamba2ForCausalLM(Mamba2Config(**huggingface.configuration(shape)))
    missing = oracle.load_state_dict(huggingface.weights(trainable.decoder), strict=False)
    assert missing.missing_keys in ([], ["lm_head.weight"])
    assert not missing.unexpected_keys
    oracle.tie_weights()
    oracle.train()
    batches = [trainable.next_batch() for _ in range(steps)]
    return our_step(trainable), their_step(oracle, trainable.setup), batches


def synthetic(folder: Path, tokens: int) -> Mamba2:
    """Build the trainable over random tokens."""
    vocabulary_size = PRESETS[PRESET].vocabulary_size
    drawn = np.random.default_rng(0).integers(vocabulary_size, size=tokens, dtype=np.uint16)
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(drawn.astype("<u2").tobytes())
    data = DataOptions(path=folder, dtype="uint16", vocabulary_size=vocabulary_size)
    return Mamba2.build(Setup(Mamba2Options(preset=PRESET), data, BATCH_SIZE))


if __name__ == "__main__":
    main()
