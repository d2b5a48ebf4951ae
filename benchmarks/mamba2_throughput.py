"""Tokens per second of Mamba-2 with 538k parameters: our trainable and transformers' torch path, alternating.

    python benchmarks/mamba2_throughput.py --rounds 10 --steps 4

Same weights, same batches of 4 × 256 tokens, and the sides are those of lm_throughput.py: ours takes the loop's own
steps, theirs is a bare PyTorch loop. Both take 64 positions at once; `--their-chunk` gives them another number (their
default is 256).
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from lm_throughput import compare, contestants, synthetic  # type: ignore[import-not-found]  # of the script's folder
from transformers import Mamba2Config, Mamba2ForCausalLM

from trainwright.models import huggingface
from trainwright.models.mamba2 import PRESETS, Mamba2, Mamba2Options

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
        trainable = synthetic(Mamba2, Mamba2Options(preset=PRESET), Path(folder), BATCH_SIZE, arguments.steps)
        shape = replace(trainable.decoder.shape, chunk=arguments.their_chunk)
        oracle = Mamba2ForCausalLM(Mamba2Config(**huggingface.configuration(shape)))
        compare(*contestants(trainable, oracle, arguments.steps), arguments.rounds)


if __name__ == "__main__":
    main()
