"""`check`, `verify-resume` and `determinism`: what a person tries on a model and a configuration of their own."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainwright.cli.options import RUNS_DIR, Device, Json, Overrides, RunConfigFile, RunsDir
from trainwright.cli.output import console, print_json
from trainwright.cli.train import changes_of, resolved, watching

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from trainwright.config import RunConfig
    from trainwright.contract.judge import Verdict
    from trainwright.pairs import Drift
    from trainwright.promises import Promise
    from trainwright.resumption import Cut
    from trainwright.rundir import RunDirectory

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
    from trainwright.subjects import Subject

    tried = promises.check(Subject(config, torch.device(name)))
    record, verdicts = _accumulation(config, tried, torch.device(name), runs_dir)
    broken = sum(promise.result == "broken" for promise in tried)
    if json:
        told = {"target": target, "device": name, "promises": tried, "broken": broken}
        print_json({**told, "record": str(record.path) if record else None, "verdicts": verdicts})
    else:
        _show_verdicts(record, verdicts)
        _show_promises(tried, broken)
    _exit(verdicts, bad=broken)


def _config_of(target: str, changes: Sequence[str]) -> "RunConfig":
    from trainwright.config import RunConfig

    if target.endswith((".yaml", ".yml")) or Path(target).is_file():
        return RunConfig.load(Path(target), changes)
    return RunConfig.parse({**CLASS_RUN, "model": {"type": target}}, changes)


def _accumulation(
    config: "RunConfig", tried: "Sequence[Promise]", device: "torch.device", runs_dir: Path
) -> "tuple[RunDirectory | None, Sequence[Verdict]]":
    """Record what was measured, where there is a contract that has a gate for it."""
    from trainwright import pairs

    figures = next(promise.figures for promise in tried if promise.name == "accumulation")
    if not figures or not pairs.decides_pairs(config):
        return None, []
    return pairs.accumulation(config, figures, device, runs_dir=runs_dir)


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
        print_json({**told, "record": str(found.record.path), "verdicts": found.verdicts})
    else:
        console().print(_cuts_table(found.cuts))
        _show_verdicts(found.record, found.verdicts)
    _exit(found.verdicts, bad=not all(cut.is_equal for cut in found.cuts))


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _cuts_table(cuts: "Sequence[Cut]") -> "Table":
    from rich.markup import escape

    rows = [(cut, escape("; ".join(cut.differences)) or "equal") for cut in cuts]
    return _table(
        ("cut", "killed after row", "resumed from", "beside the uncut run"),
        [(str(cut.cut), str(cut.killed_after), cut.resumed_from or "the beginning", text) for cut, text in rows],
    )


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
        print_json({**told, "record": str(found.record.path), "verdicts": found.verdicts})
    else:
        console().print(_drift_table(found.drift))
        _show_verdicts(found.record, found.verdicts)
    _exit(found.verdicts)


def _drift_table(drift: "Drift") -> "Table":
    figures = (drift.max_loss_difference, drift.final_loss_spread)
    shown = (str(drift.runs), str(drift.compared_steps), *(f"{value:.3g}" for value in figures))
    columns = ("runs of one seed", "steps", "max |Δloss|", "spread of the last loss", "least cosine of the weights")
    return _table(columns, [(*shown, f"{drift.least_cosine:.9g}")])


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> "Table":
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column)
    for row in rows:
        grid.add_row(*row)
    return grid


def _show_verdicts(record: "RunDirectory | None", verdicts: "Sequence[Verdict]") -> None:
    from trainwright.cli import verdicts as shown

    if record is not None:
        console().print(shown.table(verdicts))
        console().print(f"record {record.path}", markup=False, soft_wrap=True)


def _exit(verdicts: "Sequence[Verdict]", *, bad: Any = False) -> None:
    raise typer.Exit(3 if bad or not all(verdict.holds for verdict in verdicts) else 0)
