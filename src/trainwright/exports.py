"""What is made of a finished run: text of its language model, and its weights as a folder that others load."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save
from tokenizers import Tokenizer

from trainwright import rng
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.open import open_store
from trainwright.config import RunConfig
from trainwright.data import shards
from trainwright.data import tokenizer as tokenizers
from trainwright.errors import DamagedCheckpointError, DataError, InputError, StoreError
from trainwright.files import make_directory, sha256_of_file, write_atomically
from trainwright.jsonfile import read_json, write_json
from trainwright.manifest import Checkpoint, Manifest
from trainwright.metrics import best_of
from trainwright.models import huggingface, table
from trainwright.models.generate import generate
from trainwright.models.token_model import TokenModel
from trainwright.rundir import RunDirectory
from trainwright.state import State, under_prefix, weights_in

CHOICES = ("best", "last")
FORMATS = ("hf", "safetensors")
PROVENANCE = "trainwright.json"
WRITTEN = ("config.json", "model.safetensors", shards.TOKENIZER, "tokenizer_config.json")  # beside it, by any format
CARD = "README.md"  # of a version
CARD_MARK = "<!-- written by trainwright models export -->"  # a README.md without it is somebody's own
LANGUAGE_MODELS = ("lm", "mamba2")
WEIGHTS = "model.decoder"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The decoder of a run's checkpoint, on the CPU, and where it is from."""

    run: RunDirectory
    manifest: Manifest
    checkpoint: Checkpoint
    decoder: huggingface.AnyDecoder


def load_decoder(run: RunDirectory, choice: str = "best") -> Loaded:
    """Load the checkpoint of the best validation, or the last one. Every hash is verified, nothing is written.

    Errors: InputError for another choice or a run that trains no language model; StoreError when there is no such
    checkpoint; DamagedCheckpointError.
    """
    checkpoint, manifest, state = saved(run, choice)
    return Loaded(run, manifest, checkpoint, _decoder(manifest, state, run))


def saved(run: RunDirectory, choice: str) -> tuple[Checkpoint, Manifest, State]:
    """Load the chosen checkpoint, every hash verified. Errors: as `chosen`; DamagedCheckpointError."""
    checkpoints = Checkpoints(open_store(run.checkpoints))
    checkpoint = chosen(run, checkpoints, choice)
    return checkpoint, *checkpoints.load(checkpoint)


def chosen(run: RunDirectory, checkpoints: Checkpoints, choice: str) -> Checkpoint:
    """Name the checkpoint of the best validation, or the last one. Errors: InputError, StoreError as `load_decoder`."""
    if choice not in CHOICES:
        raise InputError(f"checkpoint {choice!r} is not one of: {', '.join(CHOICES)}")
    candidates = checkpoints.candidates(run.limits())
    if not candidates:
        raise StoreError(f"{run.path}: has no checkpoint to take weights from")
    if choice == "last":
        return candidates[0]
    validation = best_of(run.read_validations())
    if validation is None:
        raise StoreError(f"{run.path}: was never validated, so no checkpoint is the best; choose --checkpoint last")
    name = validation.checkpoint
    best = next((candidate for candidate in candidates if candidate.name == name), None)
    if best is None:
        raise StoreError(f"{run.path}: its best checkpoint, {name}, is gone or damaged; choose --checkpoint last")
    return best


def _decoder(manifest: Manifest, state: State, run: RunDirectory) -> huggingface.AnyDecoder:
    kind = _language_model(manifest.stamp.model_type, run)
    try:
        with rng.preserved(torch.device("cpu")):
            decoder = kind.rebuilt(manifest.stamp.architecture)
    except InputError as error:
        raise InputError(f"{run.id}: {error}") from error
    try:
        decoder.load_state_dict(under_prefix(WEIGHTS, state))
    except RuntimeError as error:
        raise DamagedCheckpointError(f"{run.id}: the weights do not fit the stamped architecture: {error}") from error
    return cast("huggingface.AnyDecoder", decoder.eval())


def _language_model(model_type: str, run: RunDirectory) -> type[TokenModel]:
    kind = table.find(model_type) if model_type in LANGUAGE_MODELS else None
    if not (isinstance(kind, type) and issubclass(kind, TokenModel)):
        expected = " or ".join(map(repr, LANGUAGE_MODELS))
        raise InputError(f"{run.id}: holds a model of type {model_type!r}; expected {expected}")
    return kind


def sample(
    run: RunDirectory,
    prompt: str,
    *,
    max_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = 50,
    seed: int = 0,
    choice: str = "best",
) -> str:
    """Give the prompt and what the run's model continues it with; an empty prompt begins a document.

    Errors: as `load_decoder`; DataError when the run's tokenizer is gone or another one; InputError as `generate`.
    """
    loaded = load_decoder(run, choice)
    tokenizer = tokenizers.load(tokenizer_file(run, loaded.manifest))
    end = tokenizers.end_of_document_id(tokenizer)
    ids = _ids(tokenizer, prompt)
    continuation = generate(
        loaded.decoder,
        ids or [end],
        max_new_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        stop_token=end,
    )
    return str(tokenizer.decode([*ids, *continuation], skip_special_tokens=False))


def _ids(tokenizer: Tokenizer, text: str) -> Sequence[int]:
    return [int(token) for token in tokenizers.encode(tokenizer, [text])[0]]


