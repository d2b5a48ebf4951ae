"""A contract of a few gates in a file, with comments and anchors to be kept, and toy runs under it."""

from pathlib import Path
from typing import Any

from tests.acceptance import harness
from trainwright import runs
from trainwright.config import RunConfig
from trainwright.rundir import RunDirectory

WHOLE, FINITE, QUICK, ON_CUDA, EQUAL = (f"GATE-DEMO-00{number}" for number in range(1, 6))
TEXT = """\
# What these toys must hold.
id: demo-v1
version: 1.2.3  # bumped by hand
title: A demonstration
purpose: a few gates of every kind

changelog:
  # newest first
  - {version: 1.2.3, date: 2026-01-02, changes: [a word]}
  - version: 1.0.0
    changes:
      - first
metrics:
  - {name: step, unit: count, since: 1.0.0, meaning: number of the update}
  - {name: train_loss, unit: '1', since: 1.0.0, meaning: mean loss}
  - {name: wall_ms, unit: ms, since: 1.0.0, meaning: time of the step}

gates:
  - id: GATE-DEMO-001
    claim: every step stands on record once  # the claim
    rows: steps
    figures:
      missing: max(step) + 1 - count(distinct step)
      done: {rows: environment, value: max(steps_done)}
    holds: missing + 0 * done = 0
    fixtures:
      good: [{steps: {step: [0, 1]}, environment: &two {steps_done: 2}}]
      bad: [{steps: {step: [0, 2]}, environment: *two}]
  - id: GATE-DEMO-002
    claim: every loss is a number
    rows: steps
    figures: {bad: count(*) filter (where not isfinite(train_loss))}
    holds: bad = 0
    fixtures:
      good: [{steps: {train_loss: [1.0, 2.0]}}]
      bad: [{steps: {train_loss: [1.0, .nan]}}]
  - id: GATE-DEMO-003
    claim: the median step of the window is quick on a CPU
    applies: {device: cpu}
    rows: steps where step between 5 and 9
    figures: {median_ms: median(wall_ms)}
    holds: median_ms < 60000
    unit: ms
    fixtures:
      good: [{steps: {step: [5, 9], wall_ms: [59999.0, 59999.0]}, environment: &cpu {device: cpu}}]
      bad: [{steps: {step: [5, 9], wall_ms: [60000.1, 60000.1]}, environment: *cpu}]
  - id: GATE-DEMO-004
    claim: steps are quick on a GPU
    applies: {device: cuda}
    rows: steps
    figures: {worst: max(wall_ms)}
    holds: worst < 500
    fixtures:
      good: [{steps: {wall_ms: 499.0}, environment: &gpu {device: cuda}}]
      bad: [{steps: {wall_ms: 500.1}, environment: *gpu}]
  - id: GATE-DEMO-005
    claim: equal seeds give equal rows
    kind: pair
    rows: checks where name = 'determinism'
    figures: {unequal: max(compared_steps - equal_steps)}
    holds: unequal = 0
    fixtures:
      good: [{checks: {name: determinism, compared_steps: 3, equal_steps: 3}}]
      bad: [{checks: {name: determinism, compared_steps: 3, equal_steps: 2}}]
# the end
"""


def contract_file(folder: Path, text: str = TEXT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "demo-v1.yaml"
    file.write_text(text)
    return file


def sealed_run(folder: Path, **changes: Any) -> RunDirectory:
    """Train a toy of 12 steps under the contract; its run directory lies in `folder/runs`."""
    contract = contract_file(folder / "judged")
    values = harness.config(**{"train__steps": 12, "contract": str(contract), **changes})
    return runs.execute(RunConfig.parse(values), runs_dir=folder / "runs").run
