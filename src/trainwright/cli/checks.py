"""`check`, `verify-resume`, `determinism` and `probe`: what a person tries on a model of their own, or a machine."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainwright.cli.options import RUNS_DIR, Device, Json, Overrides, RunConfigFile, RunsDir
from trainwright.cli.output import console, grid, line, print_json
from trainwright.cli.train import changes_of, resolved, watching

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from trainwright.accumulation import Accumulation
    from trainwright.checkrecords import Record
    from trainwright.config import RunConfig
    from trainwright.pairs import Drift
    from trainwright.promises import Promise
    from trainwright.resumption import Cut

LABELS = {"holds": "holds", "broken": "BROKEN: {}", "not_tried": "not tried: {}"}
CLASS_RUN = {"name": "check", "device": "cpu", "train": {"steps": 1, "learning_rate": 1e-3}}


def check(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="run.yaml, module:Class, or a built-in model type")],
    overrides: Overrides = None,
    model: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="an option of the model")] = None,
    data: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="an option of its data")] = None,
    device: Device = None,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Try every promise of a trainable; under a contract, accumulation is judged and recorded as well."""
    options = [f"{section}.{text}" for section, texts in (("model", model), ("data", data)) for text in texts or ()]
    config = _config_of(target, changes_of([*(overrides or []), *options], {"device": device}))
    name = resolved(config.device)
    import torch

    from trainwright import promises
    from trainwright.candidates import Candidate

    checked = promises.check(Candidate(config, torch.device(name)))
    record = _recorded(config, checked.accumulation, torch.device(name), runs_dir)
    broken = sum(promise.result == "broken" for promise in checked.promises)
    if json:
        told = {"target": target, "device": name, "promises": checked.promises, "broken": broken}
        path, verdicts = (str(record.run.path), record.verdicts) if record else (None, [])
        print_json({**told, "accumulation": checked.accumulation, "record": path, "verdicts": verdicts})
    else:
        if record:
            _show(record)
        _show_promises(checked.promises, broken)
    _exit(record, bad=broken)


def _config_of(target: str, changes: Sequence[str]) -> "RunConfig":
    from trainwright.config import RunConfig

    if target.endswith((".yaml", ".yml")) or Path(target).is_file():
        return RunConfig.load(Path(target), changes)
    return RunConfig.parse({**CLASS_RUN, "model": {"type": target}}, changes)


def _recorded(
    config: "RunConfig", found: "Accumulation | None", device: "torch.device", runs_dir: Path
) -> "Record | None":
    """Record what was measured of accumulation, where there is a contract that has a gate for it."""
    from trainwright.checkrecords import decides_pairs, record_accumulation

    if found is None or not decides_pairs(config):
        return None
    return record_accumulation(config, found, device, runs_dir=runs_dir)


def _show_promises(tried: "Sequence[Promise]", broken: int) -> None:
    width = max(len(promise.name) for promise in tried)
    for promise in tried:
        print(f"{promise.name:{width}}  {LABELS[promise.result].format(promise.seen)}")
    print(f"{sum(promise.result != 'not_tried' for promise in tried)} promises, {broken} broken")


def verify_resume(
    file: RunConfigFile,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(help="updates of each run")] = 20,
    cuts: Annotated[int, typer.Option(help="how many runs are killed and resumed, each at another step")] = 4,
    device: Device = None,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Make a run, and others that are killed on the way and resumed; say what differs, and judge that."""
    from trainwright.config import RunConfig

    config = RunConfig.load(file, changes_of(overrides, {"device": device}))
    resolved(config.device)
    from trainwright import resumption

    found = resumption.verify_resume(config, runs_dir=runs_dir, steps=steps, cuts=cuts, tell=_tell)
    if json:
        rows = [{**asdict(cut), "run": str(cut.run.path), "is_equal": cut.is_equal} for cut in found.cuts]
        told = {"uncut": str(found.uncut.path), "cuts": rows}
        print_json({**told, "record": str(found.record.run.path), "verdicts": found.record.verdicts})
    else:
        console().print(_cuts_table(found.cuts))
        _show(found.record)
    _exit(found.record, bad=not all(cut.is_equal for cut in found.cuts))


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _cuts_table(cuts: "Sequence[Cut]") -> "Table":
    from rich.markup import escape

    table = grid("cut", "killed after row", "resumed from", "beside the uncut run")
    for cut in cuts:
        text = escape("; ".join(cut.differences)) or "equal"
        table.add_row(str(cut.cut), str(cut.killed_after), cut.resumed_from or "the beginning", text)
    return table


def determinism(
    file: RunConfigFile,
    overrides: Overrides = None,
    runs: Annotated[int, typer.Option(help="how many runs of the same seed")] = 2,
    device: Device = None,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Make runs of 100 steps, some of one seed and one of another; measure their drift and judge it."""
    from trainwright.config import RunConfig

    config = RunConfig.load(file, changes_of(overrides, {"device": device}))
    resolved(config.device)
    from trainwright import pairs

    with watching(json=json) as watcher:
        found = pairs.determinism(config, runs_dir=runs_dir, runs=runs, watcher=watcher)
    if json:
        told = {"directories": [str(run.path) for run in found.runs], "drift": asdict(found.drift)}
        print_json({**told, "record": str(found.record.run.path), "verdicts": found.record.verdicts})
    else:
        console().print(_drift_table(found.drift))
        _show(found.record)
    _exit(found.record)


def _drift_table(drift: "Drift") -> "Table":
    figures = (drift.max_loss_difference, drift.final_loss_spread)
    shown = (str(drift.runs), str(drift.compared_steps), *(f"{value:.3g}" for value in figures))
    columns = ("runs of one seed", "steps", "max |Δloss|", "spread of the last loss", "least cosine of the weights")
    table = grid(*columns)
    table.add_row(*shown, f"{drift.least_cosine:.9g}")
    return table


def probe(
    contract: Annotated[
        str, typer.Option(help="contract (shipped name or file) with gates of kind probe")
    ] = "gpu-training-backend-v1",
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Probe this machine and judge the gates over probes, in a sealed record. Exit code 0 when all hold, else 3."""
    from trainwright import probes

    record = probes.probe(contract, runs_dir=runs_dir)
    if json:
        print_json({"directory": str(record.run.path), "verdicts": record.verdicts})
    else:
        _show(record)
    _exit(record)


def _show(record: "Record") -> None:
    from trainwright.cli import verdicts

    out = console()
    out.print(verdicts.table(record.verdicts))
    line(out, f"record {record.run.path}")


def _exit(record: "Record | None", *, bad: Any = False) -> None:
    raise typer.Exit(3 if bad or not (record is None or record.holds) else 0)
