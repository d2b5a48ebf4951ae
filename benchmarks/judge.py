"""Judging the shipped contract over made-up rows: seconds in all, and of them what connecting takes."""

import argparse
import math
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import pyarrow as pa

from trainwright.contract.expressions import connect
from trainwright.contract.judge import Verdict, judge
from trainwright.contract.load import load_contract
from trainwright.contract.readings import Facts

CONTRACT = "training-loop-pretrain-v1"
VALIDATIONS = 10
TOKENS = 1024
UNIFORM = math.log(4096)


def facts(rows: int) -> Facts:
    """Give the tables of a sound run of `rows` steps, past the end of its data three times."""
    every, passes = max(1, rows // VALIDATIONS), 4
    values = [8.0 - 4.0 * step / rows for step in range(0, rows + 1, every)]
    best = [min(values[:ordinal], default=None) for ordinal in range(len(values))]
    modes: dict[str, Any] = {"learning_rate": 3e-4, "warmup_steps": 1000, "target": 5.0, "first_validation_cap": 20.0}
    return {
        "steps": pa.table(
            {
                "step": range(rows),
                "train_loss": [8.0 - 4.0 * step / rows for step in range(rows)],
                "grad_norm": [1.0 + step % 7 / 10 for step in range(rows)],
                "lr": [3e-4] * rows,
                "tokens_per_sec": [TOKENS * 10.0] * rows,
                "wall_ms": [100.0] * rows,
                "gpu_util_pct": pa.nulls(rows, pa.float64()),
                "gpu_util_absent": ["no GPU"] * rows,
                "tokens": [float(TOKENS)] * rows,
            }
        ),
        "validations": pa.table(
            {
                "ordinal": range(len(values)),
                "value": values,
                "previous": pa.array([None, *values[:-1]], pa.float64()),
                "best_before": pa.array(best, pa.float64()),
                "has_manifest": [True] * len(values),
            }
        ),
        "events": pa.table({"kind": ["started", *["wrapped_data"] * (passes - 1), "finished"]}),
        "environment": pa.table(
            {
                "device": ["cpu"],
                "parameters": [4_000_000],
                "data_sha256": ["d" * 64],
                "first_step": [0],
                "steps_done": [rows],
                "tokens_per_epoch": [math.ceil(rows * TOKENS / passes)],
                "epoch_offset_tokens": [0],
            }
        ),
        "config": pa.table(
            {
                **{name: [value] for name, value in modes.items()},
                **{f"{name}_explicit": [True] for name in modes},
                "mode": ["from_scratch"],
                "mode_given": [True],
                "target_given": [True],
                "data_exhaustion": ["cycle"],
            }
        ),
        "baselines": pa.table({"uniform_entropy": [UNIFORM], "unigram_entropy": [6.3]}),
    }


def seconds_of(work: Callable[[], object], rounds: int) -> float:
    """Give the median of `rounds`."""
    seconds = []
    for _ in range(rounds):
        began = perf_counter()
        work()
        seconds.append(perf_counter() - began)
    return statistics.median(seconds)


def connected() -> None:
    with connect():
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000, help="steps on record")
    parser.add_argument("--rounds", type=int, default=11, help="the median of these counts")
    given = parser.parse_args()
    contract, tables = load_contract(CONTRACT), facts(given.rows)
    verdicts: list[Verdict] = judge(contract, tables)
    total = seconds_of(lambda: judge(contract, tables), given.rounds)
    connecting = seconds_of(connected, given.rounds)
    print(f"{len(verdicts)} gates over {given.rows:,} rows: {total:.4f} s, of which {connecting:.4f} s to connect")
    print("   ".join(f"{verdict.gate} {verdict.result}" for verdict in verdicts if verdict.result != "pass"))


if __name__ == "__main__":
    main()
