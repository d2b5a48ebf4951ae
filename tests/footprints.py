"""What training really takes of memory: as torch's CPU allocator counts it, or as a process of its own grows by it.

As a command it prints the growth of this process: `python -m tests.footprints CONFIG STEPS WARM`, both as JSON.
"""

import ctypes
import gc
import json
import sys
from pathlib import Path

import torch

from trainwright import environment
from trainwright.config import RunConfig
from trainwright.models.build import build
from trainwright.steps import gradients

CPU = torch.device("cpu")


def train(config: RunConfig, steps: int) -> None:
    trainable = build(config, CPU)
    for _ in range(steps):
        loss, _ = gradients(trainable, config.train.accumulate)
        trainable.clip_gradients(1.0)
        loss.item()
        trainable.optimizer_step()
        trainable.zero_grad()


def allocated(config: RunConfig, steps: int = 3) -> int:
    """Give the largest sum of bytes that torch's CPU allocator had given out at once."""
    with (
        environment.deterministic(config, CPU),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile,
    ):
        train(config, steps)
    now = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def grown(config: RunConfig, steps: int, warm: RunConfig) -> int:
    """Give the resident memory at its peak above what it was before.

    A step of `warm` was taken by then and given up, so that libraries are loaded and kernels were used once; what the C
    library keeps of it goes back first. What it keeps all the same is missing from the growth where the steps use it
    again, so a small `warm` measures best.
    """
    with environment.deterministic(config, CPU):
        train(warm, 1)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        train(config, steps)
        return _resident("VmHWM") - before


def _resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


if __name__ == "__main__":
    measured, warming = (RunConfig.parse(json.loads(text)).resolved() for text in (sys.argv[1], sys.argv[3]))
    print(grown(measured, int(sys.argv[2]), warming))
