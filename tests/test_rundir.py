import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rows import row, validation
from trainwright.errors import DataError, InputError
from trainwright.jsonfile import write_json
from trainwright.metrics import Event
from trainwright.newruns import create_run
from trainwright.rundir import Attempt, RunDirectory, Start, all_runs
from trainwright.timestamps import now

HOLDER = """
import sys
from pathlib import Path
from trainwright.rundir import RunDirectory
with RunDirectory(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return create_run("demo", tmp_path / "runs", "name: demo\n")


def begin(run: RunDirectory, step: int) -> Attempt:
    """Begin an attempt from the save of the one before it at that step."""
    attempt = run.new_attempt()
    checkpoint = f"step-{step:08d}.a{attempt.number - 1}" if attempt.number > 1 else None
    write_json(attempt.start_file, Start(attempt=attempt.number, time=now(), step=step, checkpoint=checkpoint))
    return attempt


def attempt_with(run: RunDirectory, start: int, steps: range, validations: tuple[int, ...] = ()) -> Attempt:
    """Make an attempt whose rows can be told from another's: the loss is its number."""
    attempt = begin(run, start)
    loss = float(attempt.number)
    attempt.steps.write_bytes(b"".join(row(step=step, train_loss=loss).encode() for step in steps))
    attempt.validations.write_bytes(b"".join(validation(step=step, value=loss).encode() for step in validations))
    return attempt


def rows_of(run: RunDirectory) -> list[tuple[int, float]]:
    return [(found.step, found.train_loss) for found in run.read_steps()]


def test_rows_of_an_attempt_count_up_to_the_start_of_the_next(run: RunDirectory) -> None:
    attempt_with(run, 0, range(10))
    attempt_with(run, 6, range(6, 12))
    assert rows_of(run) == [*((step, 1.0) for step in range(6)), *((step, 2.0) for step in range(6, 12))]


def test_an_attempt_that_began_from_an_older_checkpoint_takes_over_from_both_before_it(run: RunDirectory) -> None:
    attempt_with(run, 0, range(10))
    attempt_with(run, 8, range(8, 12))
    attempt_with(run, 4, range(4, 6))
    assert rows_of(run) == [*((step, 1.0) for step in range(4)), (4, 3.0), (5, 3.0)]
    assert run.limits() == {1: 4, 2: 4}


def test_an_attempt_that_ended_before_its_first_step_takes_nothing_away_but_what_it_goes_on_from(
    run: RunDirectory,
) -> None:
    attempt_with(run, 0, range(10))
    begin(run, 6)
    attempt_with(run, 6, range(6, 8))
    assert rows_of(run) == [*((step, 1.0) for step in range(6)), (6, 3.0), (7, 3.0)]


def test_a_validation_at_the_step_of_a_resume_stays_with_the_attempt_that_made_it(run: RunDirectory) -> None:
    attempt_with(run, 0, range(10), validations=(0, 3, 6, 9))
    attempt_with(run, 6, range(6, 12), validations=(9, 12))
    found = [(validation.step, validation.value) for validation in run.read_validations()]
    assert found == [(0, 1.0), (3, 1.0), (6, 1.0), (9, 2.0), (12, 2.0)]


def test_a_validation_whose_save_was_cut_is_made_again_and_counts_once(run: RunDirectory) -> None:
    """Attempts 2 and 3 both go on from what attempt 1 saved at step 6; attempt 2 was killed in its save there."""
    attempt_with(run, 0, range(6), validations=(0,))
    attempt_with(run, 6, range(0), validations=(6,))
    third = attempt_with(run, 6, range(6, 9), validations=(6, 9))
    write_json(third.start_file, Start(attempt=3, time=now(), step=6, checkpoint="step-00000006.a1"))
    assert [(row.step, row.value) for row in run.read_validations()] == [(0, 1.0), (6, 3.0), (9, 3.0)]


def test_a_first_validation_whose_save_was_cut_counts_once(run: RunDirectory) -> None:
    attempt_with(run, 0, range(0), validations=(0,))
    second = attempt_with(run, 0, range(3), validations=(0, 3))
    write_json(second.start_file, Start(attempt=2, time=now(), step=0, checkpoint=None))
    assert [(row.step, row.value) for row in run.read_validations()] == [(0, 2.0), (3, 2.0)]


