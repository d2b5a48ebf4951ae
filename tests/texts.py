"""Small language models over a folder of random tokens."""

from pathlib import Path
from typing import Any

import numpy as np

from trainwright.models.lm import LM, LMOptions
from trainwright.models.mamba2 import Mamba2, Mamba2Options
from trainwright.models.token_model import DataOptions, TokenModel, TokenModelOptions
from trainwright.trainable import Setup

VOCABULARY = 61
KINDS: dict[type[TokenModelOptions], type[TokenModel]] = {LMOptions: LM, Mamba2Options: Mamba2}
TINY_LM = LMOptions(layers=2, width=32, heads=4, kv_heads=2, mlp_width=48, context=16, vocabulary_size=VOCABULARY)
TINY_MAMBA2 = Mamba2Options(
    layers=2, width=32, head_width=8, state_size=8, context=16, chunk=8, vocabulary_size=VOCABULARY
)


def tokens(folder: Path) -> Path:
    """Write 1,500 tokens to train on and 500 held out."""
    drawn = np.random.default_rng(0).integers(VOCABULARY, size=2_000).astype("<u2")
    (folder / "train.bin").write_bytes(drawn[:1_500].tobytes())
    (folder / "val.bin").write_bytes(drawn[1_500:].tobytes())
    return folder


def build(folder: Path, model: TokenModelOptions, **setup: Any) -> TokenModel:
    data = DataOptions(path=folder, dtype="uint16")
    return KINDS[type(model)].build(Setup(**{"model": model, "data": data, "batch_size": 4, **setup}))
