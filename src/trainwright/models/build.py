"""From a configuration to a trainable: the sections `model:` and `data:` checked by the model's own options."""

from typing import Any

import torch

from trainwright import yamlfile
from trainwright.config import RunConfig
from trainwright.models.table import Buildable, find
from trainwright.optimizers import OptimizerSettings
from trainwright.trainable import Setup, Trainable
from trainwright.yamlfile import Document


def check(config: RunConfig) -> tuple[Buildable, Any, Any]:
    """Give the model's class and its checked options. Errors: InputError with file, line, key, nearest right key."""
    with config.at("model.type"):
        kind = find(config.model.type)
    return kind, _options(kind.options, config, "model"), _options(kind.data_options, config, "data")


def _options(schema: type[Any] | None, config: RunConfig, section: str) -> Any:
    values = config.to_dict()[section]
    if section == "model" and "type" not in getattr(schema, "model_fields", ()):
        values.pop("type")  # it has done its work; a user's own options need not have it
    if schema is None:
        return values
    place = config.document.at(section)
    return yamlfile.validate(schema, Document(place.name, values, place.lines, place.overrides), under=section)


def build(config: RunConfig, device: torch.device) -> Trainable:
    """Build the trainable of a resolved configuration. Errors: InputError, DataError, told with the key's place."""
    kind, model, data = check(config)
    section = config.optimizer
    optimizer = OptimizerSettings(
        learning_rate=config.train.learning_rate or 0.0,
        betas=section.betas,
        eps=section.eps,
        weight_decay=section.weight_decay,
        implementation=section.implementation,
    )
    setup = Setup(
        model=model,
        data=data,
        batch_size=config.train.batch_size,
        seed=config.seed,
        device=device,
        optimizer=optimizer,
        precision=config.train.precision,
        compile=config.train.compile,
        validation_batches=config.validate_.batches,
    )
    with config.at("model"):
        return kind.build(setup)