def test_events_that_belong_to_a_step_count_like_it_and_what_happened_stays(run: RunDirectory) -> None:
    attempt_with(run, 0, range(10))
    attempt_with(run, 6, range(6, 12))
    of_rows = ("skipped_step", "guard", "wrapped_data", "epoch_began")
    kinds = ("started", *of_rows, "checkpoint_saved", "checkpoint_removed", "signal")
    events = [Event(time=now(), kind=kind, step=step, attempt=1) for step in (None, 5, 6, 7) for kind in kinds]
    run.attempts()[0].events.write_bytes(b"".join(event.encode() for event in events))
    gone = [(event.kind, event.step) for event in events if event not in run.read_events()]
    assert gone == [
        *((kind, 6) for kind in of_rows),
        *((kind, 7) for kind in (*of_rows, "checkpoint_saved", "checkpoint_removed")),
    ]


def test_joining_writes_each_step_once_and_destroys_nothing(run: RunDirectory) -> None:
    for start, steps in ((0, range(10)), (6, range(6, 12))):
        attempt_with(run, start, steps, validations=(start, steps.stop))
    before = {file: file.read_bytes() for file in (run.path / "attempts").rglob("*") if file.is_file()}
    run.join()
    assert before == {file: file.read_bytes() for file in before}
    joined = RunDirectory(run.path.rename(run.path.with_name("alone")))
    counted = (rows_of(joined), joined.read_validations(), joined.read_events())
    (joined.path / "attempts").rename(joined.path / "elsewhere")
    assert (rows_of(joined), joined.read_validations(), joined.read_events()) == counted
    assert [step for step, _ in counted[0]] == list(range(12))


def test_the_rows_that_count_as_a_table_are_those_read_one_by_one(run: RunDirectory) -> None:
    attempt_with(run, 0, range(10))
    attempt_with(run, 6, range(6, 12))
    attempt_with(run, 8, range(0))
    table = run.step_table()
    assert list(zip(table["step"].to_pylist(), table["train_loss"].to_pylist(), strict=True)) == rows_of(run)
    run.join()
    (run.path / "attempts").rename(run.path / "elsewhere")
    assert run.step_table().equals(table)
    before = run.steps.read_bytes()
    run.join()
    assert run.steps.read_bytes() == before


def test_a_column_that_only_rows_taken_again_had_is_none_of_the_runs(run: RunDirectory) -> None:
    attempt = attempt_with(run, 0, range(3))
    attempt.steps.write_bytes(attempt.steps.read_bytes() + row(step=3, extra={"gone": 1.0}).encode())
    assert "gone" in run.step_table().column_names
    attempt_with(run, 3, range(3, 5))
    assert "gone" not in run.step_table().column_names


def test_a_broken_row_that_does_not_count_is_an_error_all_the_same(run: RunDirectory) -> None:
    attempt = attempt_with(run, 0, range(10))
    attempt.steps.write_bytes(attempt.steps.read_bytes() + b"{}\n")
    attempt_with(run, 0, range(12))
    for read in (run.read_steps, run.step_table, run.join):
        with pytest.raises(DataError, match=r"1/steps\.jsonl:11: is not a valid row: "):
            read()


def test_joining_copies_the_lines_that_count_as_they_stand(run: RunDirectory) -> None:
    first = attempt_with(run, 0, range(3))
    first.steps.write_bytes(first.steps.read_bytes().replace(b":2.0", b": 2.00") + b'{"step": torn')
    attempt_with(run, 2, range(2, 4))
    assert not run.steps_are_joined()
    run.join()
    lines = run.steps.read_bytes().splitlines(keepends=True)
    assert [line.count(b": 2.00") for line in lines] == [1, 1, 0, 0]
    assert run.steps_are_joined()
    for changed in (lines[:-1], [*lines, lines[-1]], [lines[1], lines[0], *lines[2:]], [*lines[:-1], lines[-1][:-1]]):
        run.steps.write_bytes(b"".join(changed))
        assert not run.steps_are_joined()


def test_a_join_after_another_attempt_replaces_the_joined_files(run: RunDirectory) -> None:
    attempt_with(run, 0, range(3))
    run.join()
    attempt_with(run, 2, range(2, 5))
    run.join()
    assert run.steps.read_bytes().count(b"\n") == 5


def test_rows_of_an_older_contract_are_joined_without_a_made_up_time(run: RunDirectory) -> None:
    attempt = attempt_with(run, 0, range(2))
    attempt.steps.write_bytes(attempt.steps.read_bytes().replace(b',"wall_ms":2.0', b""))
    run.join()
    assert b"wall_ms" not in run.steps.read_bytes()
    assert [found.wall_ms_measured for found in run.read_steps()] == [False, False]


