"""The layers of docs/layers.md, held against every import of the source: in functions and for types included."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "trainwright"
PACKAGE = "trainwright"

# From below. A part (a module, or a package with all in it) imports from rows under its own. Parts that do not stand
# here fail the test; parts that are still to come have their place already.
ROWS = (
    ("errors", "outcome"),
    (
        *("files", "jsonfile", "rowfiles", "telemetry"),
        *("yamlfile", "nvml", "device", "durations", "peaks"),
        *("state", "equality", "rng", "optimizers", "digests"),
        *("illustrations", "trainable", "torch_trainable", "signals", "clocks", "timestamps", "signing", "children"),
        *("redaction", "secrets"),
    ),
    (
        *("data", "manifest", "metrics", "columns", "rundir", "newruns", "recorder", "config", "schedules"),
        *("guards", "budget", "environment", "sensors", "devices", "residency", "charts", "panels", "seals"),
        *("vault",),
    ),
    ("models", "contract", "checkpoints", "jobs", "registry"),
    ("audits", "steps", "loopstate", "sanity", "loop", "statement", "evidence", "mirror", "uploads", "versionfiles"),
    (
        "origins",
        "failures",
        "records",
        "runs",
        "candidates",
        "accumulation",
        "checkrecords",
        "evidencefolders",
        "attachments",
        "statuses",
        "outside",
        "promises",
        "pairs",
        "resumption",
        "probes",
        "summaries",
        "plots",
        "report",
        "footprint",
        "planning",
        "exports",
        "registration",
        "modelcard",
        "evaluation",
        "restoration",
        "holdings",
    ),
    ("worker", "executors"),
    ("settings", "library", "app", "diagnosis"),
    ("cli", "web", "__main__", PACKAGE),  # the package's own file is the public face
)
ROW = {part: number for number, row in enumerate(ROWS, 1) for part in row}

# Imports within one row that are allowed; each names parts that stand before it there, so there is no circle. The
# parts of row 4 are siblings and have none.
SIDEWAYS = {
    "jsonfile": {"files"},
    "device": {"nvml"},
    "state": {"files"},
    "rng": {"state"},
    "optimizers": {"state"},
    "trainable": {"illustrations", "optimizers", "state"},
    "signing": {"files"},
    "secrets": {"redaction"},
    "equality": {"state"},
    "digests": {"equality"},
    "torch_trainable": {"illustrations", "optimizers", "rng", "state", "trainable"},
    "columns": {"metrics"},
    "panels": {"charts"},
    "seals": {"rundir"},
    "rundir": {"columns", "manifest", "metrics"},
    "newruns": {"rundir"},
    "recorder": {"metrics", "newruns", "rundir"},
    "devices": {"rundir"},
    "residency": {"devices", "recorder", "rundir", "sensors"},
    "budget": {"config", "metrics", "schedules"},
    "environment": {"config"},
    "steps": {"audits"},
    "loop": {"audits", "loopstate", "steps"},
    "evidence": {"statement"},
    "uploads": {"mirror"},
    "records": {"origins"},
    "runs": {"failures", "origins", "records"},
    "accumulation": {"candidates"},
    "promises": {"accumulation", "candidates", "failures"},
    "checkrecords": {"accumulation"},
    "pairs": {"checkrecords", "origins", "runs"},
    "resumption": {"checkrecords", "origins"},
    "probes": {"checkrecords"},
    "attachments": {"evidencefolders"},
    "statuses": {"evidencefolders"},
    "outside": {"attachments", "statuses"},
    "report": {"plots"},
    "planning": {"footprint"},
    "evaluation": {"exports"},
    "registration": {"exports", "outside"},
    "modelcard": {"exports"},
    "library": {"settings"},
    "app": {"library", "settings"},
    "diagnosis": {"settings"},
    "__main__": {"cli"},
}
SIBLINGS = {"models", "contract", "checkpoints", "jobs", "registry"}

# In a backend package these modules each hold one backend; only `open` names them.
BACKENDS = {"checkpoints": {"filesystem", "memory", "s3"}, "registry": {"sql"}}
EMPTY = ("models", "contract", "checkpoints", "registry", "data", "cli")  # so that one module can be imported alone

FORBIDDEN_NAMES = {"utils", "util", "common", "core", "helpers", "helper", "manager", "misc"}
HEAVY = (
    *("torch", "pydantic", "duckdb", "sqlalchemy", "numpy", "pyarrow"),
    *("transformers", "tokenizers", "safetensors", "msgspec", "yaml", "jinja2", "gymnasium", "obstore"),
    *("alembic", "psycopg", "hvac"),
)
DEVICE = re.compile(r"(cpu|cuda|mps|xpu|hpu|meta)(:\d*)?")  # a part of an f-string, too


@cache
def modules() -> dict[str, ast.Module]:
    """Give dotted name below the package → syntax tree; the package's own file has the package's name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or PACKAGE
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def imports(tree: ast.Module) -> Iterator[str]:
    """Give the dotted names below the package that a module imports, wherever the statement stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from filter(None, map(_below_the_package, names))


def _below_the_package(name: str) -> str | None:
    """Cut what is no module off the end (`a.module.Class` → `module`); `__version__` is a word, no import of a part."""
    first, _, rest = name.partition(".")
    if first != PACKAGE or rest == "__version__":
        return None
    while rest and rest not in modules():
        rest = rest.rpartition(".")[0]
    return rest or PACKAGE


def part_of(module: str) -> str:
    return module.partition(".")[0]


def edges() -> Iterator[tuple[str, str]]:
    """Give (module, imported module) for each import that leaves its part."""
    for module, tree in modules().items():
        yield from ((module, other) for other in imports(tree) if part_of(other) != part_of(module))


def test_the_walk_sees_imports_in_functions_and_for_types() -> None:
    tree = ast.parse(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from trainwright.loop import Loop\n"
        "def f():\n    from trainwright import runs\n    import trainwright.cli.main\n"
    )
    assert list(imports(tree)) == ["loop", "runs", "cli.main"]


def test_every_module_has_its_place_in_the_table() -> None:
    assert {part_of(module) for module in modules()} - ROW.keys() == set()
    assert len(ROW) == sum(map(len, ROWS)), "a part stands in one row"


def test_a_part_imports_only_from_rows_under_its_own() -> None:
    wrong = [
        f"{module} (row {ROW[here]}) imports {other} (row {ROW[there]})"
        for module, other in edges()
        if (here := part_of(module), there := part_of(other))
        and ROW[there] >= ROW[here]
        and there not in SIDEWAYS.get(here, ())
    ]
    assert wrong == []


def test_imports_within_a_row_name_parts_that_stand_before() -> None:
    for part, allowed in SIDEWAYS.items():
        row = ROWS[ROW[part] - 1]
        assert allowed <= set(row[: row.index(part)]), part
    assert not SIBLINGS & SIDEWAYS.keys()


def test_each_allowance_within_a_row_is_one_that_the_code_needs() -> None:
    made = {(part_of(module), part_of(other)) for module, other in edges()}
    assert [(part, other) for part, others in SIDEWAYS.items() for other in others if (part, other) not in made] == []


@pytest.mark.parametrize("package", EMPTY)
def test_the_init_file_of_a_package_is_empty(package: str) -> None:
    assert (SOURCE / package / "__init__.py").read_bytes() == b""


def test_only_open_names_backends() -> None:
    naming = {
        module
        for module, tree in modules().items()
        for other in imports(tree)
        if part_of(other) in BACKENDS and other.rpartition(".")[2] in BACKENDS[part_of(other)]
    }
    assert naming == {f"{package}.open" for package in BACKENDS}


def test_no_module_is_a_drawer_for_everything() -> None:
    assert {word for module in modules() for word in module.split(".")} & FORBIDDEN_NAMES == set()


def devices_named(tree: ast.Module) -> Iterator[str]:
    """Give each place that names a device: a literal, or `.cuda`, as a method and of torch. `.cpu()` is the host."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DEVICE.fullmatch(node.value):
            yield f"{node.lineno}: {node.value!r}"
        elif isinstance(node, ast.Attribute) and node.attr in {"cuda", "mps", "xpu"}:
            yield f"{node.lineno}: .{node.attr}"


