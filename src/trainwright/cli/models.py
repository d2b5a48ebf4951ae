"""`init`, `plan`, `sample` and `export`: before a run, and what comes of it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainwright.cli.options import RUNS_DIR, Json, Overrides, Run, RunConfigFile, RunsDir
from trainwright.cli.output import print_json

if TYPE_CHECKING:
    from trainwright.footprint import Footprint
    from trainwright.planning import Plan

Choice = Annotated[str, typer.Option(help="the checkpoint: best (by validation) or last")]
PARTS = ("weights", "gradients", "optimizer_state", "activations", "data")


def init(name: Annotated[str, typer.Argument(metavar="NAME", help="a built-in model, as lm")]) -> None:
    """Print a commented run.yaml to start from: trainwright init lm > run.yaml."""
    from trainwright.models.starting import starting_file

    print(starting_file(name), end="")


def plan(
    file: RunConfigFile,
    overrides: Overrides = None,
    device_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="memory for tensors, as 4GiB: what fits is proposed, else refused"),
    ] = None,
    json: Json = False,
) -> None:
    """Say what a run will need: memory, disk, data, and time from a few steps that are really measured."""
    from trainwright import planning
    from trainwright.config import RunConfig

    limit = None if device_memory is None else planning.parse_size(device_memory)
    planned = planning.plan(RunConfig.load(file, overrides or []), device_memory_bytes=limit)
    if json:
        print_json(planned.to_dict())
    else:
        print("\n".join(f"{name:<12} {text}".rstrip() for name, text in _lines(planned)))


def sample(
    run: Run,
    prompt: Annotated[str, typer.Option(help="text to continue; empty: begin a document")] = "",
    max_tokens: Annotated[int, typer.Option(help="at most this many new tokens")] = 200,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token")] = 0.8,
    top_k: Annotated[int, typer.Option(help="draw from this many of the likeliest tokens")] = 50,
    seed: Annotated[int, typer.Option(help="equal seeds give equal text")] = 0,
    checkpoint: Choice = "best",
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Print a prompt and how the language model of a run continues it."""
    from trainwright import exports
    from trainwright.rundir import RunDirectory

    text = exports.sample(
        RunDirectory.find(run, runs_dir),
        prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        choice=checkpoint,
    )
    sys.stdout.buffer.write(text.encode() + b"\n")
    sys.stdout.flush()


def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="folder to write: new, empty, or an earlier export")],
    kind: Annotated[
        str | None,
        typer.Option("--format", help="hf: a folder for AutoModelForCausalLM; safetensors: of any model"),
    ] = None,
    checkpoint: Choice = "best",
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Write the model of a run as a folder that other tools load, and print the folder."""
    from trainwright import exports
    from trainwright.rundir import RunDirectory

    print(exports.export(RunDirectory.find(run, runs_dir), out, kind=kind, choice=checkpoint))


def _lines(plan: "Plan") -> list[tuple[str, str]]:
    return [
        ("parameters", f"{plan.memory.parameters:,}"),
        ("batch", f"micro-batch {plan.batch_size} × accumulate {plan.accumulate}"),
        *_memory_lines(plan.memory),
        ("", f"tensors and held data, planned for {plan.traced_on}; process, libraries and allocator come on top"),
        ("disk", _disk(plan)),
        (plan.items.unit, _items(plan)),
        *_env_lines(plan),
        ("time", _time(plan)),
        *_fit_lines(plan),
    ]


def _memory_lines(memory: "Footprint") -> list[tuple[str, str]]:
    rows = [(part, getattr(memory.largest, part), getattr(memory.at_peak, part)) for part in PARTS]
    lines = [
        (name.replace("optimizer_state", "optimizer"), f"{_size(largest):>11} at most, {_size(held):>11} at the peak")
        for name, largest, held in rows
    ]
    return [*lines, ("planned peak", f"{_size(memory.peak_bytes):>11} ({memory.peak_bytes:,} bytes)")]


def _disk(plan: "Plan") -> str:
    disk = plan.disk
    one = f"{_size(disk.checkpoint_bytes)} a checkpoint"
    if disk.bytes_at_most is None:
        return f"{one}, planned; without a number of steps checkpoint.keep_every keeps any number of them"
    return f"{one} × {disk.kept_at_most} at once = {_size(disk.bytes_at_most)} at most, planned"


def _items(plan: "Plan") -> str:
    items = plan.items
    planned = "not known before the end" if items.planned is None else f"{items.planned:,} planned"
    held = "data without an end" if items.held is None else f"{items.held:,} held by the training data"
    return f"{planned}, {held}" + ("" if items.passes is None else f": {items.passes:.2f} passes")


def _env_lines(plan: "Plan") -> list[tuple[str, str]]:
    found = plan.env_steps
    if found is None:
        return []
    planned = "not known before the end" if found.planned is None else f"{found.planned:,} planned"
    rate = "" if found.per_second is None else f", {found.per_second:,.0f} a second as measured, updates included"
    return [("env steps", f"{planned}{rate}")]


def _time(plan: "Plan") -> str:
    time = plan.time
    if time is None:
        return f"not measured: {plan.time_absent}"
    after = f" after {time.warm_up_steps} of warm-up" if time.warm_up_steps else ""
    where = f"measured on this machine's {time.device}{after}"
    typical, kind = (time.mean_ms, "mean, acting included,") if plan.env_steps else (time.median_ms, "median")
    text = f"{typical:.1f} ms a step, {kind} of {time.measured_steps} {where}"
    if time.estimated_seconds is None:
        return text
    return f"{text}; {plan.steps:,} steps: about {time.estimated_seconds:,.0f} s of training, estimated from them"


def _fit_lines(plan: "Plan") -> list[tuple[str, str]]:
    if plan.device_memory_bytes is None:
        return []
    given = f"the {_size(plan.device_memory_bytes)} given"
    if plan.proposal is None:
        return [("fits", f"yes, in {given}")]
    found = plan.proposal
    values = f"train.batch_size={found.batch_size} train.accumulate={found.accumulate}"
    return [
        ("fits", f"no, not in {given}"),
        ("proposal", f"{values}, planned peak {_size(found.memory.peak_bytes)}"),
    ]


def _size(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:,.1f} {unit}" if unit != "B" else f"{size_bytes:,.0f} B"
        size_bytes /= 1024
    return f"{size_bytes:,.2f} GiB"
