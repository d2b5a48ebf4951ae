"""The wheel: what is no Python file comes along, so that an installed command finds it."""

import subprocess
import sys
import zipfile
from pathlib import Path
from shutil import copytree

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "trainwright"
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


def test_the_wheel_carries_contracts_templates_and_the_mark_of_types(tmp_path: Path) -> None:
    copytree(SOURCE, tmp_path / "src" / "trainwright")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-c", BUILD, "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = (tmp_path / "out").iterdir()
    packed = set(zipfile.ZipFile(wheel).namelist())
    files = {path.relative_to(SOURCE.parent).as_posix() for path in SOURCE.rglob("*") if path.is_file()}
    assert {file for file in files - packed if "__pycache__" not in file} == set()
    assert "trainwright/py.typed" in packed
    assert any(name.startswith("trainwright/contracts/") for name in packed)
    assert {"trainwright/templates/report.html", "trainwright/templates/init/lm.yaml"} <= packed
