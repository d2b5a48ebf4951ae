"""Judging a run of a million steps against the full pretrain contract, beside a plain json loop over the same file.

Both sides: a process of their own, timed without its imports; peak memory with them. Ours reads the run's directory as
it lies on disk and judges every gate; the loop reads steps.jsonl by json.loads and computes five figures that gates of
the contract compute as well. Rounds alternate; the figures of both sides are compared.

    python benchmarks/judge.py [--rounds 3] [--rows 1000000]
"""

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from trainwright.contract.load import read_contract
from trainwright.jsonfile import write_json
from trainwright.metrics import Audit, Event, StepMetrics, ValidationRow
from trainwright.newruns import create_run
from trainwright.rundir import RunDirectory, Start
from trainwright.timestamps import now

CONTRACT = "training-loop-pretrain-v1"
CONFIG = """
name: judged
seed: 7
device: cpu
contract: training-loop-pretrain-v1
model: {type: lm}
train: {mode: from_scratch, learning_rate: 0.0003}
schedule: {kind: cosine, minimum_ratio: 0.1, warmup_steps: 1000}
"""
TOKENS, VALIDATIONS, PASSES, VOCABULARY = 1024, 10, 4, 4096
UNIFORM, UNIGRAM, TARGET, PEAK = math.log(VOCABULARY), 6.47, 5.0, 3e-4
NO_SENSOR = {"gpu_util_pct": "device cpu has no GPU utilisation"}
FIGURES = ("all_rows", "last", "nonfinite", "consumed", "worst_share")


def rate(step: int, rows: int) -> float:
    """Give the rate of the schedule in CONFIG."""
    if step < 1000:
        return PEAK * (step + 1) / 1000
    return PEAK * (0.55 + 0.45 * math.cos(math.pi * (step - 1000) / max(1, rows - 1000)))


def loss(step: int, rows: int) -> float:
    return 4.0 + (UNIFORM - 4.0) * math.exp(-10 * step / rows)


def step_row(step: int, rows: int, noise: random.Random) -> StepMetrics:
    wall_ms = round(noise.uniform(90.0, 110.0), 3)
    return StepMetrics(
        step=step,
        train_loss=round(loss(step, rows) + noise.uniform(-0.1, 0.1), 6),
        grad_norm=round(noise.uniform(0.5, 1.5), 6),
        lr=round(rate(step, rows), 12),
        tokens_per_sec=TOKENS * 1000 / wall_ms,
        gpu_util_pct=None,
        wall_ms=wall_ms,
        extra={"tokens": TOKENS},
    )


def validation_row(step: int, rows: int) -> ValidationRow:
    value = loss(step, rows) - 0.01 * step / rows
    return ValidationRow(
        step=step,
        epoch=PASSES * step // (rows + 1),
        metric="val_loss",
        value=value,
        n=512,
        standard_error=1e-4,
        best=value,
        is_best=True,
        patience=0,
        train_loss_mean=value if step else None,
        tokens_seen=step * TOKENS,
        grad_norm_max=1.5 if step else None,
        optimizer_state_sha256="0" * 64,
        wall_seconds=1.0,
        checkpoint=f"step-{step:08d}.a1",
    )


def audit(row: StepMetrics) -> Audit:
    return Audit(
        step=row.step,
        lr_scheduled=row.lr,
        lr_groups=[row.lr],
        lr_applied=[row.lr],
        grad_norm=row.grad_norm,
        tensors=39,
        tensors_changed=39,
        batch_repeated=False,
        batch_rows=8,
        held_out_rows=0,
        held_out_repeats=0.0,
    )


