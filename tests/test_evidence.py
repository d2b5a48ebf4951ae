"""The seal of a run: what it says, and that nothing under it can be changed unseen. Every run here is a real one."""

import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import harness
from tests.attached import sealed_run
from trainwright import app, evidence, runs
from trainwright.config import RunConfig
from trainwright.contract.judge import Verdict
from trainwright.errors import InputError
from trainwright.evidence import verify
from trainwright.files import sha256_of_bytes, sha256_of_file
from trainwright.jsonfile import read_json
from trainwright.metrics import StepMetrics
from trainwright.outcome import Outcome
from trainwright.recorder import Silent, Watcher
from trainwright.rundir import ENVELOPE, RunDirectory
from trainwright.runs import RunResult
from trainwright.signing import KeyPair, make_key
from trainwright.statement import read_statement, verdict_record

CONTRACT = "training-loop-pretrain-v1"
TOY_STEPS, STOPPED_AT = 20, 12
SEALS = ("evidence.json", ENVELOPE)
DEEP = '{"predicate": {"environment": {"a": ' + "[" * 100_000


def execute(runs_dir: Path, watcher: Watcher | None = None, **changes: Any) -> RunResult:
    values = harness.config(**{"train__steps": TOY_STEPS, **changes})
    return runs.execute(RunConfig.parse(values), runs_dir=runs_dir, watcher=watcher)


def predicate(run: RunDirectory) -> Mapping[str, Any]:
    statement: Mapping[str, Any] = json.loads(run.evidence.read_text(), parse_constant=pytest.fail)
    found: Mapping[str, Any] = statement["predicate"]
    return found


def subjects(run: RunDirectory) -> dict[str, str]:
    return {subject["name"]: subject["digest"]["sha256"] for subject in read_json(run.evidence)["subject"]}


def sealed_files(run: RunDirectory) -> list[str]:
    return [*subjects(run), "evidence.json", "evidence.sha256"]


def forge(run: RunDirectory, change: Callable[[dict[str, Any]], None]) -> None:
    """Change evidence.json, give each file in it its new hash, and compute evidence.sha256 for it."""
    statement = read_json(run.evidence)
    change(statement)
    for subject in statement["subject"]:
        subject["digest"]["sha256"] = sha256_of_file(run.path / subject["name"])
    text = json.dumps(statement).encode()
    run.evidence.write_bytes(text)
    run.evidence_sha256.write_text(f"{sha256_of_bytes(text)}  evidence.json\n")


def flip(file: Path, at: float = 0.5) -> None:
    """Change one bit of one byte, at a share of the file's length; an empty file gains one."""
    data = bytearray(file.read_bytes() or b"\n")
    data[int(len(data) * at)] ^= 1
    file.write_bytes(data)


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Give a finished run under the shipped contract; its checkpoints were thinned out by retention."""
    folder = tmp_path_factory.mktemp("judged")
    values = harness.language_model(harness.token_shards(folder / "data"), contract=CONTRACT)
    result = runs.execute(RunConfig.parse(values), runs_dir=folder / "runs")
    assert result.outcome is Outcome.DONE
    return result.run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("stopped")
    values = harness.config(train__steps=TOY_STEPS)
    assert harness.finish(harness.start(harness.train_stopped_after, STOPPED_AT, values, folder)) == 143
    return harness.only_run(folder)


@pytest.fixture
def copy(judged: RunDirectory, tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(judged.path, tmp_path / judged.id)))


@pytest.fixture(scope="module")
def once_small(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Give a run with every kind of record under a contract of five gates, which is soon judged again."""
    return sealed_run(tmp_path_factory.mktemp("small"), checkpoint__every=5, checkpoint__keep_last=1)


@pytest.fixture
def small(once_small: RunDirectory, tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(once_small.path, tmp_path / once_small.id)))


# -- what is sealed --------------------------------------------------------------------------------------------------


def test_a_finished_run_is_sealed_and_its_evidence_holds(judged: RunDirectory) -> None:
    assert verify(judged.path) == []
    statement = read_json(judged.evidence)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "urn:trainwright:run-evidence:1"


