"""What the loop adds to a step, over a bare PyTorch loop with the same calls.

Both sides: a 2-layer MLP 64-64-1, batch 32, one thread; forward, backward, clip_grad_norm_, AdamW (same implementation)
and loss.item() each step. Ours writes every row to disk as well. Rounds alternate; weights are compared at the end.

    python benchmarks/loop_overhead.py [--rounds 5] [--steps 2000]
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own convention

from trainwright.budget import LoopSettings
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.memory import MemoryStore
from trainwright.loop import Loop
from trainwright.manifest import Stamp
from trainwright.newruns import create_run
from trainwright.optimizers import OptimizerSettings
from trainwright.recorder import Recorder, Silent
from trainwright.schedules import Schedule
from trainwright.state import State
from trainwright.torch_trainable import TorchTrainable
from trainwright.trainable import Setup, Unit

BATCH, FEATURES, LEARNING_RATE = 32, 64, 1e-3


class Batch(NamedTuple):
    x: Tensor
    y: Tensor


class OneBatch:
    """Gives the same batch for ever, so that data cost nothing on either side."""

    unit: Unit = "samples"
    epoch = 0
    micro_batches_per_epoch: int | None = None
    micro_batches_left: int | None = None
    items_per_epoch: int | None = None
    hashes: Mapping[str, str] = {}

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def next_batch(self) -> Batch:
        return self.batch

    def validation_batches(self) -> Iterator[Batch]:
        yield self.batch

    def save(self) -> State:
        return {}

    def load(self, state: State) -> None: ...


class MLP(TorchTrainable):
    model_type = "mlp"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.net = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, 1))
        x = torch.randn(BATCH, FEATURES)
        self.source = OneBatch(Batch(x, x.sum(1, keepdim=True)))

    def forward(self, batch: Batch) -> Tensor:
        return self.net(batch.x)  # type: ignore[no-any-return]  # nn.Module gives Any

    def compute_loss(self, predictions: Tensor, batch: Batch) -> tuple[Tensor, int]:
        return F.mse_loss(predictions, batch.y), BATCH


def build() -> MLP:
    return MLP.build(Setup(None, None, BATCH, optimizer=OptimizerSettings(learning_rate=LEARNING_RATE)))


def bare(steps: int) -> tuple[float, MLP]:
    """Give seconds of a plain loop, and its model."""
    model = build()
    optimizer, net, source = model.optimizer, model.net, model.source
    losses = []
    began = perf_counter()
    for _ in range(steps):
        batch = source.next_batch()
        loss = F.mse_loss(net(batch.x), batch.y)
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return perf_counter() - began, model


def ours(steps: int) -> tuple[float, MLP]:
    """Give seconds that the loop spent on its steps (not on its one validation and save), and its model."""
    model = build()
    settings = LoopSettings(
        Schedule(LEARNING_RATE, "constant"), total_steps=steps, validate_every=10**9, validate_at_start=False
    )
    with tempfile.TemporaryDirectory() as folder:
        attempt = create_run("overhead", Path(folder), "").new_attempt()
        with closing(Recorder(attempt, Silent())) as recorder:
            stamp = Stamp(run="overhead", attempt=1, model_type="mlp", config_sha256="")
            loop = Loop(model, settings, recorder=recorder, checkpoints=Checkpoints(MemoryStore()), stamp=stamp)
            return loop.run().seconds["training"], model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bare(200), ours(200)
    rounds = []
    for number in range(arguments.rounds):
        (bare_seconds, theirs), (our_seconds, mine) = bare(arguments.steps), ours(arguments.steps)
        for name, tensor in theirs.state_dict().items():
            torch.testing.assert_close(mine.state_dict()[name], tensor, rtol=0, atol=0)
        rounds.append((bare_seconds / arguments.steps * 1e6, our_seconds / arguments.steps * 1e6))
        print(f"round {number + 1}: bare {rounds[-1][0]:7.1f} µs a step, ours {rounds[-1][1]:7.1f} µs a step")
    added = statistics.median(with_loop - alone for alone, with_loop in rounds)
    measured = f"{arguments.rounds} rounds of {arguments.steps} steps"
    print(f"added by the loop: median {added:.1f} µs a step, {measured}, weights equal")


if __name__ == "__main__":
    main()
