"""A version as a folder for others: its model, and a README.md whose head is metadata as Hugging Face reads it.

Source of the form: https://huggingface.co/docs/hub/model-cards, `model-index` included. What a user wrote is data to
the YAML writer, and is escaped in the tables of the text.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import load_file

from trainwright import exports, versionfiles, yamlfile
from trainwright.checkpoints.base import Store
from trainwright.data.shards import TOKENIZER
from trainwright.errors import DamagedCheckpointError, InputError, StoreError
from trainwright.exports import CARD, CARD_MARK, LANGUAGE_MODELS, Saved
from trainwright.files import write_atomically
from trainwright.manifest import MANIFEST, Checkpoint, decode_manifest
from trainwright.registry.base import ModelVersion
from trainwright.rundir import RunDirectory

WEIGHTS: Final = "model.safetensors"
GROUP: Final = "model."  # of the names in the weights' file
ABOUT_METRICS: Final = {"metric", "n", "standard_error", "step"}
NOTHING: Final = "–"


def export_version(store: Store, version: ModelVersion, out: Path, *, kind: str | None = None) -> Path:
    """Pull a version, every hash verified, and write its model and a model card to `out`; give `out`.

    `kind`: as `exports.export`. Errors: as there and `versionfiles.pull`; InputError where a README.md that no export
    wrote would be lost.
    """
    exports.check_format(kind)
    _refuse_own_card(out / CARD)
    with tempfile.TemporaryDirectory(prefix="trainwright-") as scratch:
        folder = versionfiles.pull(store, version, Path(scratch) / version.reference)
        saved = _saved(folder)
        exports.export_saved(saved, out, kind=kind)
    try:
        write_atomically(out / CARD, card(version, saved.manifest.stamp.model_type).encode())
    except OSError as error:
        raise StoreError(f"{out / CARD}: cannot be written: {error.strerror}") from error
    return out


def _refuse_own_card(path: Path) -> None:
    if path.exists() and not exports.is_card(path):
        raise InputError(f"{path}: was written by no export, and would be lost; --out another folder, or move it away")


def _saved(folder: Path) -> Saved:
    """Take a pulled version for what an export is made from; its folder holds the records of a run."""
    manifest = decode_manifest((folder / MANIFEST).read_bytes(), MANIFEST)
    try:
        weights = load_file(folder / WEIGHTS)
    except SafetensorError as error:
        raise DamagedCheckpointError(f"{WEIGHTS}: is no file of tensors: {error}") from error
    tokenizer = folder / TOKENIZER
    return Saved(
        run=RunDirectory(folder),
        checkpoint=Checkpoint(manifest.step, manifest.stamp.attempt),
        manifest=manifest,
        state={f"{GROUP}{name}": tensor for name, tensor in weights.items()},
        tokenizer=tokenizer if tokenizer.is_file() else None,
    )


# -- the card --------------------------------------------------------------------------------------------------------


def card(version: ModelVersion, model_type: str) -> str:
    """Give the text of README.md: metadata, then where the version came from, what it measured, what it was held to."""
    head = yamlfile.dump(metadata(version, model_type))
    parts = (_title(version), _origin(version), _metrics(version), _verdicts(version), _files(version), _notes(version))
    return f"---\n{head}---\n\n" + "\n".join("\n".join(part) + "\n" for part in parts if part) + f"\n{CARD_MARK}\n"


def metadata(version: ModelVersion, model_type: str) -> dict[str, Any]:
    """Give the head of the card, as https://huggingface.co/docs/hub/model-cards#model-card-metadata has it."""
    is_language_model = model_type in LANGUAGE_MODELS
    task = {"type": "text-generation"} if is_language_model else {"type": "other"}
    about = {"library_name": "transformers", "pipeline_tag": "text-generation"} if is_language_model else {}
    data = version.facts.hyperparameters.get("data") or {}
    place = str(data.get("path") or data.get("environment") or version.facts.hyperparameters.get("name"))
    results = [
        {
            "task": task,
            "dataset": {"name": Path(place).name or place, "type": "held-out"},
            "metrics": [{"type": name, "value": value} for name, value in sorted(_measured(version).items())],
        }
    ]
    tags = ["trainwright", model_type.replace(":", "-"), *sorted(version.tags)]
    index = {"model-index": [{"name": version.name, "results": results}]} if results[0]["metrics"] else {}
    return {**about, "model_name": version.name, "version": str(version.number), "tags": tags, **index}


def _measured(version: ModelVersion) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in version.metrics.items()
        if name not in ABOUT_METRICS and isinstance(value, int | float)
    }


def _title(version: ModelVersion) -> list[str]:
    passing = "Every gate of its contract holds." if version.passing else "**Not every gate of its contract holds.**"
    return [f"# {version.name} {version.number}", "", passing if version.facts.contract else "It names no contract."]


def _origin(version: ModelVersion) -> list[str]:
    lineage, contract = version.facts.lineage, version.facts.contract
    parent = f"{lineage.parent_checkpoint} of {lineage.parent_run}" if lineage.parent_run else None
    rows: Mapping[str, str | None] = {
        "run": lineage.run,
        "checkpoint": lineage.checkpoint,
        "went on from": parent,
        "contract": f"{contract.id} {contract.version}" if contract else None,
        "SHA-256 of the evidence": version.facts.evidence_sha256,
        "SHA-256 of the configuration": lineage.config_sha256,
        **{f"SHA-256 of the {name}": value for name, value in lineage.hashes.items()},
    }
    return ["## Where it came from", "", *_table(("", ""), [(name, value) for name, value in rows.items() if value])]


def _metrics(version: ModelVersion) -> list[str]:
    rows = [(name, value) for name, value in version.metrics.items()]
    return ["## What it measured", "", *_table(("metric", "value"), rows)] if rows else []


def _verdicts(version: ModelVersion) -> list[str]:
    rows = [
        (verdict["gate"], verdict["result"], _figures(verdict), verdict["bound"], verdict["claim"])
        for verdict in version.facts.verdicts
    ]
    titles = ("gate", "result", "figures", "bound", "claim")
    return ["## What it was held to", "", *_table(titles, rows)] if rows else []


def _figures(verdict: Mapping[str, Any]) -> str:
    figures = verdict.get("figures") or {}
    return ", ".join(f"{name} {_cell(value)}" for name, value in figures.items()) or NOTHING


def _files(version: ModelVersion) -> list[str]:
    rows = [(name, record.size, record.sha256) for name, record in version.facts.files.items()]
    return ["## Files of the version, as they were registered", "", *_table(("file", "bytes", "SHA-256"), rows)]


def _notes(version: ModelVersion) -> list[str]:
    return ["## Notes", "", version.notes.strip()] if version.notes.strip() else []


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"


def _cell(value: Any) -> str:
    """Give a value as a cell of a table, in which nothing is markup and no line ends."""
    text = NOTHING if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    for sign, instead in (("&", "&amp;"), ("<", "&lt;"), ("\\", "\\\\"), ("|", "\\|"), ("`", "\\`")):
        text = text.replace(sign, instead)
    return " ".join(text.split())
