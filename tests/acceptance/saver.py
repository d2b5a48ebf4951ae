"""Saves checkpoints in a loop until it is killed; what it saves at a step follows from the step alone."""

from pathlib import Path

import numpy as np
import torch

from trainwright.checkpoints.checkpoints import Checkpoints, superseded
from trainwright.checkpoints.filesystem import FileStore
from trainwright.manifest import Checkpoint, Stamp
from trainwright.state import Segment, StateValue

BEST_EVERY, SEGMENT_STEPS = 3, 4


def content(step: int) -> dict[str, StateValue]:
    """Give the state of a step; a filled block of `replay` is shared by several steps."""
    generator = torch.Generator().manual_seed(step)
    return {
        "model.weight": torch.rand(100, 100, generator=generator),
        "optimizer.0.exp_avg": torch.rand(200, 100, generator=generator),
        "rng.torch": torch.full((64,), step % 251, dtype=torch.uint8),
        "loop": {"step": step},
        "replay.0": Segment(np.full(1000, step // SEGMENT_STEPS, np.int32)),
    }


def save_forever(folder: Path, attempt: int, step: int, best: str | None) -> int:
    """Save step after step, keeping the best and the last two, as the loop does."""
    checkpoints = Checkpoints(FileStore(folder))
    checkpoints.sweep()
    stamp = Stamp(run="run", attempt=attempt, model_type="none", config_sha256="")
    while True:
        step += 1
        best = Checkpoint(step, attempt).name if step % BEST_EVERY == 0 else best
        checkpoints.write({**content(step), "best": best}, step=step, stamp=stamp, time="").commit()
        checkpoints.retire(superseded(checkpoints.candidates(), best=best, keep_last=2, keep_every=None))
