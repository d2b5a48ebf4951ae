"""RunConfig: what a run is, read from run.yaml. Every wrong key or value is told with file, line and expectation."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

import msgspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from trainwright import device, yamlfile
from trainwright.errors import InputError, TrainwrightError
from trainwright.files import sha256_of_bytes
from trainwright.secrets import Reference
from trainwright.yamlfile import Document

Mode: TypeAlias = Literal["from_scratch", "finetune"]


@dataclass(frozen=True, slots=True)
class Interval:
    """Every `count` steps or epochs; written `200`, `200 steps` or `5 epochs`."""

    count: int
    unit: Literal["steps", "epochs"] = "steps"

    def __str__(self) -> str:
        return f"{self.count} {self.unit}"

    def in_steps(self, steps_per_epoch: int | None) -> int:
        return self.count if self.unit == "steps" else self.count * (steps_per_epoch or 1)


def _is_reference(text: str) -> bool:
    try:
        return Reference.parse(text) is not None
    except InputError as error:
        raise ValueError(str(error)) from error


def _interval(value: Any) -> Interval:
    if isinstance(value, Interval):
        return value
    match = re.fullmatch(r"([1-9]\d*)(?: (step|epoch)s?)?", str(value).strip())
    if not match:
        raise ValueError(f"expected a number of steps or epochs, as in '200 steps' or '5 epochs', found {value!r}")
    return Interval(int(match[1]), "epochs" if match[2] == "epoch" else "steps")


IntervalField: TypeAlias = Annotated[Interval, BeforeValidator(_interval), PlainSerializer(str)]


@dataclass(frozen=True, slots=True)
class ModeDefaults:
    """What `train.mode` sets together; `cap` None means 2·ln(V), known once the vocabulary is."""

    learning_rate: float
    warmup_steps: int
    target: float
    cap: float | None


MODES: Mapping[Mode, ModeDefaults] = {
    "from_scratch": ModeDefaults(3e-4, 1000, 3.0, None),
    "finetune": ModeDefaults(5e-5, 100, 2.2, 10.0),
}


BUDGETS = ("steps", "tokens", "samples", "epochs", "env_steps")
LATER = (  # keys that came when runs were on record already; None is as before
    *("checkpoint.write", "checkpoint.store", "register"),
)
NO_STORE = "none"  # no copy of this run, whatever store the settings name
SET_BY_MODE = ("train.learning_rate", "schedule.warmup_steps", "train.target", "guards.first_validation_cap")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation is not bool:
            raise ValueError(f"found {str(value).lower()}; expected no yes or no here")
        return value


class OpenSection(BaseModel):
    """A section whose other keys belong to the model's own options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ModelSection(OpenSection):
    type: str = Field(min_length=1)


class TrainSection(Section):
    mode: Mode | None = None
    steps: int | None = Field(None, ge=1)
    tokens: int | None = Field(None, ge=1)
    samples: int | None = Field(None, ge=1)
    epochs: int | None = Field(None, ge=1)
    env_steps: int | None = Field(None, ge=1)
    seconds: float | None = Field(None, gt=0)
    batch_size: int = Field(8, ge=1)
    accumulate: int = Field(1, ge=1)
    learning_rate: float | None = Field(None, gt=0)
    clip_norm: float | None = Field(1.0, gt=0)
    target: float | Literal["unigram_entropy"] | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    threads: int | None = Field(None, ge=1)
    init: str | None = None
    sanity: bool = False

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1 or not (given or self.seconds):
            raise ValueError(
                f"expected one budget of {', '.join(BUDGETS[:-1])} or {BUDGETS[-1]} (a limit in seconds may stand "
                f"beside it or alone), found {' and '.join(given) or 'none'}"
            )
        if self.mode is None and self.learning_rate is None:
            raise ValueError("expected learning_rate, or a mode that sets it (from_scratch, finetune)")
        return self


Beta: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSection(Section):
    name: Literal["adamw"] = "adamw"
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0)
    implementation: Literal["fused", "foreach", "single"] = "fused"


class ScheduleSection(Section):
    kind: Literal["cosine", "linear", "step", "constant"] = "cosine"
    warmup_steps: int | None = Field(None, ge=0)
    minimum_ratio: float = Field(0.1, ge=0, le=1)
    milestones: tuple[int, ...] = ()
    factor: float = Field(0.1, gt=0)


class ValidateSection(Section):
    every: IntervalField = Interval(100)
    at_start: bool = True
    batches: int | None = Field(None, ge=1)
    metric: str | None = None


class EarlyStoppingSection(Section):
    patience: int = Field(ge=1)
    min_delta: float = Field(0.0, ge=0)
    standard_errors: float = Field(2.0, ge=0)
    min_validations: int = Field(1, ge=1)


class CheckpointSection(Section):
    every: IntervalField | None = None
    keep_last: int = Field(2, ge=1)
    keep_every: IntervalField | None = None
    write: Literal["inline", "background"] | None = None
    store: str | None = None

    @property
    def named_store(self) -> str | None:
        """Give the URL of a store, or the reference to it; None where none is named or wanted."""
        return None if self.store == NO_STORE else self.store

    @field_validator("store")
    @classmethod
    def _url_without_secrets(cls, value: str | None) -> str | None:
        """Refuse what may hold a key: run.yaml is a record, and who may use the store stands in the settings.

        A reference to the URL stays one, in the record and in the hash over it.
        """
        if value in {None, NO_STORE} or _is_reference(value):
            return value
        if "://" not in value or "@" in value or "?" in value:
            raise ValueError(
                "expected the URL of a store, as file:///dir or s3://bucket/prefix, without keys or options in it: "
                "these stand in settings.yaml"
            )
        return value