def tokenizer_file(run: RunDirectory, manifest: Manifest) -> Path:
    """Give the tokenizer that the run was trained with. Errors: DataError when it is not there or not the same."""
    data = RunConfig.load(run.config).data.options()
    path = Path(str(data.get("path"))) / shards.TOKENIZER
    expected = manifest.stamp.hashes.get("tokenizer")
    if expected is None:
        raise DataError(f"{run.id}: was trained on shards without a tokenizer, so no text can be made of tokens")
    if not path.is_file():
        raise DataError(f"{path}: the tokenizer of {run.id} is not there; put its data folder back")
    if sha256_of_file(path) != expected:
        raise DataError(f"{path}: is another tokenizer than {run.id} was trained with; put its own back")
    return path


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint to export: its tensors, and the run, or the folder with the run's records, that it belongs to."""

    run: RunDirectory
    checkpoint: Checkpoint
    manifest: Manifest
    state: State
    tokenizer: Path | None


def export(run: RunDirectory, out: Path, *, kind: str | None = None, choice: str = "best") -> Path:
    """Write the model of a run as a folder, with its tokenizer where there is one, and give the folder.

    `kind`: `hf`, which Hugging Face loads, for a language model; `safetensors`, its tensors and all that is known of
    their use, for any model; None: the first of them that fits. Errors: as `load_decoder`; InputError for an unknown
    `kind`, one that does not fit the model, or a folder that holds anything but an earlier export; DataError as
    `sample`; StoreError when it cannot be written.
    """
    check_format(kind)
    _refuse_foreign(out)
    checkpoint, manifest, state = saved(run, choice)
    tokenizer = tokenizer_file(run, manifest) if "tokenizer" in manifest.stamp.hashes else None
    return export_saved(Saved(run, checkpoint, manifest, state, tokenizer), out, kind=kind)


def check_format(kind: str | None) -> None:
    """Errors: InputError for a format that is none."""
    if kind is not None and kind not in FORMATS:
        raise InputError(f"format {kind!r} is not one of: {', '.join(FORMATS)}")


def export_saved(model: Saved, out: Path, *, kind: str | None = None) -> Path:
    """Write a model that is loaded already, as `export`. Errors: as there."""
    check_format(kind)
    _refuse_foreign(out)
    is_language_model = model.manifest.stamp.model_type in LANGUAGE_MODELS
    if kind == "hf" and not is_language_model:
        raise InputError(
            f"{model.run.id}: model type {model.manifest.stamp.model_type!r} is no language model, which --format hf "
            "is for; give --format safetensors"
        )
    prepared = _hugging_face if kind == "hf" or (kind is None and is_language_model) else _plain
    write = prepared(model)
    try:
        make_directory(out)
        write_json(out / PROVENANCE, _provenance(model.checkpoint, model.manifest))
        for name in WRITTEN:  # an earlier export's, of a model that may have had other files
            (out / name).unlink(missing_ok=True)
        if is_card(out / CARD):
            (out / CARD).unlink()
        write(out)
    except OSError as error:
        raise StoreError(f"{error.filename or out}: cannot be written: {error.strerror or error}") from error
    return out


def is_card(path: Path) -> bool:
    """Tell whether a README.md is one that an export of a version wrote."""
    return path.is_file() and CARD_MARK in path.read_text(encoding="utf-8", errors="replace")


def _hugging_face(model: Saved) -> Callable[[Path], None]:
    decoder, tokenizer = _decoder(model.manifest, model.state, model.run), model.tokenizer
    end = tokenizers.end_of_document_id(tokenizers.load(tokenizer)) if tokenizer else None
    stop_token = None if end is None else (end, tokenizers.END_OF_DOCUMENT)
    return lambda out: huggingface.export(out, decoder, tokenizer=tokenizer, stop_token=stop_token)


def _plain(model: Saved) -> Callable[[Path], None]:
    """Take every tensor of the model by its own name, normalisers and scales included, and what is known of them."""
    weights = {name.removeprefix("model."): tensor.contiguous() for name, tensor in weights_in(model.state).items()}
    configuration = _configuration(model.run, model.manifest)

    def write(out: Path) -> None:
        write_atomically(out / "model.safetensors", save(weights, metadata={"format": "pt"}))
        if model.tokenizer:
            write_atomically(out / shards.TOKENIZER, model.tokenizer.read_bytes())
        write_json(out / "config.json", configuration)

    return write


def _configuration(run: RunDirectory, manifest: Manifest) -> dict[str, Any]:
    """Give what it takes to build the model again and use it. Errors: InputError for a run that did not record it."""
    recorded = read_json(run.environment)
    if "interface" not in recorded:
        raise InputError(
            f"{run.environment}: holds no 'interface', for an older version made the run; go on from it in a new run, "
            "and export that"
        )
    stamp = manifest.stamp
    own = {"model_type": stamp.model_type, "architecture": stamp.architecture}
    return {**own, "interface": recorded["interface"]}


def _refuse_foreign(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; --out names a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / PROVENANCE).is_file():
        raise InputError(f"{out}: is not empty and holds no earlier export; --out another folder")


def _provenance(checkpoint: Checkpoint, manifest: Manifest) -> dict[str, Any]:
    stamp, weights = manifest.stamp, manifest.files.get("model.safetensors")
    return {
        "run": stamp.run,
        "checkpoint": checkpoint.name,
        "step": manifest.step,
        "config_sha256": stamp.config_sha256,
        "weights_sha256": weights.sha256 if weights else None,
    }