def events(rows: int) -> Iterator[Event]:
    yield Event(time=now(), kind="started", step=0, attempt=1)
    for ordinal in range(1, PASSES):
        yield Event(time=now(), kind="wrapped_data", step=ordinal * rows // PASSES, attempt=1)
    yield Event(time=now(), kind="finished", step=rows, attempt=1, detail={"outcome": "done"})


def environment(rows: int) -> dict[str, Any]:
    sets = ("learning_rate", "warmup_steps", "target", "first_validation_cap")
    return {
        "device": "cpu",
        "parameters": 4_000_000,
        "hashes": {"data": "d" * 64, "tokenizer": "t" * 64},
        "baselines": {"uniform_entropy": UNIFORM, "unigram_entropy": UNIGRAM},
        "target": TARGET,
        "first_validation_cap": 2 * UNIFORM,
        "explicit": dict.fromkeys(sets, True),
        "items_per_epoch": math.ceil(rows * TOKENS / PASSES),
        "flops_per_item": 2.4e7,
        "flops_known": True,
        "peak_flops": None,
        "peak_known": False,
        "absent": NO_SENSOR,
    }


def sound_run(folder: Path, rows: int) -> RunDirectory:
    """Write a run of `rows` steps that holds its contract, as one attempt leaves it on disk."""
    contract, _ = read_contract(CONTRACT)
    run = create_run("judged", folder, CONFIG, contract=contract, environment=environment(rows))
    attempt, noise = run.new_attempt(), random.Random(7)
    write_json(attempt.start_file, Start(attempt=1, time=now(), step=0, checkpoint=None, absent={**NO_SENSOR}))
    validations = [validation_row(ordinal * rows // VALIDATIONS, rows) for ordinal in range(VALIDATIONS + 1)]
    audited = {max(0, row.step - 1) for row in validations}
    with attempt.steps.open("wb") as steps, attempt.audits.open("wb") as audits:
        for row in (step_row(step, rows, noise) for step in range(rows)):
            steps.write(row.encode())
            if row.step in audited:
                audits.write(audit(row).encode())
    attempt.validations.write_bytes(b"".join(row.encode() for row in validations))
    attempt.events.write_bytes(b"".join(event.encode() for event in events(rows)))
    for validation in validations:
        manifest = run.checkpoints / validation.checkpoint / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text("{}")
    return run


def ours(run: RunDirectory) -> tuple[float, dict[str, float], dict[str, int]]:
    """Give seconds, the figures and how many gates came to each result."""
    from trainwright.contract.run import judge_run

    began = perf_counter()
    verdicts = judge_run(run)
    seconds = perf_counter() - began
    found = {name: value for verdict in verdicts for name, value in verdict.figures.items() if name in FIGURES}
    return seconds, {name: float(found[name] or 0) for name in FIGURES}, Counter(v.result for v in verdicts)


def plain(run: RunDirectory) -> tuple[float, dict[str, float], dict[str, int]]:
    """Give seconds and the figures of a loop that checks nothing."""
    began = perf_counter()
    count = last = nonfinite = 0
    consumed = worst = 0.0
    with run.attempts()[0].steps.open("rb") as file:
        for line in file:
            row = json.loads(line)
            count += 1
            last = max(last, row["step"])
            measured = (row["train_loss"], row["grad_norm"], row["lr"], row["tokens_per_sec"])
            nonfinite += any(value is None or not math.isfinite(value) for value in measured)
            consumed += row["tokens"]
            error = abs(row["tokens_per_sec"] * row["wall_ms"] / 1000 - row["tokens"])
            worst = max(worst, error / max(0.5, 1e-6 * row["tokens"]))
    figures = dict(zip(FIGURES, map(float, (count, last, nonfinite, consumed, worst)), strict=True))
    return perf_counter() - began, figures, {}


def peak_mib() -> float:
    """Give the most memory that this process held, its program and libraries included."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


def measured(side: str, run: RunDirectory) -> dict[str, Any]:
    """Run one side in a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--run", str(run.path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare(rows: int, rounds: int) -> None:
    sides: dict[str, list[dict[str, Any]]] = {"ours": [], "plain": []}
    with tempfile.TemporaryDirectory() as folder:
        run = sound_run(Path(folder), rows)
        size = run.attempts()[0].steps.stat().st_size / 1e6
        for _ in range(rounds):
            for side, found in sides.items():
                found.append(measured(side, run))
    for name in FIGURES:
        values = [found["figures"][name] for of_side in sides.values() for found in of_side]
        if not math.isclose(min(values), max(values), rel_tol=1e-9, abs_tol=1e-9):
            raise SystemExit(f"the sides differ in {name}: {values}")
    seconds = {side: statistics.median(found["seconds"] for found in of_side) for side, of_side in sides.items()}
    memory = {side: max(found["peak_mib"] for found in of_side) for side, of_side in sides.items()}
    results = ", ".join(f"{count} {result}" for result, count in sides["ours"][-1]["results"].items())
    print(f"gates: {results}; figures of both sides equal")
    print(
        f"{rows:,} rows, {size:.1f} MB: judged in {seconds['ours']:.2f} s and {memory['ours']:.0f} MiB at most, plain "
        f"json loop {seconds['plain']:.2f} s and {memory['plain']:.0f} MiB: ratio "
        f"{seconds['ours'] / seconds['plain']:.2f}, medians of {rounds} rounds"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="steps on record")
    parser.add_argument("--rounds", type=int, default=3, help="the median of these counts")
    parser.add_argument("--side", choices=("ours", "plain"), help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side is None:
        compare(given.rows, given.rounds)
        return
    seconds, figures, results = {"ours": ours, "plain": plain}[given.side](RunDirectory(given.run))
    print(json.dumps({"seconds": seconds, "figures": figures, "results": results, "peak_mib": peak_mib()}))


if __name__ == "__main__":
    main()
