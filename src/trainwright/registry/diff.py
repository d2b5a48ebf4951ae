"""Two versions side by side: what their configurations, their metrics and their gates say differently."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from trainwright.config import flattened
from trainwright.registry.base import ModelVersion

Pair: TypeAlias = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Name → what it is in the one and in the other, None where it is not there.

    `config` and `lineage` hold what differs, `metrics` and `gates` all that either of them has.
    """

    config: Mapping[str, Pair]
    lineage: Mapping[str, Pair]
    metrics: Mapping[str, Pair]
    gates: Mapping[str, Pair]


def compare(one: ModelVersion, other: ModelVersion) -> Comparison:
    config = _paired(*(dict(flattened(version.facts.hyperparameters)) for version in (one, other)))
    lineage = _paired(*(_lineage(version) for version in (one, other)))
    return Comparison(
        config=_differing(config),
        lineage=_differing(lineage),
        metrics=_paired(one.metrics, other.metrics),
        gates=_paired(*(_gates(version) for version in (one, other))),
    )


def _paired(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Pair]:
    return {name: (one.get(name), other.get(name)) for name in dict.fromkeys((*one, *other))}


def _differing(pairs: Mapping[str, Pair]) -> dict[str, Pair]:
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _gates(version: ModelVersion) -> dict[str, dict[str, Any]]:
    shown = ("result", "figures", "bound", "headroom_percent", "reason")
    return {str(v["gate"]): {name: v.get(name) for name in shown} for v in version.facts.verdicts}


def _lineage(version: ModelVersion) -> dict[str, Any]:
    lineage, contract = version.facts.lineage, version.facts.contract
    return {
        "contract": f"{contract.id} {contract.version}" if contract else None,
        "run": lineage.run,
        "checkpoint": lineage.checkpoint,
        "parent run": lineage.parent_run,
        **{f"{name} sha256": value for name, value in lineage.hashes.items()},
    }