def test_every_record_of_a_run_is_a_subject_and_nothing_else_is(judged: RunDirectory) -> None:
    there = {str(file.relative_to(judged.path)) for file in judged.path.rglob("*") if file.is_file()}
    tensors = {name for name in there if name.endswith((".safetensors", "state.json"))}
    assert subjects(judged).keys() == there - tensors - {"evidence.json", "evidence.sha256", "report.html"}
    assert all(sha256_of_file(judged.path / name) == value for name, value in subjects(judged).items())
    assert any(name.endswith("retired.json") for name in subjects(judged))


def test_evidence_sha256_is_what_sha256sum_checks(judged: RunDirectory) -> None:
    command = ["sha256sum", "--check", "--strict", "evidence.sha256"]
    assert subprocess.run(command, cwd=judged.path, capture_output=True, check=False).returncode == 0


def test_the_predicate_says_what_the_records_come_to(judged: RunDirectory) -> None:
    said, environment = predicate(judged), read_json(judged.environment)
    assert said["run"] == judged.id
    assert (said["result"]["outcome"], said["result"]["exit_code"]) == ("done", 0)
    assert (said["contract"]["id"], said["contract"]["sha256"]) == (CONTRACT, sha256_of_file(judged.contract))
    fields = ("gate", "result", "bound", "headroom_percent", "reason")
    recorded = [[verdict[name] for name in fields] for verdict in read_json(judged.result)["verdicts"]]
    assert [[verdict[name] for name in fields] for verdict in said["verdicts"]] == [
        verdict for verdict in recorded if not verdict[4].startswith("not decided here")
    ]
    assert len(said["verdicts"]) + len(said["not_decided"]) == len(recorded)
    assert said["environment"]["packages"] == environment["packages"]
    assert said["environment"]["hashes"]["data"] == environment["hashes"]["data"]


