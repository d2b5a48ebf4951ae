"""The public names are few and frozen, and the page that documents them runs."""

import re
import sys
from pathlib import Path

import pytest

import trainwright

PAGE = Path(__file__).resolve().parent.parent / "docs" / "python.md"
NAMES = {
    "Metric",
    "RunConfig",
    "RunResult",
    "Setup",
    "Source",
    "TorchTrainable",
    "Trainable",
    "TrainwrightError",
    "Validation",
    "__version__",
    "resume",
    "train",
}


def test_the_public_names_are_these_and_each_is_there() -> None:
    assert set(trainwright.__all__) == NAMES == set(dir(trainwright))
    for name in NAMES:
        assert getattr(trainwright, name) is not None


def test_the_page_on_python_names_each_public_name() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in NAMES - {"__version__"})


def test_the_blocks_of_the_page_on_python_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    blocks = re.findall(
        r"^```python(?: file=(\S+))?\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 5
    names: dict[str, object] = {}
    for file, code in blocks:
        if file:
            (tmp_path / file).write_text(code, encoding="utf-8")
        else:
            exec(compile(code, str(PAGE), "exec"), names)
    sys.modules.pop("line", None)
