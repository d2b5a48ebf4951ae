"""Facts: what the judge sees of a run is what its files say, and files that lie about their extent are caught."""

import math
from pathlib import Path
from typing import Any

import pytest

from trainwright.columns import table_of_rows
from trainwright.contract.audit_facts import audits_table
from trainwright.contract.facts import load_facts, steps_table
from trainwright.contract.judge import Verdict, decides_exit, judge
from trainwright.contract.load import load_contract
from trainwright.contract.readings import Facts
from trainwright.errors import InputError
from trainwright.jsonfile import write_json
from trainwright.metrics import Audit, Event, StepMetrics, ValidationRow
from trainwright.newruns import create_run
from trainwright.rundir import Attempt, RunDirectory, Start
from trainwright.timestamps import now

CONFIG = """
name: small
seed: 7
device: cpu
model: {type: lm, layers: 2}
train: {mode: from_scratch, steps: 4, learning_rate: 0.001}
schedule: {kind: cosine, warmup_steps: 1000, minimum_ratio: 0.1}
"""
PRETRAIN = load_contract("training-loop-pretrain-v1")
PAIRS = {gate.id for gate in PRETRAIN.gates if gate.entry.kind == "pair"}
UNIFORM = math.log(4096)
ENVIRONMENT = {
    "device": "cpu",
    "parameters": 1_000_000,
    "git": {"commit": "abc", "dirty": False},
    "command": ["trainwright"],
    "hashes": {"data": "d" * 64, "tokenizer": "t" * 64},
    "baselines": {"uniform_entropy": UNIFORM, "unigram_entropy": 6.47},
    "target": 6.47,
    "first_validation_cap": 2 * UNIFORM,
    "explicit": {"learning_rate": True, "warmup_steps": False, "target": True, "first_validation_cap": False},
    "items_per_epoch": 300,
    "steps_per_epoch": 3,
    "flops_known": True,
    "peak_known": False,
    "absent": {"gpu_util_pct": "device cpu has no GPU utilisation"},
}


def step_row(step: int, **changes: Any) -> StepMetrics:
    rate = 1e-3 * (step + 1) / 1000
    fields = {"train_loss": 8.0 - step / 10, "grad_norm": 1.0, "lr": rate, "gpu_util_pct": None, "wall_ms": 10.0}
    values: dict[str, Any] = {"step": step, **fields, "tokens_per_sec": 10_000.0, "extra": {"tokens": 100}, **changes}
    return StepMetrics(**values)


def audit_row(step: int) -> Audit:
    row = step_row(step)
    return Audit(
        step=step,
        lr_scheduled=row.lr,
        lr_groups=[row.lr],
        lr_applied=[row.lr],
        grad_norm=row.grad_norm,
        tensors=9,
        tensors_changed=9,
        batch_repeated=False,
        batch_rows=4,
        held_out_rows=0,
        held_out_repeats=0.0,
    )


def validation_row(step: int, value: float, **changes: Any) -> ValidationRow:
    values: dict[str, Any] = {
        "step": step,
        "epoch": 0,
        "metric": "val_loss",
        "value": value,
        "n": 512,
        "standard_error": 0.01,
        "best": value,
        "is_best": True,
        "patience": 0,
        "train_loss_mean": 8.0,
        "tokens_seen": step * 100,
        "grad_norm_max": 1.0,
        "optimizer_state_sha256": "0" * 64,
        "wall_seconds": 0.1,
        "checkpoint": f"step-{step:08d}.a1",
        **changes,
    }
    return ValidationRow(**values)