def test_files_with_a_torn_last_line_are_told(run: RunDirectory) -> None:
    attempt = attempt_with(run, 0, range(2), validations=(0,))
    assert run.torn_files() == []
    attempt.validations.write_bytes(attempt.validations.read_bytes()[:-1])
    assert run.torn_files() == [attempt.validations]


def test_attempts_are_numbered_from_1_and_no_number_is_used_twice(run: RunDirectory) -> None:
    assert [run.new_attempt().number for _ in range(11)] == list(range(1, 12))
    assert run.attempts() == [], "none has started"
    begin(run, 0)
    begin(run, 0)
    assert [attempt.number for attempt in run.attempts()] == [12, 13]
    assert run.attempts()[0].start().attempt == 12


def test_a_run_that_another_process_trains_is_refused_until_that_process_ends(
    run: RunDirectory, child_environment: dict[str, str]
) -> None:
    command = [sys.executable, "-c", HOLDER, str(run.path)]
    with subprocess.Popen(command, env=child_environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="another process is training this run"), run.locked():
            pass
        holder.kill()  # a crash frees it as well
    with run.locked():
        pass
    with run.locked():
        pass


def test_a_run_is_found_by_its_path_and_by_its_id(run: RunDirectory) -> None:
    assert RunDirectory.find(run.id, run.path.parent).path == run.path
    assert RunDirectory.find(str(run.path), Path("elsewhere")).id == run.id


@pytest.mark.parametrize("name", ["evidence.json", "evidence.dsse.json"])
def test_a_run_is_found_by_its_sealed_evidence_and_by_no_other_file(run: RunDirectory, name: str) -> None:
    (run.path / name).touch()
    assert RunDirectory.find(str(run.path / name), Path("elsewhere")).path == run.path
    assert RunDirectory.find(f"{run.id}/{name}", run.path.parent).path == run.path
    with pytest.raises(InputError, match="is no run directory"):
        RunDirectory.find(str(run.config), Path("elsewhere"))


def test_a_record_of_checks_is_found_and_is_the_latest_only_for_who_asks_for_records(run: RunDirectory) -> None:
    record = RunDirectory(run.path.parent / "record")
    record.path.mkdir()
    for number, file in enumerate((run.config, record.checks, record.evidence)):
        file.touch()
        os.utime(file, (1000 + number, 1000 + number))
    for name in ("record", "latest"):
        assert RunDirectory.find(name, run.path.parent, records=True).path == record.path
    assert RunDirectory.find("latest", run.path.parent).path == run.path
    with pytest.raises(InputError, match="is no run directory"):
        RunDirectory.find("record", run.path.parent)


def test_an_unknown_run_is_refused_with_the_newest_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="newest runs: none"):
        RunDirectory.find("nope", tmp_path)
    made = [create_run(f"r{number}", tmp_path, "") for number in range(7)]
    for age, made_run in enumerate(made):
        os.utime(made_run.config, (1000 - age, 1000 - age))
    assert [found.id for found in all_runs(tmp_path)] == [made_run.id for made_run in made]
    with pytest.raises(InputError) as caught:
        RunDirectory.find("nope", tmp_path)
    assert str(caught.value).endswith(f"newest runs: {', '.join(made_run.id for made_run in made[:5])}")


# -- after.jsonl -----------------------------------------------------------------------------------------------------


def test_what_was_done_beside_and_after_the_training_is_kept_in_order_behind_a_row_that_a_kill_cut(
    run: RunDirectory,
) -> None:
    assert run.read_after() == []
    run.add_after("uploaded", checkpoint="step-00000010.a1", bytes=7)
    with run.after.open("ab") as file:
        file.write(b'{"time": "2026')
    assert [one.kind for one in run.read_after()] == ["uploaded"]
    run.add_after("upload_failed", reason="no answer")
    rows = run.read_after()
    assert [one.kind for one in rows] == ["uploaded", "upload_failed"]
    assert rows[0].detail == {"checkpoint": "step-00000010.a1", "bytes": 7}
    run.after.write_bytes(run.after.read_bytes() + b"[]\n")
    with pytest.raises(DataError, match=r"after\.jsonl:3: is no row of what was done with a run"):
        run.read_after()
