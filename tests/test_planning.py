import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.toys import Samples, Toy, ToyOptions
from trainwright.budget import LoopSettings, loop_settings
from trainwright.checkpoints import codec
from trainwright.checkpoints.checkpoints import superseded
from trainwright.config import RunConfig
from trainwright.device import cuda_devices
from trainwright.errors import InputError
from trainwright.footprint import Footprint, trace
from trainwright.manifest import Checkpoint
from trainwright.models.build import build
from trainwright.planning import MEASURED_STEPS, WARM_UP_STEPS, kept_at_most, parse_size, plan
from trainwright.schedules import Schedule
from trainwright.steps import gradients, micro_batches
from trainwright.trainable import Setup

CPU = torch.device("cpu")

# Runs three steps and prints the peak: of what torch's CPU allocator counts, or of the process's resident memory
# above what it was before the model was built, first use of the kernels already behind it.
CHILD = """
import json, sys, torch
from trainwright import environment
from trainwright.config import RunConfig
from trainwright.models.build import build
from trainwright.steps import gradients

config = RunConfig.parse(json.loads(sys.argv[1])).resolved()
device = torch.device("cpu")


def train():
    trainable = build(config, device)
    for _ in range(3):
        loss, _ = gradients(trainable, config.train.accumulate)
        trainable.clip_gradients(1.0)
        loss.item()
        trainable.optimizer_step()
        trainable.zero_grad()


def resident(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def allocated():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        train()
    now = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def grown():
    x = torch.randn(64, 64, requires_grad=True)
    (x @ x).softmax(-1).sum().backward()
    before = resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    train()
    return resident("VmHWM") - before


with environment.deterministic(config, device):
    print(json.dumps({"allocated": allocated, "grown": grown}[sys.argv[2]]()))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    drawn = np.random.default_rng(0).integers(61, size=30_000).astype("<u2")
    (folder / "train.bin").write_bytes(drawn[:27_000].tobytes())
    (folder / "val.bin").write_bytes(drawn[27_000:].tobytes())
    return folder


def values(data: Path, *, model: dict[str, Any] | None = None, **train: Any) -> dict[str, Any]:
    return {
        "model": {"type": "lm", **(model or {"layers": 2, "width": 32, "heads": 4, "context": 16})},
        "data": {"path": str(data), "dtype": "uint16"},
        "train": {"steps": 20, "batch_size": 4, "learning_rate": 1e-3, "threads": 1, **train},
        "device": "cpu",
    }


def traced(config: RunConfig, *, fake: bool = True) -> Footprint:
    def make() -> Any:
        return build(config, CPU)

    return trace(make, accumulate=config.train.accumulate, clip_norm=1.0, fake=fake)[1]


def measured_peak(config: dict[str, Any], how: str, environment: dict[str, str]) -> int:
    command = [sys.executable, "-W", "ignore", "-c", CHILD, json.dumps(config), how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    return int(done.stdout.splitlines()[-1])


SHAPES = [
    ("0.8m", 61, {"batch_size": 4}),
    ("0.8m", 61, {"batch_size": 12, "precision": "bf16"}),
    ("4.3m", 4_096, {"batch_size": 1}),
    ("4.3m", 4_096, {"batch_size": 4, "accumulate": 2}),
]


@pytest.mark.parametrize(("preset", "vocabulary_size", "train"), SHAPES)
def test_the_planned_peak_is_what_the_allocator_counts(
    data: Path, child_environment: dict[str, str], preset: str, vocabulary_size: int, train: dict[str, Any]
) -> None:
    config = values(data, model={"preset": preset, "vocabulary_size": vocabulary_size}, **train)
    measured = measured_peak(config, "allocated", child_environment)
    planned = traced(RunConfig.parse(config).resolved()).peak_bytes
    print(f"{preset} {train}: planned {planned}, measured {measured}, ratio {planned / measured:.4f}")
    assert planned == pytest.approx(measured, rel=0.02)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the kernel gives no peak to reset")
@pytest.mark.parametrize("batch_size", [8, 16])
def test_the_planned_peak_is_within_15_percent_of_what_the_process_grows_by(
    data: Path, child_environment: dict[str, str], batch_size: int
) -> None:
    """The allocator returns what is freed at once: else glibc keeps up to 32 MB of each block size for later."""
    config = values(data, model={"preset": "4.3m", "vocabulary_size": 4_096}, batch_size=batch_size)
    environment = {**child_environment, "MALLOC_MMAP_THRESHOLD_": "131072"}
    measured = measured_peak(config, "grown", environment)
    planned = traced(RunConfig.parse(config).resolved()).peak_bytes
    print(f"4.3m × {batch_size}: planned {planned}, measured {measured}, ratio {planned / measured:.4f}")
    assert planned == pytest.approx(measured, rel=0.15)


def test_a_trace_without_data_counts_what_a_trace_of_real_steps_counts(data: Path) -> None:
    for train in ({}, {"accumulate": 3}, {"precision": "bf16"}):
        config = RunConfig.parse(values(data, **train)).resolved()
        fake, real = traced(config), traced(config, fake=False)
        assert fake.peak_bytes == real.peak_bytes
        assert (fake.largest.weights, fake.largest.gradients) == (real.largest.weights, real.largest.gradients)


def test_parts_add_up_to_the_peak_and_are_what_they_say(data: Path) -> None:
    memory = traced(RunConfig.parse(values(data, accumulate=2)).resolved())
    parameters_bytes = 4 * memory.parameters
    assert memory.at_peak.total == memory.peak_bytes
    assert memory.largest.gradients == memory.at_peak.gradients == parameters_bytes
    assert parameters_bytes <= memory.largest.weights <= 1.1 * parameters_bytes
    assert 2 * parameters_bytes <= memory.largest.optimizer_state <= 2.01 * parameters_bytes
    assert memory.items_per_micro_batch == 4 * 16


def test_a_model_larger_than_this_machine_is_planned_and_not_measured(data: Path) -> None:
    model = {"layers": 12, "width": 16_384, "heads": 64, "context": 16, "vocabulary_size": 128_000}
    found = plan(RunConfig.parse(values(data, model=model, batch_size=1)))
    assert found.memory.parameters > 39e9
    assert found.memory.largest.optimizer_state > 8 * 39e9
    assert found.time is None
    assert found.time_absent
    assert str(found.memory.peak_bytes) in found.time_absent


class Looking(Toy):
    """Decides by a value: it cannot be traced without data."""

    def forward(self, batch: Samples) -> Tensor:
        predictions = super().forward(batch)
        return predictions if predictions.sum().item() < 1e9 else predictions * 2


def test_a_model_that_looks_at_its_values_is_planned_by_real_steps() -> None:
    def make() -> Toy:
        return Looking.build(Setup(model=ToyOptions(n=64, hidden=8), data={}, batch_size=4))

    with pytest.raises(Exception, match=r"(?i)fake|data.dependent"):
        trace(make, accumulate=1, clip_norm=1.0, fake=True)
    assert trace(make, accumulate=1, clip_norm=1.0, fake=False)[1].parameters == 64 * 8 + 8 + 8 + 1
    found = plan(RunConfig.parse({**toy_values(), "model": {"type": "tests.toys:Toy", "n": 64, "hidden": 8}}))
    assert found.memory.parameters == 64 * 8 + 8 + 8 + 1
    assert (found.items.unit, found.items.planned, found.items.held) == ("samples", 96, 64)


def toy_values() -> dict[str, Any]:
    train = {"steps": 6, "batch_size": 16, "learning_rate": 1e-2}
    return {"model": {"type": "tests.toys:Toy"}, "train": train, "device": "cpu"}


def test_time_is_the_median_of_steps_that_were_measured(data: Path) -> None:
    found = plan(RunConfig.parse(values(data)))
    assert found.time is not None
    assert (found.time.measured_steps, found.time.warm_up_steps) == (MEASURED_STEPS, WARM_UP_STEPS)
    assert found.time.device == "cpu"
    assert found.time.estimated_seconds == pytest.approx(20 * found.time.median_ms / 1000)
    assert found.time_absent is None


def test_data_that_end_before_the_steps_do_shorten_what_is_measured(data: Path) -> None:
    config = {**values(data, batch_size=1_000), "data": {"path": str(data), "dtype": "uint16", "exhaustion": "halt"}}
    found = plan(RunConfig.parse(config))
    assert found.time is not None
    assert (found.time.measured_steps, found.time.warm_up_steps) == (1, 1)


def test_a_device_that_is_not_here_is_planned_for_and_not_measured(data: Path) -> None:
    if cuda_devices()[0]:
        pytest.skip("this machine has a CUDA device")
    found = plan(RunConfig.parse({**values(data), "device": "cuda"}))
    assert (found.traced_on, found.time) == ("cpu", None)
    assert found.time_absent == "device cuda is not on this machine"


def test_planning_leaves_the_random_streams_as_they_were(data: Path) -> None:
    before = torch.get_rng_state()
    plan(RunConfig.parse(values(data)))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_does_not_fit_gets_the_largest_micro_batch_that_does(data: Path) -> None:
    config = RunConfig.parse(values(data, batch_size=24)).resolved()
    peaks = {
        size: traced(RunConfig.parse(values(data, batch_size=size, accumulate=24 // size)).resolved()).peak_bytes
        for size in (1, 2, 3, 4, 6, 8, 12)
    }
    found = plan(config, device_memory_bytes=peaks[6])
    assert found.fits is False
    assert found.proposal is not None
    assert (found.proposal.batch_size, found.proposal.accumulate) == (6, 4)
    assert found.proposal.memory.peak_bytes == peaks[6] < peaks[8]
    assert plan(config, device_memory_bytes=found.memory.peak_bytes).fits


def test_what_cannot_fit_is_refused_with_both_figures(data: Path) -> None:
    one = traced(RunConfig.parse(values(data, batch_size=1, accumulate=4)).resolved()).peak_bytes
    config = RunConfig.parse(values(data))
    with pytest.raises(InputError, match=rf"needs {one} bytes, {one - 1} were given"):
        plan(config, device_memory_bytes=one - 1)
    assert (proposal := plan(config, device_memory_bytes=one).proposal)
    assert (proposal.batch_size, proposal.accumulate) == (1, 4)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("4GiB", 4 << 30), ("500 MB", 500_000_000), ("1.5KiB", 1_536), ("1024", 1_024), ("7B", 7), ("1TB", 10**12)],
)
def test_a_size_is_read_in_its_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "4 gib", "-1GiB", "0", "4GiBs", "0.1B", "1e9"])
def test_what_is_no_size_is_refused_with_the_units(text: str) -> None:
    with pytest.raises(InputError, match=r"as in 4GiB \(units: B, KB, "):
        parse_size(text)


def test_the_planned_bytes_of_a_checkpoint_are_those_of_a_real_one(data: Path) -> None:
    config = RunConfig.parse(values(data, model={"preset": "0.8m"})).resolved()
    trainable = build(config, CPU)
    gradients(trainable, 1)
    trainable.optimizer_step()
    written = sum(map(len, codec.encode(trainable.save_checkpoint()).files.values()))
    assert traced(config).checkpoint_bytes == pytest.approx(written, rel=0.01)


def kept(settings: LoopSettings, total: int) -> Iterator[int]:
    """Give how many checkpoints stand at each save, the new one written and nothing retired yet; each may be best."""
    standing: list[Checkpoint] = []
    best = None
    for step in range(total + 1):
        validates = step % settings.validate_every == 0 or step == total
        if not (validates or (settings.checkpoint_every and step % settings.checkpoint_every == 0 and step)):
            continue
        standing.append(Checkpoint(step, 1))
        best = standing[-1].name if best is None else best
        yield len(standing)
        gone = superseded(standing, best=best, keep_last=settings.keep_last, keep_every=settings.keep_every)
        standing = [checkpoint for checkpoint in standing if checkpoint not in gone]


@pytest.mark.parametrize(
    ("total", "rules"),
    [
        (100, {"validate_every": 10, "keep_last": 2}),
        (100, {"validate_every": 10, "checkpoint_every": 7, "keep_last": 3, "keep_every": 20}),
        (5, {"validate_every": 100, "keep_last": 2}),
    ],
)
def test_no_save_leaves_more_checkpoints_than_were_planned(total: int, rules: dict[str, Any]) -> None:
    settings = LoopSettings(schedule=Schedule(1e-3, total_steps=total), total_steps=total, **rules)
    planned, largest = kept_at_most(settings), max(kept(settings, total))
    assert planned is not None
    assert largest <= planned <= largest + 2


def test_without_a_number_of_steps_what_is_kept_for_ever_has_no_bound() -> None:
    schedule = Schedule(1e-3, kind="constant")
    assert kept_at_most(LoopSettings(schedule=schedule, max_seconds=5.0)) == 4
    assert kept_at_most(LoopSettings(schedule=schedule, max_seconds=5.0, keep_every=10)) is None


@pytest.mark.parametrize("train", [{"steps": 5}, {"steps": 431, "accumulate": 3}, {"epochs": 2}, {"tokens": 12_345}])
def test_planned_tokens_are_those_that_the_steps_draw(data: Path, train: dict[str, Any]) -> None:
    given = values(data, accumulate=train.get("accumulate", 1))
    given["train"] = {**{k: v for k, v in given["train"].items() if k != "steps"}, "batch_size": 4, **train}
    config = RunConfig.parse(given).resolved()
    trainable = build(config, CPU)
    settings = loop_settings(config, trainable)
    found = plan(config).items
    assert (found.unit, found.held) == ("tokens", trainable.items_per_epoch)
    if settings.total_items is not None:
        assert found.planned == 12_345
        return
    counts = (micro_batches(trainable, settings.accumulate) for _ in range(settings.total_steps or 0))
    assert found.planned == sum(trainable.next_batch().targets_bt.numel() for count in counts for _ in range(count))
    assert found.passes == pytest.approx((found.planned or 0) / (found.held or 1))
