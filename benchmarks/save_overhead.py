"""What saving costs a run: beside training, at once, and as a plain loop does it, by torch.save and fsync.

A net of 41.7M weights by AdamW: a state of 500 MB. Every side takes the same steps and saves each tenth; sides
alternate, and the weights and optimizer of all are compared at the end. How long a save keeps training waiting is what
the loop counts as checkpoint time: at the step that saves, and in all up to the next save (what was written made to
count, the one before removed), beside what `torch.save` of the same state takes without fsync.

    python benchmarks/save_overhead.py [--rounds 3] [--steps 50] [--width 2048] [--threads 2]
"""

import argparse
import os
import statistics
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own convention

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.loop_overhead import Batch, OneBatch
from trainwright.budget import LoopSettings
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.filesystem import FileStore
from trainwright.equality import bit_differences
from trainwright.loop import Loop
from trainwright.manifest import Stamp
from trainwright.metrics import StepMetrics
from trainwright.newruns import create_run
from trainwright.optimizers import OptimizerSettings
from trainwright.recorder import Recorder, Silent
from trainwright.schedules import Schedule
from trainwright.state import State
from trainwright.torch_trainable import TorchTrainable
from trainwright.trainable import Setup

BATCH, LAYERS, LEARNING_RATE, SAVE_EVERY = 256, 10, 1e-4, 10


class Wide(TorchTrainable):
    """`setup.model` is the width."""

    model_type = "wide"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        width: int = setup.model
        self.net = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
        x = torch.randn(BATCH, width)
        self.source = OneBatch(Batch(x, x.flip(1)))

    def forward(self, batch: Batch) -> Tensor:
        return self.net(batch.x)  # type: ignore[no-any-return]  # nn.Module gives Any

    def compute_loss(self, predictions: Tensor, batch: Batch) -> tuple[Tensor, int]:
        return F.mse_loss(predictions, batch.y), BATCH


class Side(NamedTuple):
    """Seconds of all steps and saves; of each save but the last, those at its step and in all; and the trainable."""

    seconds: float
    at_step: list[float]
    in_all: list[float]
    trainable: Wide


class Spent(Silent):
    """Notes at each row the seconds that the loop has counted as checkpoint time."""

    def __init__(self) -> None:
        self.loop: Loop | None = None
        self.after: list[float] = []

    def on_step(self, row: StepMetrics) -> None:
        assert self.loop is not None
        assert row.step == len(self.after)
        self.after.append(self.loop._seconds["checkpoint"])  # noqa: SLF001  there is no other view of it in mid-run


def build(width: int) -> Wide:
    return Wide.build(Setup(width, None, BATCH, optimizer=OptimizerSettings(learning_rate=LEARNING_RATE)))


def plain(steps: int, width: int, folder: Path) -> Side:
    """A plain loop, which saves by torch.save, fsync and rename."""
    model, blocked = build(width), list[float]()
    optimizer, net, batch = model.optimizer, model.net, model.source.next_batch()
    began = perf_counter()
    for step in range(1, steps + 1):
        loss = F.mse_loss(net(batch.x), batch.y)
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        if step % SAVE_EVERY == 0:
            moment = perf_counter()
            write(model.save_checkpoint(), folder / "plain.pt", durable=True)
            blocked.append(perf_counter() - moment)
    return Side(perf_counter() - began, blocked[:-1], blocked[:-1], model)


def write(state: State, path: Path, *, durable: bool) -> None:
    with path.with_suffix(".tmp").open("wb") as file:
        torch.save(dict(state), file)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    path.with_suffix(".tmp").rename(path)


def ours(steps: int, width: int, folder: Path, *, background: bool) -> Side:
    """The loop, less its one validation; the last save is whole when it ends."""
    model, spent = build(width), Spent()
    settings = LoopSettings(
        Schedule(LEARNING_RATE, "constant"),
        total_steps=steps,
        validate_every=10**9,
        validate_at_start=False,
        checkpoint_every=SAVE_EVERY,
        keep_last=1,
        background=background,
    )
    run = create_run("saves", folder, "")
    with closing(Recorder(run.new_attempt(), spent)) as recorder:
        stamp = Stamp(run="saves", attempt=1, model_type="wide", config_sha256="")
        checkpoints = Checkpoints(FileStore(run.checkpoints))
        spent.loop = Loop(model, settings, recorder=recorder, checkpoints=checkpoints, stamp=stamp)
        seconds = spent.loop.run().seconds
    saves, after = range(SAVE_EVERY, steps, SAVE_EVERY), spent.after
    at_step = [after[save] - after[save - 1] for save in saves]
    in_all = [after[save + SAVE_EVERY - 1] - after[save - 1] for save in saves]
    return Side(seconds["training"] + seconds["checkpoint"], at_step, in_all, model)


def saved_without_fsync(trainable: Wide, folder: Path) -> float:
    began = perf_counter()
    write(trainable.save_checkpoint(), folder / "quick.pt", durable=False)
    return perf_counter() - began


def weights_and_moments(state: State) -> State:
    return {name: value for name, value in state.items() if name.startswith(("model.", "optimizer."))}


def compare(one: Wide, other: Wide) -> None:
    states = (weights_and_moments(side.save_checkpoint()) for side in (one, other))
    differing = list(bit_differences(*states))
    assert not differing, differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ratios: dict[str, list[float]] = {"at once": [], "beside": []}
    shares: dict[str, list[float]] = {"at the step that saves": [], "in all": []}
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            theirs = plain(arguments.steps, arguments.width, folder)
            quick = statistics.median(saved_without_fsync(theirs.trainable, folder) for _ in range(3))
            told = [f"plain {theirs.seconds:.2f} s"]
            for kind, background in (("at once", False), ("beside", True)):
                side = ours(arguments.steps, arguments.width, folder / kind.replace(" ", "-"), background=background)
                compare(theirs.trainable, side.trainable)
                ratios[kind].append(side.seconds / theirs.seconds)
                blocked = [statistics.median(part) for part in (side.at_step, side.in_all)]
                waited = f"{blocked[0] * 1000:.0f} ms at its step, {blocked[1] * 1000:.0f} ms in all"
                told.append(f"{kind} {side.seconds:.2f} s, a save blocked {waited}")
            for part, seconds in zip(shares.values(), blocked, strict=True):
                part.append(seconds / quick)
            print(f"round {number + 1}: {'; '.join(told)}; torch.save {quick * 1000:.0f} ms")
    for kind, found in ratios.items():
        low, median, high = min(found), statistics.median(found), max(found)
        print(f"steps and saves, {kind}: {median:.3f} × a plain loop ({low:.3f} to {high:.3f})")
    for where, found in shares.items():
        print(f"blocked by a save beside training, {where}: {statistics.median(found):.1%} of torch.save")


if __name__ == "__main__":
    main()