def test_every_way_to_name_a_device_is_seen() -> None:
    named = ("x.to('cuda:1')", "x.to('cpu')", "torch.device(f'cuda:{n}')", "x.cuda()", "torch.cuda.synchronize()")
    assert all(list(devices_named(ast.parse(line))) for line in named)
    assert list(devices_named(ast.parse("x.to(self.device).cpu()"))) == []


def test_no_model_names_a_device() -> None:
    models = {module: tree for module, tree in modules().items() if part_of(module) == "models"}
    assert len(models) > len(EMPTY)
    assert [f"{module}:{place}" for module, tree in models.items() for place in devices_named(tree)] == []


def loaded_by(statement: str, environment: dict[str, str]) -> set[str]:
    """Give the modules that a fresh interpreter holds after `statement`."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("heavy", HEAVY)
def test_the_command_tree_is_built_without(heavy: str, command_tree: set[str]) -> None:
    assert "trainwright.cli.main" in command_tree
    assert heavy not in command_tree


@pytest.fixture(scope="module")
def command_tree(child_environment: dict[str, str]) -> set[str]:
    return loaded_by("import trainwright.cli.main", child_environment)


def test_importing_the_package_imports_no_part_of_it(child_environment: dict[str, str]) -> None:
    loaded = loaded_by("import trainwright", child_environment)
    assert {name for name in loaded if name.startswith(f"{PACKAGE}.")} == set()


def test_a_backend_packages_base_is_imported_without_its_backends(child_environment: dict[str, str]) -> None:
    loaded = loaded_by("import trainwright.checkpoints.base", child_environment)
    assert loaded & {f"trainwright.checkpoints.{name}" for name in BACKENDS["checkpoints"]} == set()
