import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainwright.errors import InputError
from trainwright.models import table
from trainwright.models.lm import LM


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_every_built_in_type_is_found_under_its_own_name() -> None:
    for name in table.BUILT_IN:
        assert getattr(table.find(name), "model_type", None) == name
    found: object = table.find("lm")
    assert found is LM


def test_the_table_alone_imports_no_torch() -> None:
    check = "import sys, trainwright.models.table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_a_users_class_is_found_in_the_current_directory(here: Path) -> None:
    (here / "own_net.py").write_text("class Net:\n    @classmethod\n    def build(cls, setup): return cls()\n")
    assert table.find("own_net:Net").__name__ == "Net"  # type: ignore[attr-defined]  # a class


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("lmm", r"unknown model type 'lmm'; did you mean 'lm'\? known types: lm.*module:Class"),
        ("transformer", r"unknown model type 'transformer'; known types: lm"),
        ("no_such_module_here:Net", "there is no module 'no_such_module_here' in "),
        ("own_net.inner:Net", "there is no module 'own_net.inner'"),
        ("own_net:Nett", r"own_net\.py has no 'Nett'; did you mean 'Net'\?"),
        ("own_net:Other", "Other is no class with a classmethod build"),
        ("own_net:number", "number is no class with a classmethod build"),
        ("own_net:", "expected module:Class"),
        ("own-net:Net", "expected module:Class"),
        ("broken:Net", "importing 'broken' failed: ZeroDivisionError"),
        ("needs:Net", "importing 'needs' failed: ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_what_cannot_be_found_is_refused_with_what_to_do(here: Path, model_type: str, message: str) -> None:
    (here / "own_net.py").write_text("number = 1\nclass Net:\n    def build(setup): ...\nclass Other: ...\n")
    (here / "broken.py").write_text("1 / 0\n")
    (here / "needs.py").write_text("import no_such_package\n")
    with pytest.raises(InputError, match=message):
        table.find(model_type)
