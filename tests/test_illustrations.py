"""What a trainable shows of itself: kept at the best validation, and no trace of it in what is trained."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tests.loops import Finished, Scripted, run_loop, settings
from tests.toys import Toy, ToyOptions
from trainwright.errors import StoreError
from trainwright.illustrations import Band, Bars, Grid, Illustration, Line, Lines, Panel
from trainwright.jsonfile import write_json
from trainwright.rundir import SEALED, RunDirectory, Start
from trainwright.trainable import Setup

BARS = Bars(title="Weights", about="of the toy", unit="1", labels=["a", "b"], values=[1.0, None])
LINES = Lines(
    title="Lines",
    about="of the toy",
    x_unit="step",
    y_unit="1",
    lines=[Line("a", [0.0, 1.0], [1.0, None])],
    bands=[Band("b", [0.0], [0.0], [1.0])],
)
GRID = Grid(title="Grid", about="of the toy", x_unit="x", y_unit="y", unit="1", rows=[[1.0], [None]])


class Showing(Scripted):
    """A toy that shows the number of the step, and draws random numbers for it."""

    script = (3.0, 1.0, 2.0, 0.5)

    def illustrate(self) -> Sequence[Panel]:
        with self.undisturbed():
            torch.rand(3)
            return [Bars(title="Step", about="", unit="1", labels=["step"], values=[float(self.step)])]


class Shy(Showing):
    """Shows nothing."""

    def illustrate(self) -> Sequence[Panel]:
        return ()


def finished(kind: type[Toy], folder: Path, **changes: Any) -> Finished:
    toy = kind.build(Setup(model=ToyOptions(n=64, hidden=8), data={}, batch_size=4))
    return run_loop(toy, settings(**changes), folder)


def test_panels_are_read_as_they_were_written_and_what_is_no_number_is_a_gap() -> None:
    shown = Illustration(3, [BARS, LINES, GRID])
    assert msgspec.json.decode(msgspec.json.encode(shown), type=Illustration) == shown
    odd = msgspec.structs.replace(BARS, values=[math.nan, math.inf])
    read = msgspec.json.decode(msgspec.json.encode(Illustration(0, [odd])), type=Illustration)
    assert read.panels == [msgspec.structs.replace(BARS, values=[None, None])]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Line("a", [1.0, 2.0], [1.0]), "line 'a' has 2 in x, 1 in y; expected as many in each"),
        (lambda: Band("b", [1.0], [1.0], []), "band 'b' has 1 in x, 1 in low, 0 in high; expected as many in each"),
        (lambda: msgspec.structs.replace(BARS, values=[]), "has 2 in labels, 0 in values; expected as many in each"),
        (lambda: msgspec.structs.replace(GRID, rows=[[1.0], []]), r"has rows of \[0, 1\] values"),
        (lambda: Line("a", [math.nan, 2.0], [1.0, 1.0]), "line 'a' has 1 in x that are not finite; expected finite"),
        (lambda: Band("b", [math.inf], [1.0], [1.0]), "band 'b' has 1 in x that are not finite"),
        (lambda: Line("a", [0.0], ["high"]), "line 'a' has in y what is no number"),  # type: ignore[list-item]  # that is it
        (lambda: msgspec.structs.replace(BARS, values=[1.0, "b"]), "panel 'Weights' has in values what is no number"),
        (lambda: msgspec.structs.replace(LINES, lines=[]), "panel 'Lines' has 0 lines; expected one or two"),
        (lambda: msgspec.structs.replace(LINES, lines=[*LINES.lines] * 3), "panel 'Lines' has 3 lines; expected one"),
    ],
)
def test_a_panel_whose_parts_do_not_fit_each_other_is_refused(make: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()


@pytest.mark.parametrize("of", [np.array, torch.tensor])
def test_numbers_of_arrays_and_tensors_are_written_as_numbers(of: Any) -> None:
    values = of([1.0, 2.0])
    grid = msgspec.structs.replace(GRID, rows=of([[1.0], [2.0]]), x_first=np.int64(3))
    panels: list[Panel] = [
        msgspec.structs.replace(BARS, values=values),
        msgspec.structs.replace(LINES, lines=[Line("a", values, values)], bands=[Band("b", values, values, values)]),
        grid,
    ]
    shown = Illustration(0, panels)
    assert msgspec.json.decode(msgspec.json.encode(shown), type=Illustration) == shown
    assert grid.x_first == 3


def test_the_best_validation_so_far_is_illustrated_and_no_other(tmp_path: Path) -> None:
    done = finished(Showing, tmp_path, total_steps=20)  # validated after 0, 10 and 20 steps; the second is the best
    shown = done.run.read_illustration()
    assert shown
    assert (shown.step, shown.panels[0].title) == (10, "Step")
    assert isinstance(shown.panels[0], Bars)
    assert shown.panels[0].values == [10.0]
    assert done.attempt.illustration in [file for pattern in SEALED for file in done.run.path.glob(pattern)]


def test_who_shows_nothing_leaves_no_file(tmp_path: Path) -> None:
    done = finished(Shy, tmp_path)
    assert not done.attempt.illustration.exists()
    assert done.run.read_illustration() is None


def test_who_illustrates_undisturbed_trains_as_who_shows_nothing(tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    shown, plain = finished(Showing, tmp_path / "shown"), finished(Shy, tmp_path)
    for name in ("train_loss", "grad_norm"):
        assert [getattr(row, name) for row in shown.run.read_steps()] == [
            getattr(row, name) for row in plain.run.read_steps()
        ]


def look(toy: Toy) -> None:
    with toy.undisturbed():
        assert not toy.training
        assert not torch.is_grad_enabled()
        torch.rand(3)
        raise KeyError


def test_undisturbed_puts_mode_streams_and_gradients_back_even_after_an_error() -> None:
    toy = Toy.build(Setup(model=ToyOptions(n=64, hidden=8), data={}, batch_size=4))
    before = torch.get_rng_state()
    with pytest.raises(KeyError):
        look(toy)
    assert toy.training
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)


def test_an_illustration_that_cannot_be_written_ends_as_a_failed_store(tmp_path: Path) -> None:
    def block(_loop: Any) -> None:
        [attempt] = tmp_path.glob("*/attempts/1")
        (attempt / "illustration.json").mkdir()

    toy = Showing.build(Setup(model=ToyOptions(n=64, hidden=8), data={}, batch_size=4))
    with pytest.raises(StoreError, match=r"illustration\.json"):
        run_loop(toy, settings(), tmp_path, prepare=block)


def show(run: RunDirectory, number: int, start: int, step: int | None) -> None:
    attempt = run.attempt(number)
    attempt.directory.mkdir(parents=True)
    checkpoint = f"step-{start:08d}.a1" if start else None
    write_json(attempt.start_file, Start(attempt=number, time="", step=start, checkpoint=checkpoint))
    if step is not None:
        write_json(attempt.illustration, Illustration(step, [BARS]))


def test_the_newest_illustration_counts_unless_a_later_attempt_took_its_step_again(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    show(run, 1, 0, 10)
    show(run, 2, 10, 30)
    shown = run.read_illustration()
    assert shown
    assert shown.step == 30
    show(run, 3, 20, None)
    shown = run.read_illustration()
    assert shown
    assert shown.step == 10, "attempt 3 began before step 30, and at 10 attempt 2 began from the save of attempt 1"