def event_line(attempt: int, kind: str, step: int, **detail: Any) -> bytes:
    return Event(time=now(), kind=kind, step=step, attempt=attempt, detail=detail).encode()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Give a sound run of four steps and two validations, past the end of its data once."""
    run = create_run("small", tmp_path, CONFIG)
    write_json(run.environment, ENVIRONMENT)
    attempt = begin(run, step=0)
    attempt.steps.write_bytes(b"".join(step_row(step).encode() for step in range(4)))
    attempt.audits.write_bytes(audit_row(3).encode())
    rows = [validation_row(0, 8.4), validation_row(4, 6.4)]
    attempt.validations.write_bytes(b"".join(row.encode() for row in rows))
    events: list[tuple[str, int, dict[str, Any]]] = [
        ("started", 0, {}),
        ("checkpoint_saved", 0, {}),
        ("wrapped_data", 3, {"epoch": 1}),
    ]
    ends = [("checkpoint_saved", 4, {}), ("finished", 4, {"outcome": "done", "why": "budget"})]
    attempt.events.write_bytes(b"".join(event_line(1, kind, step, **detail) for kind, step, detail in [*events, *ends]))
    for row in rows:
        folder = run.checkpoints / row.checkpoint
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    return run


def begin(run: RunDirectory, step: int, **changes: Any) -> Attempt:
    attempt = run.new_attempt()
    write_json(attempt.start_file, Start(attempt=attempt.number, time=now(), step=step, checkpoint=None, **changes))
    return attempt


def on_gpu(run: RunDirectory, step: int) -> Attempt:
    """Begin an attempt on a GPU with a sensor, and write the rows from `step` to 3."""
    attempt = begin(run, step=step, device="cuda:0", absent={"gpu_util_pct": None})
    attempt.steps.write_bytes(b"".join(step_row(number, gpu_util_pct=90.0).encode() for number in range(step, 4)))
    return attempt


def verdicts(facts: Facts) -> dict[str, Verdict]:
    return {verdict.gate: verdict for verdict in judge(PRETRAIN, facts)}


def failing(run: RunDirectory) -> list[str]:
    return [gate for gate, verdict in verdicts(load_facts(run)).items() if decides_exit(verdict)]


def only(facts: Facts, table: str) -> dict[str, Any]:
    [row] = facts[table].to_pylist()
    return dict(row)


def test_a_sound_run_holds_its_contract(run: RunDirectory) -> None:
    found = verdicts(load_facts(run))
    assert {gate: v.reason for gate, v in found.items() if decides_exit(v)} == {}
    others = {gate: v.result for gate, v in found.items() if v.result != "pass"}
    assert {gate for gate, result in others.items() if result == "no_evidence"} == PAIRS
    assert {gate for gate, result in others.items() if result == "not_applicable"} == {
        *("GATE-TRAIN-FLOPS", "GATE-TRAIN-UNIGRAM", "GATE-TRAIN-SANITY", "GATE-GPUTRAIN-004"),
    }


def test_the_tables_hold_what_the_files_say(run: RunDirectory) -> None:
    facts = load_facts(run)
    assert facts["steps"]["step"].to_pylist() == [0, 1, 2, 3]
    assert facts["steps"]["tokens"].to_pylist() == [100.0] * 4
    assert set(facts["steps"]["gpu_util_absent"].to_pylist()) == {"device cpu has no GPU utilisation"}
    assert facts["validations"]["has_manifest"].to_pylist() == [True, True]
    assert facts["events"]["kind"].to_pylist()[-1] == "finished"
    assert facts["checkpoints"].to_pydict() == {"name": ["step-00000000.a1", "step-00000004.a1"], "step": [0, 4]}
    environment, config = only(facts, "environment"), only(facts, "config")
    expected = {
        "first_step": 0,
        "steps_done": 4,
        "tokens_per_epoch": 300,
        "epoch_offset_tokens": 0,
        "git_commit": "abc",
    }
    assert expected.items() <= environment.items()
    assert {"mode": "from_scratch", "target": 6.47, "target_explicit": True, "seed": 7}.items() <= config.items()
    assert {"model_layers": 2, "schedule_kind": "cosine", "warmup_steps": 1000}.items() <= config.items()
    assert config["data_exhaustion"] is None
    assert steps_table(run).equals(facts["steps"])


@pytest.mark.parametrize(("exhaustion", "result"), [(None, "pass"), ("cycle", "pass"), ("halt", "fail")])
def test_a_second_pass_is_on_record_and_none_follows_under_halt(
    exhaustion: str | None, result: str, run: RunDirectory
) -> None:
    if exhaustion:
        run.config.write_text(f"{run.config.read_text()}data: {{exhaustion: {exhaustion}}}\n")
    verdicts = judge(PRETRAIN, load_facts(run))
    assert next(v for v in verdicts if v.gate == "GATE-TRAIN-EXHAUST").result == result


def test_previous_and_best_before_are_finite_values_of_earlier_validations(run: RunDirectory) -> None:
    values = [math.nan, 0.9, math.nan, 0.5, 0.7, math.inf, 0.6]
    rows = [validation_row(step, value) for step, value in enumerate(values)]
    run.attempts()[0].validations.write_bytes(b"".join(row.encode() for row in rows))
    table = load_facts(run)["validations"]
    assert table["previous"].to_pylist() == [None, None, 0.9, 0.9, 0.5, 0.7, 0.7]
    assert table["best_before"].to_pylist() == [None, None, 0.9, 0.9, 0.5, 0.5, 0.5]
    assert table["ordinal"].to_pylist() == [*range(7)]


def test_a_bad_number_on_record_survives_into_the_table_and_fails(run: RunDirectory) -> None:
    rows = [step_row(0), step_row(1, train_loss=math.nan), step_row(2, grad_norm=math.inf), step_row(3)]
    run.attempts()[0].steps.write_bytes(b"".join(row.encode() for row in rows))
    table = load_facts(run)["steps"]
    assert math.isnan(table["train_loss"][1].as_py())
    assert math.isinf(table["grad_norm"][2].as_py())
    found = verdicts(load_facts(run))
    assert (found["GATE-TRAIN-007"].result, found["GATE-TRAIN-007"].figures) == ("fail", {"nonfinite": 2.0})
    assert found["GATE-TRAIN-001"].result == "pass"


@pytest.mark.parametrize("kept", [[0, 1, 2], [1, 2, 3], [0, 1, 3], [0, 1, 1, 2, 3]])
def test_a_lost_or_repeated_row_is_found_though_the_file_reads_well(run: RunDirectory, kept: list[int]) -> None:
    run.attempts()[0].steps.write_bytes(b"".join(step_row(step).encode() for step in kept))
    assert "GATE-TRAIN-001" in failing(run)


def test_a_row_past_the_last_checkpoint_is_no_loss(run: RunDirectory) -> None:
    rows = [step_row(step, train_loss=math.nan if step == 4 else 8.0 - step) for step in range(5)]
    run.attempts()[0].steps.write_bytes(b"".join(row.encode() for row in rows))
    assert verdicts(load_facts(run))["GATE-TRAIN-001"].result == "pass"


def test_a_validation_without_manifest_is_found(run: RunDirectory) -> None:
    (run.checkpoints / "step-00000004.a1" / "manifest.json").unlink()
    assert failing(run) == ["GATE-TRAIN-002"]


def test_a_copy_of_a_checkpoint_that_a_user_made_is_none_of_the_runs(run: RunDirectory) -> None:
    (run.checkpoints / "step-00000004.a1").rename(run.checkpoints / "step-00000004.a1.bak")
    assert load_facts(run)["checkpoints"].to_pydict() == {"name": ["step-00000000.a1"], "step": [0]}
    assert failing(run) == ["GATE-TRAIN-002"]


def test_a_wrap_around_that_is_not_on_record_is_found(run: RunDirectory) -> None:
    events = run.attempts()[0].events
    events.write_bytes(b"".join(line for line in events.read_bytes().splitlines(True) if b"wrapped_data" not in line))
    assert failing(run) == ["GATE-TRAIN-EXHAUST"]


def test_a_sensor_that_is_absent_without_a_reason_is_found(run: RunDirectory) -> None:
    write_json(run.environment, {**ENVIRONMENT, "absent": {}})
    assert failing(run) == ["GATE-TRAIN-001"]


def test_rows_without_wall_ms_are_judged_and_do_not_hold_the_newer_contract(run: RunDirectory) -> None:
    lines = run.attempts()[0].steps.read_bytes().replace(b'"wall_ms":10.0,', b"")
    run.attempts()[0].steps.write_bytes(lines)
    assert load_facts(run)["steps"]["wall_ms"].to_pylist() == [None] * 4
    assert failing(run) == ["GATE-TRAIN-001", "GATE-TRAIN-008", "GATE-TRAIN-THROUGHPUT", "GATE-TRAIN-CONSTANT"]


def test_a_resumed_run_is_judged_on_the_rows_that_count(run: RunDirectory) -> None:
    second = begin(run, step=3)
    second.steps.write_bytes(step_row(3).encode())
    second.audits.write_bytes(audit_row(3).encode())
    second.validations.write_bytes(validation_row(4, 6.4).encode())
    second.events.write_bytes(event_line(2, "wrapped_data", 3) + event_line(2, "finished", 4))
    facts = load_facts(run)
    assert facts["steps"]["step"].to_pylist() == [0, 1, 2, 3]
    assert failing(run) == []


def test_the_reason_of_an_absent_sensor_is_that_of_the_attempt_that_wrote_the_row(run: RunDirectory) -> None:
    on_gpu(run, 2)
    steps = load_facts(run)["steps"]
    no_sensor = "device cpu has no GPU utilisation"
    assert steps["gpu_util_absent"].to_pylist() == [no_sensor, no_sensor, None, None]
    assert verdicts(load_facts(run))["GATE-TRAIN-001"].result == "pass"


def test_a_sensor_that_is_there_and_gave_nothing_is_found_unless_its_loss_is_on_record(run: RunDirectory) -> None:
    attempt = on_gpu(run, 2)
    attempt.steps.write_bytes(step_row(2, gpu_util_pct=90.0).encode() + step_row(3).encode())
    assert "GATE-TRAIN-001" in failing(run)
    attempt.events.write_bytes(event_line(2, "sensor_lost", 3, sensor="gpu_util_pct", reason="NVML: GPU is lost"))
    facts = load_facts(run)
    assert facts["steps"]["gpu_util_absent"].to_pylist()[2:] == [None, "NVML: GPU is lost"]
    assert verdicts(facts)["GATE-TRAIN-001"].result == "pass"


def test_the_device_is_that_of_the_attempts_whose_rows_count(run: RunDirectory) -> None:
    on_gpu(run, 0)
    assert only(load_facts(run), "environment")["device"] == "cuda"
    begin(run, step=4, device="cpu")
    assert only(load_facts(run), "environment")["device"] == "cuda"


def test_rows_of_different_devices_are_no_evidence_of_what_one_of_them_does(run: RunDirectory) -> None:
    run.config.write_text(CONFIG.replace("device: cpu", "device: cuda"))
    write_json(run.environment, {**ENVIRONMENT, "parameters": 370_000_000})
    on_gpu(run, 2)
    verdict = verdicts(load_facts(run))["GATE-GPUTRAIN-004"]
    told = "whether it applies is unknown: its attempts ran on different devices: cpu, cuda:0"
    assert (verdict.result, verdict.reason) == ("no_evidence", told)


@pytest.mark.parametrize(("seen", "offset"), [(0, 0), (100, 100), (299, 299), (300, 300), (301, 1), (600, 300)])
def test_a_run_that_goes_on_from_a_parent_begins_at_the_parents_place_in_the_data(
    tmp_path: Path, seen: int, offset: int
) -> None:
    run = create_run("child", tmp_path, CONFIG)
    write_json(run.environment, ENVIRONMENT)
    attempt = begin(run, step=10, parent="other")
    attempt.steps.write_bytes(step_row(10).encode())
    attempt.validations.write_bytes(validation_row(11, 6.4, tokens_seen=seen + 100).encode())
    environment = only(load_facts(run), "environment")
    assert (environment["first_step"], environment["epoch_offset_tokens"]) == (10, offset)


def test_an_audit_is_held_against_the_last_row_of_its_step_and_none_where_there_is_none() -> None:
    steps = table_of_rows([step_row(0, lr=0.125), step_row(1, lr=0.5), step_row(1, lr=0.25, grad_norm=math.nan)])
    rates: dict[str, Any] = {"lr_scheduled": 0.1, "lr_groups": [0.1], "lr_applied": [None], "grad_norm": 1.0}
    audits = [Audit(step=step, tensors=1, tensors_changed=1, **rates) for step in (7, 1, 0)]
    table = audits_table(audits, steps)
    assert table["logged_lr"].to_pylist() == [None, 0.25, 0.125]
    assert repr(table["logged_grad_norm"].to_pylist()) == "[None, nan, 1.0]"
    assert audits_table(audits, table_of_rows([]))["logged_lr"].to_pylist() == [None] * 3


def test_a_run_without_target_or_mode_makes_no_claim_about_them(run: RunDirectory) -> None:
    run.config.write_text(CONFIG.replace("mode: from_scratch, ", ""))
    unset = {**ENVIRONMENT, "target": None, "first_validation_cap": None}
    write_json(run.environment, unset)
    found = verdicts(load_facts(run))
    assert found["GATE-TRAIN-003"].reason == "applies to target_given true; this run's is false"
    assert [found[f"GATE-TRAIN-00{number}"].result for number in (3, 5, 9)] == [
        "not_applicable",
        "pass",
        "not_applicable",
    ]


@pytest.mark.parametrize(
    ("train", "from_scratch"),
    [
        ("{mode: from_scratch}", True),
        ("{mode: from_scratch, init: run-1}", False),
        ("{mode: finetune}", False),
        ("{steps: 4}", True),
        ("{steps: 4, init: run-1}", False),
    ],
)
def test_weights_of_another_run_are_not_from_scratch(run: RunDirectory, train: str, from_scratch: bool) -> None:
    run.config.write_text(f"name: small\ntrain: {train}\n")
    assert only(load_facts(run), "config")["from_scratch"] is from_scratch


@pytest.mark.parametrize(("per_epoch", "several"), [(1, False), (2, True), (None, True)])
def test_data_without_an_end_have_several_batches(run: RunDirectory, per_epoch: int | None, several: bool) -> None:
    write_json(run.environment, {**ENVIRONMENT, "steps_per_epoch": per_epoch})
    assert only(load_facts(run), "config")["several_batches"] is several


def test_a_number_of_an_event_that_was_not_finite_is_that_number_and_an_unknown_word_for_one_is_refused(
    run: RunDirectory,
) -> None:
    [attempt] = run.attempts()
    told = event_line(1, "sanity", 0, first_loss=None, first_loss_nonfinite="inf", last_loss=2)
    attempt.events.write_bytes(told)
    events = load_facts(run)["events"]
    assert (events["first_loss"].to_pylist(), events["last_loss"].to_pylist()) == ([math.inf], [2.0])
    attempt.events.write_bytes(told.replace(b'"inf"', b'"high"'))
    with pytest.raises(InputError, match="first_loss_nonfinite is 'high'; expected one of nan, inf, -inf"):
        load_facts(run)


def test_a_run_that_has_recorded_nothing_has_no_evidence(tmp_path: Path) -> None:
    run = create_run("empty", tmp_path, CONFIG)
    write_json(run.environment, ENVIRONMENT)
    results = {v.gate: v.result for v in judge(PRETRAIN, load_facts(run))}
    assert results.pop("GATE-TRAIN-009") == "pass"
    for gate in ("GATE-GPUTRAIN-004", "GATE-TRAIN-FLOPS", "GATE-TRAIN-SANITY"):
        assert results.pop(gate) == "not_applicable"
    assert set(results.values()) == {"no_evidence"}
