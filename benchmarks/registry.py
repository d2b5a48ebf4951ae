"""The registry with ten thousand versions: how long `ls` takes, one version, one more registered.

On SQLite in a temporary folder, or on the empty PostgreSQL database of --url. Times are the best and the median of the
rounds, of the registry's own verbs: no process is started and nothing is printed meanwhile.

    python benchmarks/registry.py [--versions 10000] [--rounds 9] [--url postgresql://…]
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from uuid import uuid4

from sqlalchemy import insert

from trainwright.manifest import FileRecord
from trainwright.registry.base import Facts, Lineage
from trainwright.registry.engines import engine_of, writing
from trainwright.registry.open import open_registry
from trainwright.registry.tables import models, versions
from trainwright.registry.versions import Version

LEAST_MS = 100.0  # what `ls` may take, of ten thousand versions on SQLite


MODELS = 10
ROW = {
    "status": "ready",
    "passing": True,
    "created": "2026-01-01T00:00:00.000Z",
    "artifact_url": "file:///store/models/m/0.1.0",
    "metrics": '{"metric":"val_loss","val_loss":2.5}',
    "hyperparameters": "{}",
    "verdicts": "[]",
    "lineage": '{"run":"run-1","checkpoint":"step-00000100.a1","step":100}',
    "sha256": "a" * 64,
    "evidence_sha256": "b" * 64,
    "notes": "",
    "patch": 0,
    "pre": "",
    "pre_order": Version(0, 0, 0).pre_order,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--url")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(given.url or f"sqlite:///{Path(folder) / 'registry.db'}", given.versions, given.rounds)


def measure(url: str, count: int, rounds: int) -> None:
    registry = open_registry(url)
    fill(url, count)
    verbs: dict[str, Callable[[], object]] = {
        f"ls of {count} versions": lambda: len(registry.ls()),
        f"ls of one model, {count // MODELS} versions": lambda: len(registry.ls("m1")),
        "one version by its number": lambda: registry.get("m1", Version(0, 0, 0)),
        "the latest version": lambda: registry.latest("m1"),
        "register": lambda: registry.register("m1", facts(), "patch", who="benchmark"),
    }
    for name, verb in verbs.items():
        times = sorted(milliseconds(verb) for _ in range(rounds))
        print(f"{name:<36} best {times[0]:8.2f} ms   median {statistics.median(times):8.2f} ms")
    print(f"asked of ls on SQLite: under {LEAST_MS:g} ms")
    registry.close()


def fill(url: str, count: int) -> None:
    """Put that many ready versions of ten models into an empty registry, all at once."""
    engine = engine_of(url)
    rows = [
        {**ROW, "model_id": n % MODELS + 1, "run": f"run-{n}", "major": n // 1000, "minor": n % 1000 // MODELS}
        for n in range(count)
    ]
    with writing(engine) as connection:
        connection.execute(insert(models), [{"id": n, "name": f"m{n}", "created": ""} for n in range(1, MODELS + 1)])
        connection.execute(insert(versions), rows)
    engine.dispose()


def facts() -> Facts:
    """Give what a new run is registered with; none of its files is anywhere."""
    return Facts(
        lineage=Lineage(run=uuid4().hex, checkpoint="step-00000100.a1", step=100),
        hyperparameters={"train": {"steps": 100}},
        metrics={"metric": "val_loss", "val_loss": 2.5},
        files={"model.safetensors": FileRecord(1 << 30, "c" * 64)},
        contract=None,
        verdicts=[],
        evidence_sha256="d" * 64,
        passing=True,
    )


def milliseconds(verb: Callable[[], object]) -> float:
    before = perf_counter()
    verb()
    return (perf_counter() - before) * 1e3


if __name__ == "__main__":
    main()
