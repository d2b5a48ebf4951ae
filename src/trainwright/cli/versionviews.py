"""Model versions as tables for people: a list of them, one from end to end, two side by side."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from trainwright.cli.output import console, grid, line

if TYPE_CHECKING:
    from rich.table import Table

    from trainwright.registry.base import Listed, ModelVersion
    from trainwright.registry.diff import Comparison, Pair

NOTHING: Final = "–"


def versions_table(versions: "Sequence[Listed]") -> "Table":
    table = grid("version!", "status", "gates", "metric>", "aliases", "run!", "created!")
    for one in versions:
        metric = str(one.metrics.get("metric", ""))
        best = f"{metric} {_number(one.metrics.get(metric))}" if metric else NOTHING
        cells = (one.reference, one.status, _gates(one), best, ", ".join(one.aliases), one.run, one.created)
        table.add_row(*map(text, cells))
    return table


def _gates(version: "Listed") -> str:
    if version.contract_id is None:
        return "no contract"
    return "hold" if version.passing else "do not hold"


def print_version(version: "ModelVersion") -> None:
    from rich.table import Table

    out, table = console(), Table.grid(padding=(0, 2))
    for name, value in _facts(version).items():
        if value:
            table.add_row(text(name, "dim"), text(value))
    out.print(table)
    out.print("\nfiles", style="bold")
    files = grid("file!", "size>", "sha256!")
    for name, record in version.facts.files.items():
        files.add_row(name, f"{record.size:,} B", record.sha256)
    out.print(files)
    if version.facts.verdicts:
        out.print("\ngates", style="bold")
        gates = grid("gate!", "result!", "figures", "bound")
        for verdict in version.facts.verdicts:
            cells = (verdict["gate"], verdict["result"], pairs_told(verdict.get("figures") or {}), verdict["bound"])
            gates.add_row(*map(text, cells))
        out.print(gates)
    if version.notes:
        out.print("\nnotes", style="bold")
        line(out, version.notes.rstrip())


def _facts(version: "ModelVersion") -> dict[str, str | None]:
    lineage, contract = version.facts.lineage, version.facts.contract
    deleted = f" at {version.deleted}" if version.deleted else ""
    return {
        "version": version.reference,
        "status": f"{version.status}{deleted}",
        "gates": _gates(version),
        "aliases": ", ".join(version.aliases),
        "tags": ", ".join(f"{key}={value}" for key, value in version.tags.items()),
        "created": version.created,
        "artifact": version.artifact_url,
        "sha256": version.facts.sha256,
        "metrics": pairs_told(version.metrics),
        "contract": f"{contract.id} {contract.version}, sha256 {contract.sha256}" if contract else None,
        "evidence": f"sha256 {version.facts.evidence_sha256}",
        "from checkpoint": f"{lineage.checkpoint}, after {lineage.step} steps",
        "of run": f"{lineage.run}, configuration sha256 {lineage.config_sha256}",
        "which went on from": f"{lineage.parent_checkpoint} of {lineage.parent_run}" if lineage.parent_run else None,
        "with weights of": pairs_told(lineage.init),
        **{f"on {name}": f"sha256 {value}" for name, value in lineage.hashes.items()},
    }


def document(comparison: "Comparison") -> dict[str, Any]:
    return {part: getattr(comparison, part) for part in ("config", "lineage", "metrics", "gates")}


def print_comparison(versions: "Sequence[ModelVersion]", comparison: "Comparison") -> None:
    out = console()
    gates = {name: (_verdict(one), _verdict(other)) for name, (one, other) in comparison.gates.items()}
    parts: Mapping[str, Mapping[str, Pair]] = {**document(comparison), "gates": gates}
    for part, pairs in parts.items():
        table = grid(f"{part}", *(version.reference for version in versions))
        for name, values in pairs.items():
            style = None if values[0] == values[1] else "yellow"
            table.add_row(text(name), *(text(_number(value), style) for value in values))
        if pairs:
            out.print(table)
        else:
            line(out, f"{part}: no difference")
        out.print()


def _verdict(verdict: Mapping[str, Any] | None) -> str | None:
    if verdict is None:
        return None
    return "; ".join(part for part in (verdict["result"], pairs_told(verdict["figures"] or {})) if part)


def pairs_told(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in values.items())


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else NOTHING if value is None else str(value)


def text(value: object, style: str | None = None) -> Any:
    from rich.text import Text

    return Text(str(value), style=style or "", overflow="fold")
