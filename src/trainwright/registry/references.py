"""How a person names a version: NAME@VERSION, NAME@ALIAS, or NAME for the latest one that passes."""

from trainwright.registry.base import LATEST, ModelVersion, Registry, check_alias, check_name
from trainwright.registry.versions import Version


def find(registry: Registry, reference: str) -> ModelVersion:
    """Give the version that `reference` names. Errors: InputError that says what there is."""
    name, _, chosen = reference.partition("@")
    check_name(name)
    if not chosen or chosen == LATEST:
        return registry.latest(name)
    if is_number(chosen):
        return registry.get(name, Version.parse(chosen))
    return registry.named(name, check_alias(chosen))


def is_number(text: str) -> bool:
    """Tell whether what stands behind the @ is meant as a version: an alias begins with a letter."""
    return text[:1].isdigit()
