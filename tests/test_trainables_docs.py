"""docs/trainables.md, run: each class that it shows trains from its file and keeps every promise of a trainable."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests import series
from tests.acceptance import harness
from trainwright import runs
from trainwright.candidates import Candidate
from trainwright.config import RunConfig
from trainwright.errors import InputError
from trainwright.promises import check

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = [DOCS / name for name in ("python.md", "trainables.md")]
BLOCK = re.compile(r"^```(?:python|yaml) file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = {name: text for page in PAGES for name, text in BLOCK.findall(page.read_text(encoding="utf-8"))}
CONFIGURATIONS = [name for name in FILES if name.endswith(".yaml")]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a current directory with every file of the pages, and the series that one of them reads."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    series.one_series(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_the_page_shows_a_model_with_options_an_agent_and_a_forecaster() -> None:
    assert CONFIGURATIONS == ["robust.yaml", "gradient.yaml", "smooth.yaml"]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_each_class_keeps_every_promise(name: str, here: Path) -> None:
    found = check(Candidate(RunConfig.load(here / name), torch.device("cpu")))
    broken = {promise.name: promise.seen for promise in found.promises if promise.result != "holds"}
    assert broken == ({} if torch.cuda.is_available() else {"cuda": "no CUDA device"})


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_each_file_trains_to_its_end(name: str, here: Path) -> None:
    result = runs.execute(RunConfig.load(here / name), runs_dir=here / "runs")
    assert (result.outcome.label, result.exit_code) == ("done", 0)
    assert len(result.run.read_steps()) == result.step > 0
    assert result.best is not None


COMMANDS = re.findall(
    r"^trainwright (.+?) *(?:#.*)?$", (DOCS / "trainables.md").read_text(encoding="utf-8"), re.MULTILINE
)


def test_the_page_shows_what_to_do_before_a_long_run() -> None:
    assert [line.split()[0] for line in COMMANDS] == ["check", "verify-resume", "plan"]


LONG = [pytest.param(line, marks=pytest.mark.long if line.startswith("verify-resume") else ()) for line in COMMANDS]


@pytest.mark.parametrize("line", LONG)
def test_each_command_of_the_page_does_what_it_says(line: str, here: Path) -> None:
    completed = harness.command(here, *line.split())
    assert completed.code == 0, completed.err


def test_an_option_that_is_misspelt_is_answered_with_the_right_one(here: Path) -> None:
    with pytest.raises(InputError, match=r"unknown key 'model\.deltas'; did you mean 'delta'\?"):
        check(Candidate(RunConfig.load(here / "robust.yaml", ["model.deltas=1"]), torch.device("cpu")))