def test_the_statistics_are_those_of_the_rows_with_the_first_step_apart(judged: RunDirectory) -> None:
    rows, said = judged.read_steps(), predicate(judged)["statistics"]
    steady = sorted(row.wall_ms for row in rows[1:])
    assert said["wall_ms"]["first_steps"] == {"0": rows[0].wall_ms}
    assert said["wall_ms"]["median"] == steady[len(steady) // 2]
    assert (said["wall_ms"]["minimum"], said["wall_ms"]["maximum"]) == (steady[0], steady[-1])
    assert (said["wall_ms"]["rows"], said["wall_ms"]["not_measured"]) == (len(rows) - 1, 0)
    assert said["train_loss"]["minimum"] == min(row.train_loss for row in rows)
    assert said["train_loss"]["difference"] == rows[-1].train_loss - rows[0].train_loss


def test_gates_that_one_run_cannot_decide_are_listed_with_the_reason(judged: RunDirectory) -> None:
    for entry in predicate(judged)["not_decided"]:
        assert entry["kind"] in {"pair", "probe"}
        assert entry["reason"].startswith("not decided here")
    assert predicate(judged)["not_decided"]


def test_a_run_whose_gate_fails_is_sealed_with_that_verdict(tmp_path: Path) -> None:
    values = harness.language_model(harness.token_shards(tmp_path / "data"), contract=CONTRACT, train__target=0.001)
    result = runs.execute(RunConfig.parse(values), runs_dir=tmp_path / "runs")
    assert result.exit_code == 3
    assert verify(result.run.path) == []
    assert "fail" in {verdict["result"] for verdict in predicate(result.run)["verdicts"]}


def test_an_aborted_run_is_sealed_and_a_loss_that_is_no_number_is_null_with_its_name(tmp_path: Path) -> None:
    result = execute(tmp_path, model__nan_at_step=15)
    assert result.exit_code == 4
    assert verify(result.run.path) == []
    loss = predicate(result.run)["statistics"]["train_loss"]
    assert (loss["last"], loss["last_nonfinite"], loss["not_finite"]) == (None, "nan", 1)
    assert (loss["difference"], loss["difference_nonfinite"]) == (None, "nan")


def test_rows_without_wall_ms_are_counted_and_measured_nowhere(judged: RunDirectory, copy: RunDirectory) -> None:
    for file in (copy.steps, copy.path / "attempts" / "1" / "steps.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "wall_ms"}) + "\n" for row in rows))
    evidence.seal(copy)
    said = predicate(copy)["statistics"]["wall_ms"]
    assert (said["rows"], said["median"], said["not_measured"]) == (0, None, len(judged.read_steps()))


def test_a_stopped_run_is_sealed_and_its_resume_replaces_the_seal(stopped: RunDirectory, tmp_path: Path) -> None:
    assert verify(stopped.path) == []
    assert predicate(stopped)["result"]["exit_code"] == 143
    run = RunDirectory(Path(shutil.copytree(stopped.path, tmp_path / stopped.id)))
    assert app.resume(run.path).outcome is Outcome.DONE
    assert verify(run.path) == []
    assert predicate(run)["result"]["outcome"] == "done"
    assert subjects(run).keys() > subjects(stopped).keys()
    assert predicate(run)["statistics"]["wall_ms"]["first_steps"].keys() == {"0", str(STOPPED_AT + 1)}


def test_a_stopped_run_that_was_taken_up_and_killed_has_no_evidence_that_holds(
    stopped: RunDirectory, tmp_path: Path
) -> None:
    run = RunDirectory(Path(shutil.copytree(stopped.path, tmp_path / stopped.id)))
    child = harness.start(harness.resume_killed_at, "step", 2, tmp_path)
    assert harness.finish(child) == -signal.SIGKILL
    problems = verify(run.path)
    assert "attempts/2/start.json: was added after the run was sealed" in problems


def test_the_report_is_no_part_of_the_seal(copy: RunDirectory) -> None:
    copy.report.write_text("anything")
    assert verify(copy.path) == []


class InTheWay(Silent):
    """Puts a folder where evidence.json is to be written."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir

    def on_step(self, row: StepMetrics) -> None:
        if row.step == 1:
            harness.only_run(self._runs_dir).evidence.mkdir()


def test_a_run_that_cannot_be_sealed_says_so_beside_how_it_ended_and_is_sealed_by_a_resume(tmp_path: Path) -> None:
    result = execute(tmp_path, InTheWay(tmp_path))
    assert result.exit_code == 7
    assert result.why.endswith("the run's records cannot be written: Is a directory")
    assert f"{TOY_STEPS} steps" in result.why
    result.run.evidence.rmdir()
    assert runs.resume(result.run).outcome is Outcome.DONE
    assert verify(result.run.path) == []


# -- what is found ---------------------------------------------------------------------------------------------------


def test_one_changed_byte_in_any_sealed_file_is_found_and_that_file_alone_is_named(small: RunDirectory) -> None:
    names = sealed_files(small)
    assert len(names) >= 15
    assert any(name.endswith("retired.json") for name in names)
    for name in names:
        file = small.path / name
        before = file.read_bytes()
        flip(file)
        assert file.read_bytes() != before
        hashes = [line for line in verify(small.path) if "SHA-256" in line or line.startswith("evidence.sha256")]
        assert [line.partition(": ")[0] for line in hashes] == [name]
        file.write_bytes(before)
    assert verify(small.path) == []


@pytest.mark.parametrize("tenths", range(10))
def test_a_changed_byte_anywhere_in_evidence_json_is_found_and_named(copy: RunDirectory, tenths: int) -> None:
    flip(copy.evidence, tenths / 10)
    assert verify(copy.path)[0] == "evidence.json: its SHA-256 is not the one in evidence.sha256"


@pytest.mark.parametrize("byte", [0, 30, -2, -1])
def test_any_part_of_evidence_sha256_that_was_changed_is_found_and_named(copy: RunDirectory, byte: int) -> None:
    data = bytearray(copy.evidence_sha256.read_bytes())
    data[byte] ^= 1
    copy.evidence_sha256.write_bytes(data)
    assert [line.partition(": ")[0] for line in verify(copy.path)] == ["evidence.sha256"]


def test_any_removed_file_is_found_and_named(small: RunDirectory) -> None:
    for name in sealed_files(small):
        file = small.path / name
        before = file.read_bytes()
        file.unlink()
        assert name in {line.partition(": ")[0] for line in verify(small.path)}
        file.write_bytes(before)


@pytest.mark.parametrize(
    "name",
    ["attempts/2/start.json", "attempts/2/steps.jsonl", "checkpoints/step-00000070.a1/manifest.json"],
)
def test_an_added_record_is_found_and_named(copy: RunDirectory, name: str) -> None:
    file = copy.path / name
    file.parent.mkdir(parents=True)
    shutil.copy(copy.path / "attempts" / "1" / "start.json", file)
    assert f"{name}: was added after the run was sealed" in verify(copy.path)


def test_a_row_that_was_edited_with_its_hash_is_caught_by_evidence_sha256(copy: RunDirectory) -> None:
    before = sha256_of_file(copy.steps)
    replace_in(copy.steps, '"train_loss":', '"train_loss":0')
    replace_in(copy.evidence, before, sha256_of_file(copy.steps))
    assert "evidence.json: its SHA-256 is not the one in evidence.sha256" in verify(copy.path)


def test_a_joined_row_that_was_edited_with_every_hash_is_caught_by_its_attempt(copy: RunDirectory) -> None:
    replace_in(copy.steps, '"grad_norm":', '"grad_norm":1')
    forge(copy, lambda statement: None)
    assert verify(copy.path) == ["steps.jsonl: is not what its attempts come to"]


def lies() -> Iterator[Any]:
    def case(name: str, *keys: Any, value: Any, told: str) -> Any:
        return pytest.param(keys, value, told, id=name)

    yield case("result", "verdicts", 0, "result", value="fail", told='result: "fail" is recorded, the files say "pass"')
    yield case("figure", "verdicts", 0, "figures", value={"made_up": 1.0}, told="figures made_up: 1.0 is recorded")
    yield case("bound", "verdicts", 0, "bound", value="0 = 0", told='bound: "0 = 0" is recorded')
    yield case("words", "verdicts", 0, "reason", value="by far", told='reason: "by far" is recorded')
    yield case("gate", "verdicts", 0, "gate", value="GATE-X-001", told="GATE-X-001: is no gate")
    yield case("time", "statistics", "wall_ms", "median", value=1.0, told="statistics wall_ms median: 1.0 is recorded")
    yield case("host", "environment", "host", "name", value="h", told='environment host name: "h" is recorded')
    yield case("end", "result", "exit_code", value=4, told="result exit_code: 4 is recorded, the files say 0")
    yield case("contract", "contract", "version", value="9.0.0", told='contract version: "9.0.0" is recorded')


@pytest.mark.parametrize(("keys", "value", "told"), list(lies()))
def test_what_was_typed_by_hand_into_the_predicate_is_caught_by_judging_again(
    copy: RunDirectory, keys: tuple[Any, ...], value: Any, told: str
) -> None:
    def change(statement: dict[str, Any]) -> None:
        place = statement["predicate"]
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    forge(copy, change)
    problems = verify(copy.path)
    assert any(told in line for line in problems), problems
    assert not any("SHA-256" in line for line in problems)


@pytest.mark.parametrize(
    ("name", "value"),
    [("best_validation", 1e-4), ("step", 999), ("attempts", 7), ("parent", "nobody"), ("why", "independently audited")],
)
def test_an_end_that_was_typed_into_result_json_is_caught_by_the_rows(
    copy: RunDirectory, name: str, value: Any
) -> None:
    typed_into_the_result(copy, lambda result: result.update({name: value}))
    problems = verify(copy.path)
    assert any(line.startswith(f"result.json: {name}: ") for line in problems), problems


def test_another_outcome_typed_with_its_exit_code_is_caught(copy: RunDirectory) -> None:
    typed_into_the_result(copy, lambda result: result.update(outcome="terminated", exit_code=143))
    assert verify(copy.path) == ['result.json: outcome: "terminated" is recorded, the files say "done"']
    typed_into_the_result(copy, lambda result: result.update(outcome="superb"))
    assert any("'superb' is no outcome of a run" in line for line in verify(copy.path))


def test_words_of_a_verdict_that_were_typed_everywhere_are_caught_by_the_version_that_chose_them(
    copy: RunDirectory,
) -> None:
    typed_into_the_result(copy, lambda result: result["verdicts"][0].update(reason="by far"))
    forge(copy, lambda statement: statement["predicate"]["verdicts"][0].update(reason="by far"))
    assert any('reason: "by far" is recorded' in line for line in verify(copy.path))


def typed_into_the_result(run: RunDirectory, change: Callable[[dict[str, Any]], None]) -> None:
    """Change result.json, what evidence.json says of it, and every hash."""
    result = read_json(run.result)
    change(result)
    run.result.write_text(json.dumps(result))
    said = {name: result[name] for name in ("outcome", "exit_code", "why", "step", "attempts", "parent")}
    forge(run, lambda statement: statement["predicate"]["result"].update(said))


def test_weights_that_were_changed_or_are_gone_are_named_unless_their_checkpoint_is_retired(copy: RunDirectory) -> None:
    newest = max(path for path in copy.checkpoints.glob("step-*") if not (path / "retired.json").exists())
    told = f"checkpoints/{newest.name}/model.safetensors"
    flip(newest / "model.safetensors")
    assert verify(copy.path) == [f"{told}: was changed: its SHA-256 is not the one in its manifest"]
    (newest / "model.safetensors").unlink()
    assert verify(copy.path) == [f"{told}: is missing"]


def test_a_verdict_left_out_is_missed_by_name(copy: RunDirectory) -> None:
    gone = predicate(copy)["verdicts"][0]["gate"]
    forge(copy, lambda statement: statement["predicate"]["verdicts"].pop(0))
    assert verify(copy.path) == [f"{gone}: is not recorded"]


def test_verdicts_and_outcome_typed_into_every_file_are_caught(tmp_path: Path) -> None:
    """The whole lie: result.json says done and pass, evidence.json the same, and every hash fits."""
    values = harness.language_model(harness.token_shards(tmp_path / "data"), contract=CONTRACT, train__target=0.001)
    run = runs.execute(RunConfig.parse(values), runs_dir=tmp_path / "runs").run
    result = {**read_json(run.result), "outcome": "done", "exit_code": 0}
    failing = [verdict["gate"] for verdict in result["verdicts"] if verdict["result"] == "fail"]
    for verdict in result["verdicts"]:
        verdict["result"] = "pass" if verdict["result"] == "fail" else verdict["result"]
    run.result.write_text(json.dumps(result))

    def change(statement: dict[str, Any]) -> None:
        statement["predicate"]["result"] |= {"outcome": "done", "exit_code": 0}
        for verdict in statement["predicate"]["verdicts"]:
            verdict["result"] = "pass" if verdict["gate"] in failing else verdict["result"]

    forge(run, change)
    problems = verify(run.path)
    assert failing
    for gate in failing:
        assert f'{gate} result: "pass" is recorded, the files say "fail"' in problems
        assert f'result.json: {gate} result: "pass" is recorded, the files say "fail"' in problems
        assert f"{gate}: does not hold, and result.json says done" in problems


def test_a_subject_outside_the_run_is_named_and_never_opened(copy: RunDirectory, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # whoever opened it would wait for ever
    statement = read_json(copy.evidence)
    statement["subject"].append({"name": "../pipe", "digest": {"sha256": "0" * 64}})
    copy.evidence.write_text(json.dumps(statement))
    assert "../pipe: is missing, or no record of a run" in verify(copy.path)


def test_a_record_that_is_no_regular_file_is_named_and_never_opened(small: RunDirectory) -> None:
    for file in (small.contract, small.steps, small.path / "attempts" / "1" / "devices.csv"):
        before = file.read_bytes() if file.exists() else None
        file.unlink(missing_ok=True)
        os.mkfifo(file)
        assert f"{file.relative_to(small.path)}: is no regular file" in verify(small.path)
        file.unlink()
        if before is not None:
            file.write_bytes(before)
    assert verify(small.path) == []


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"_type": 1}', "\xff", DEEP])
def test_an_evidence_file_that_is_none_is_a_problem_and_no_crash(copy: RunDirectory, text: str) -> None:
    copy.evidence.write_bytes(text.encode("latin-1"))
    assert all(line.startswith("evidence.json: ") for line in verify(copy.path))
    assert len(verify(copy.path)) == 2


@pytest.mark.parametrize("section", ["verdicts", "not_decided"])
@pytest.mark.parametrize("gate", [None, 3])
def test_a_verdict_that_names_no_gate_is_no_evidence(small: RunDirectory, section: str, gate: Any) -> None:
    forge(small, lambda statement: statement["predicate"][section][0].update(gate=gate))
    with pytest.raises(InputError, match=r"^evidence\.json: is no evidence of a run: a verdict in it names no gate$"):
        read_statement(small.evidence)
    assert verify(small.path) == ["evidence.json: is no evidence of a run: a verdict in it names no gate"]


def test_figures_that_differ_in_the_last_bit_are_the_same(copy: RunDirectory) -> None:
    def change(statement: dict[str, Any]) -> None:
        loss = statement["predicate"]["statistics"]["train_loss"]
        loss["last"] *= 1 + 2**-52

    forge(copy, change)
    assert verify(copy.path) == []


def test_a_run_killed_between_its_last_record_and_its_seal_is_sealed_when_it_is_next_resumed(tmp_path: Path) -> None:
    run = execute(tmp_path).run
    run.evidence.unlink()
    run.evidence_sha256.unlink()
    assert verify(run.path)
    with pytest.raises(InputError, match="has ended"):
        runs.resume(run)
    assert verify(run.path) == []


def test_each_verdict_has_a_sentence_made_of_what_was_measured(judged: RunDirectory) -> None:
    for verdict in predicate(judged)["verdicts"]:
        measured = [name for name, value in verdict["figures"].items() if value is not None]
        assert all(f"{name} " in verdict["sentence"] for name in measured)
        assert measured or verdict["sentence"] == verdict["reason"]
        assert not measured or f"of {verdict['rows']} row" in verdict["sentence"]
        assert not measured or f"required: {verdict['bound']}" in verdict["sentence"]


def test_a_sentence_says_figure_rows_bound_and_headroom() -> None:
    verdict = Verdict(
        gate="GATE-X-1",
        claim="x",
        kind="run",
        result="pass",
        reason="",
        figures={"median_ms": 264.7, "other": None},
        bound="median_ms < 500",
        unit="ms",
        headroom_percent=47.06,
        rows=30,
        on_fail="fail",
        ship_blocking=False,
        optional=False,
    )
    said = "median_ms 264.7 ms of 30 rows; required: median_ms < 500; headroom 47.1 %"
    assert verdict_record(verdict)["sentence"] == said


# -- signed ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return make_key(tmp_path_factory.mktemp("keys") / "evidence.pem")


@pytest.fixture(scope="module")
def once_signed(keys: KeyPair, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Give a run that was trained by someone who has a key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWRIGHT_EVIDENCE_KEY", str(keys.private))
        return execute(tmp_path_factory.mktemp("signed")).run


@pytest.fixture
def signed(once_signed: RunDirectory, tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(once_signed.path, tmp_path / once_signed.id)))


def test_with_a_key_the_seal_is_an_envelope_whose_payload_is_the_statement(signed: RunDirectory, keys: KeyPair) -> None:
    envelope = read_json(signed.path / ENVELOPE)
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert base64.b64decode(envelope["payload"]) == signed.evidence.read_bytes()
    assert not signed.evidence_sha256.exists()
    assert verify(signed.path, public=keys.public) == []


def test_one_changed_byte_in_any_file_of_a_signed_run_is_found_and_that_file_alone_is_named(
    signed: RunDirectory, keys: KeyPair
) -> None:
    names = list(subjects(signed))
    assert len(names) >= 8
    for name, at in [*((name, 0.5) for name in names), *((n, at) for n in SEALS for at in (0.1, 0.5, 0.9))]:
        file = signed.path / name
        before = file.read_bytes()
        flip(file, at)
        problems = verify(signed.path, public=keys.public)
        assert problems[0].startswith(f"{name}: "), problems
        assert name in SEALS or not any("SHA-256" in line for line in problems[1:])
        file.write_bytes(before)
    assert verify(signed.path, public=keys.public) == []


def test_without_a_public_key_a_signature_is_not_checked_and_that_is_a_problem(
    signed: RunDirectory, keys: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = f"{ENVELOPE}: its signature was not checked: no public key was given; give the signer's by --key FILE.pub"
    assert verify(signed.path) == [told]
    monkeypatch.setenv("TRAINWRIGHT_EVIDENCE_KEY", str(keys.private))
    assert verify(signed.path) == []


def test_a_signature_by_another_key_does_not_hold(signed: RunDirectory, keys: KeyPair, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other.pem")
    (problem,) = verify(signed.path, public=other.public)
    assert problem.startswith(f"{ENVELOPE}: is signed by the key {keys.key_id}, and ")
    evidence.seal(signed, key=other.private)
    assert verify(signed.path, public=other.public) == []
    (problem,) = verify(signed.path, public=keys.public)
    assert problem.startswith(f"{ENVELOPE}: is signed by the key {other.key_id}, and ")


def test_a_statement_swapped_in_envelope_and_file_is_caught_by_the_signature(
    signed: RunDirectory, keys: KeyPair
) -> None:
    envelope = read_json(signed.path / ENVELOPE)
    text = signed.evidence.read_text().replace('"host"', '"ghost"', 1)
    envelope["payload"] = base64.b64encode(text.encode()).decode()
    signed.evidence.write_text(text)
    (signed.path / ENVELOPE).write_text(json.dumps(envelope, indent=2) + "\n")
    problems = verify(signed.path, public=keys.public)
    assert problems[0] == f"{ENVELOPE}: its signature is not one that the key {keys.key_id} made of its payload"


def test_a_signature_that_was_taken_off_is_missed_by_whoever_gives_the_key(signed: RunDirectory, keys: KeyPair) -> None:
    (signed.path / ENVELOPE).unlink()
    evidence.seal(signed)
    assert verify(signed.path) == []
    (problem,) = verify(signed.path, public=keys.public)
    assert problem.startswith(f"{ENVELOPE}: is missing: the evidence is not signed")


def test_a_run_has_one_seal_and_a_later_one_of_the_other_kind_replaces_it(signed: RunDirectory, keys: KeyPair) -> None:
    evidence.seal(signed)
    assert (signed.evidence_sha256.exists(), (signed.path / ENVELOPE).exists()) == (True, False)
    before = signed.evidence_sha256.read_bytes()
    evidence.seal(signed, key=keys.private)
    assert (signed.evidence_sha256.exists(), (signed.path / ENVELOPE).exists()) == (False, True)
    signed.evidence_sha256.write_bytes(before)
    assert verify(signed.path, public=keys.public) == [f"evidence.sha256: stands beside {ENVELOPE}; a run has one seal"]


def test_the_private_key_enters_no_file_of_a_run(once_signed: RunDirectory, keys: KeyPair) -> None:
    secret = keys.private.read_text().splitlines()[1].encode()
    for file in once_signed.path.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert secret not in data, file
            assert secret not in base64.b64decode(read_json(file)["payload"]) if file.name == ENVELOPE else True


class OpensKey(Silent):
    """Lets others read a private key once the run trains."""

    def __init__(self, key: Path) -> None:
        self._key = key

    def on_step(self, row: StepMetrics) -> None:
        self._key.chmod(0o644)


def test_a_key_that_others_can_read_is_refused_before_a_run_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_key(tmp_path / "evidence.pem")
    made.private.chmod(0o644)
    monkeypatch.setenv("TRAINWRIGHT_EVIDENCE_KEY", str(made.private))
    with pytest.raises(InputError, match=f"chmod 600 {made.private}"):
        execute(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_key_that_others_can_read_at_the_end_signs_nothing_and_the_run_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_key(tmp_path / "evidence.pem")
    monkeypatch.setenv("TRAINWRIGHT_EVIDENCE_KEY", str(made.private))
    result = execute(tmp_path / "runs", OpensKey(made.private))
    assert result.exit_code == 7
    assert f"chmod 600 {made.private}" in result.why
    assert not result.run.evidence.exists()
    made.private.chmod(0o600)
    assert runs.resume(result.run).outcome is Outcome.DONE
    assert verify(result.run.path) == []
    assert (result.run.path / ENVELOPE).exists()


def test_to_resume_a_signed_run_that_has_ended_gives_its_changed_files_no_new_signature(
    signed: RunDirectory, keys: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_EVIDENCE_KEY", str(keys.private))
    flip(signed.validations)
    with pytest.raises(InputError, match="has ended"):
        runs.resume(signed)
    assert any(problem.startswith("validations.jsonl: was changed") for problem in verify(signed.path))