class RegisterSection(Section):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    bump: Literal["major", "minor", "patch"] = "minor"


class ExplosionSection(Section):
    policy: Literal["off", "warn", "skip", "abort"] = "warn"
    ratio: float = Field(10.0, gt=1)
    window: int = Field(100, ge=2)
    max_skips: int = Field(10, ge=1)


class GuardsSection(Section):
    divergence_ratio: float | None = Field(2.0, gt=1)
    first_validation_cap: float | None = Field(None, gt=0)
    residency: Literal["abort", "off"] = "abort"
    explosion: ExplosionSection = ExplosionSection()


class RunConfig(Section):
    """One run. `load` reads a file, `parse` a mapping; `resolved` fills in what `train.mode` sets."""

    name: str = Field("run", pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    seed: int = Field(0, ge=0, lt=2**63)
    device: str = "auto"
    contract: str | None = None
    model: ModelSection
    data: OpenSection = OpenSection()
    train: TrainSection
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    validate_: ValidateSection = Field(ValidateSection(), alias="validate")
    early_stopping: EarlyStoppingSection | None = None
    checkpoint: CheckpointSection = CheckpointSection()
    guards: GuardsSection = GuardsSection()
    register_: RegisterSection | None = Field(None, alias="register")
    _document: Document = PrivateAttr(default_factory=lambda: Document("run config", {}))

    @field_validator("device")
    @classmethod
    def _device_name(cls, value: str) -> str:
        try:
            return device.check_grammar(value)
        except InputError as error:
            raise ValueError(str(error)) from error

    @classmethod
    def load(cls, path: Path, overrides: Sequence[str] = ()) -> Self:
        """Read `path` and apply `key=value` overrides. Errors: InputError with file, line, key, nearest right key."""
        return cls.from_document(yamlfile.override(yamlfile.load(path), overrides))

    @classmethod
    def parse(cls, data: Mapping[str, Any], overrides: Sequence[str] = ()) -> Self:
        return cls.from_document(yamlfile.override(Document("run config", dict(data)), overrides))

    @classmethod
    def from_document(cls, document: Document) -> Self:
        config = yamlfile.validate(cls, document)
        config._document = document  # noqa: SLF001  its own class
        return config

    @property
    def document(self) -> Document:
        """What the configuration was read from, for messages about the sections that models check."""
        return self._document

    def told(self, key: str, text: str) -> str:
        """Say `text` of a key, as `run.yaml:7: train.target: text`."""
        return f"{self._document.where(tuple(key.split('.')))}: {key}: {text}"

    @contextmanager
    def at(self, key: str) -> Iterator[None]:
        """Have an error from inside begin with the place of the key that it is about: its own, or else `key`."""
        try:
            yield
        except TrainwrightError as error:
            error.args = (self.told(error.config_key or key, str(error)),)
            raise

    def document_with(self, overrides: Sequence[str]) -> Document:
        """Give these values as a document again, with `key=value` overrides."""
        place = self._document
        return yamlfile.override(Document(place.name, self.to_dict(), place.lines, place.overrides), overrides)

    def resolved(self) -> "RunConfig":
        """Fill in what the mode sets; explicit values win."""
        if self.train.mode is None:
            return self
        defaults = MODES[self.train.mode]
        train = {"learning_rate": defaults.learning_rate, "target": defaults.target}
        changes = {
            "train": _filled(self.train, train),
            "schedule": _filled(self.schedule, {"warmup_steps": defaults.warmup_steps}),
            "guards": _filled(self.guards, {"first_validation_cap": defaults.cap}),
        }
        config = self.model_copy(update=changes)
        config._document = self._document  # noqa: SLF001  its own class
        return config

    def explicit(self) -> dict[str, bool]:
        """Tell which of the values that a mode sets were given by the user (before they are resolved)."""
        given = dict(flattened(self.to_dict()))
        return {key.rpartition(".")[2]: given[key] is not None for key in SET_BY_MODE}

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    def to_yaml(self) -> str:
        return yamlfile.dump(self.to_dict())

    def sha256(self) -> str:
        """Hash of the values, independent of the order and comments of the file.

        A key of `LATER` counts from when it is given, so that the hashes of earlier runs stay theirs.
        """
        values = self.to_dict()
        for key in LATER:
            section, _, name = key.rpartition(".")
            within = values[section] if section else values
            if within[name] is None:
                del within[name]
        return sha256_of_bytes(msgspec.json.encode(values, order="sorted"))

    def differences(self, other: "RunConfig") -> dict[str, tuple[Any, Any]]:
        """Give key → (here, there) for each value that differs."""
        here, there = dict(flattened(self.to_dict())), dict(flattened(other.to_dict()))
        keys = sorted(here.keys() | there.keys())
        return {key: (here.get(key), there.get(key)) for key in keys if here.get(key) != there.get(key)}


def _filled(section: Section, values: Mapping[str, Any]) -> Section:
    return section.model_copy(update={key: value for key, value in values.items() if getattr(section, key) is None})


def flattened(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Give `train.steps`, 50 for {train: {steps: 50}}."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
