import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from trainwright.cli import data as command
from trainwright.data import prepare as module
from trainwright.data import shards
from trainwright.data import tokenizer as tokenizers
from trainwright.data.prepare import PrepareRequest, prepare
from trainwright.data.tokenizer import END_OF_DOCUMENT
from trainwright.errors import DataError, InputError


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    source = tmp_path / "corpus"
    source.mkdir()
    for n in range(120):
        (source / f"d{n:03}.py").write_text(f"def f{n}(x):\n    return x + {n}\n")
    (source / "copy.py").write_text("def f7(x):\n    return x + 7\n")
    return source


def request(source: Path, **options: Any) -> PrepareRequest:
    return PrepareRequest(**{"input": source, "out": source.parent / "out", "vocabulary_size": 300, **options})


def texts(out: Path, split: shards.Split) -> list[str]:
    """The documents of one side, decoded from the shards."""
    tokenizer = tokenizers.load(out / "tokenizer.json")
    ids = np.concatenate(list(getattr(shards.load(out), split).values()))
    borders = np.flatnonzero(ids == tokenizers.end_of_document_id(tokenizer))
    return [
        tokenizer.decode([i for i in part.tolist() if i != tokenizers.end_of_document_id(tokenizer)])
        for part in np.split(ids, borders)
    ]


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def word_tokenizer(path: Path, size: int) -> Path:
    vocabulary = {END_OF_DOCUMENT: 0, **{f"w{n}": n for n in range(1, size)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path.write_text(tokenizer.to_str())
    return path


def test_train_and_validation_hold_every_document_once_and_share_none(corpus: Path) -> None:
    manifest = prepare(request(corpus))
    train, validation = (texts(corpus.parent / "out", split) for split in module.SPLITS)
    assert train
    assert validation
    assert not set(train) & set(validation)
    assert sorted(train + validation) == sorted({path.read_text() for path in corpus.iterdir()})
    assert (manifest.documents, manifest.documents_identical) == (120, 1)


def test_the_side_of_a_document_does_not_depend_on_the_share_or_its_neighbours(corpus: Path) -> None:
    prepare(request(corpus))
    held_out = set(texts(corpus.parent / "out", "validation"))
    prepare(request(corpus, share=0.6))
    fewer = set(texts(corpus.parent / "out", "validation"))
    assert fewer
    assert fewer <= held_out


def test_the_manifest_counts_what_was_written(corpus: Path) -> None:
    manifest = prepare(request(corpus, shard_tokens=500))
    out = corpus.parent / "out"
    assert shards.read_manifest(out) == manifest
    assert manifest.text_bytes == sum(len(text) for text in {path.read_bytes() for path in corpus.iterdir()})
    assert sum(manifest.tokens.values()) == sum(path.stat().st_size for path in out.glob("*.bin")) // 2
    assert {entry.tokens for entry in manifest.shards if entry.split == "train"} > {500}
    assert 257 < manifest.vocabulary_size == shards.load(out).vocabulary_size <= 300
    shards.load(out).verify_hashes()


def test_an_equal_request_gives_equal_bytes_and_nothing_of_an_earlier_one_stays(corpus: Path) -> None:
    prepare(request(corpus))
    out = corpus.parent / "out"
    first = contents(out)
    prepare(request(corpus, shard_tokens=100))
    assert len(contents(out)) > len(first)
    prepare(request(corpus))
    assert contents(out) == first


def test_tail_holds_out_the_last_tenth_of_the_characters(tmp_path: Path) -> None:
    text = "".join(chr(97 + n * n % 26) for n in range(999)) + "\n"
    (tmp_path / "play.txt").write_text(text)
    manifest = prepare(request(tmp_path / "play.txt", tokenizer="characters", split="tail"))
    assert texts(tmp_path / "out", "train") == [text[:900]]
    assert texts(tmp_path / "out", "validation") == [text[900:]]
    assert manifest.tokens == {"train": 900, "validation": 100}
    assert manifest.vocabulary_size == len(set(text)) + 1


def test_a_document_longer_than_a_piece_decodes_to_itself(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_CHARACTERS", 7)
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 50)
    prepare(request(corpus))
    found = [text for split in module.SPLITS for text in texts(corpus.parent / "out", split)]
    assert sorted(found) == sorted({path.read_text() for path in corpus.iterdir()})


@pytest.mark.parametrize(
    ("size", "dtype"), [(50_257, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (100_277, "uint32")]
)
def test_the_largest_token_of_any_vocabulary_survives(size: int, dtype: str, tmp_path: Path) -> None:
    given_one = word_tokenizer(tmp_path / "words.json", size)
    (tmp_path / "text.txt").write_text(f"w1 w2 w{size - 1} w3 " * 10)
    manifest = prepare(request(tmp_path / "text.txt", tokenizer=given_one, split="tail"))
    assert (manifest.vocabulary_size, manifest.dtype) == (size, dtype)
    assert shards.largest_token(shards.load(tmp_path / "out").train["train-00000.bin"]) == size - 1
    assert (tmp_path / "out/tokenizer.json").read_bytes() == given_one.read_bytes()


def test_files_jsonl_and_parquet_of_equal_documents_give_equal_shards(corpus: Path) -> None:
    rows = [path.read_text() for path in sorted(corpus.iterdir())]
    lines, table = corpus.parent / "c.jsonl", corpus.parent / "c.parquet"
    lines.write_text("".join(json.dumps({"body": row}) + "\n" for row in rows))
    parquet.write_table(pa.table({"body": rows}), table)
    manifests = [prepare(request(source, field="body")) for source in (corpus, lines, table)]
    assert manifests[0].shards == manifests[1].shards == manifests[2].shards


def test_progress_ends_at_its_total(corpus: Path) -> None:
    seen: list[tuple[int, int]] = []
    prepare(request(corpus), lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == 2 * sum(path.stat().st_size for path in corpus.iterdir())


def test_a_failure_leaves_the_earlier_folder_as_it_was(corpus: Path) -> None:
    prepare(request(corpus))
    before = contents(corpus.parent / "out")
    given_one = corpus.parent / "characters.json"
    given_one.write_text(tokenizers.of_characters("abc").to_str())
    with pytest.raises(DataError, match="cannot encode"):
        prepare(request(corpus, tokenizer=given_one))
    assert contents(corpus.parent / "out") == before


CRASHES = """
import os, shutil, signal, sys
from pathlib import Path
from trainwright.data.prepare import PrepareRequest, prepare

how, source, start, results = sys.argv[1], *map(Path, sys.argv[2:])
for moment in range(100):
    out, left = results / f"{moment:02}", moment
    shutil.copytree(start, out)

    def hook(event, arguments):
        global left
        if event in {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}:
            left -= 1
            if left == -1 and how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if left == -1:
                raise OSError(28, "no space left")

    child = os.fork()
    if not child:
        sys.addaudithook(hook)
        try:
            prepare(PrepareRequest(input=source, out=out, vocabulary_size=270))
        except Exception:
            os._exit(1)
        os._exit(0 if left >= 0 else 1)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


@pytest.mark.parametrize("how", ["kill", "full disk"])
def test_a_folder_cut_short_at_any_moment_is_the_old_one_or_the_new_one_or_refused(corpus: Path, how: str) -> None:
    start, results = corpus.parent / "out", corpus.parent / "results"
    old = prepare(request(corpus))
    results.mkdir()
    subprocess.run([sys.executable, "-c", CRASHES, how, corpus, start, results], check=True)
    new = prepare(request(corpus, vocabulary_size=270))
    outcomes = set()
    for out in sorted(results.iterdir()):
        try:
            found = shards.load(out)
            found.verify_hashes()
            outcomes.add("old" if found.manifest == old else "new" if found.manifest == new else "mixed")
        except DataError as error:
            outcomes.add(str(error).partition(": ")[2].partition(";")[0])
        assert prepare(request(corpus, vocabulary_size=270, out=out)) == new
        assert contents(out) == contents(start)
    assert outcomes == {"old", "new", "preparing this folder was interrupted"}


def test_documents_that_change_between_the_passes_are_noticed(corpus: Path) -> None:
    total = sum(path.stat().st_size for path in corpus.iterdir())

    def change(done: int, _total: int) -> None:
        if done == total:
            (corpus / "d119.py").write_text("changed, and longer than it was before: it holds another text")

    with pytest.raises(DataError, match="changed while they were read"):
        prepare(request(corpus), change)


def test_foreign_shards_are_never_overwritten(corpus: Path) -> None:
    out = corpus.parent / "out"
    out.mkdir()
    (out / "train-00000.bin").write_bytes(b"mine")
    with pytest.raises(InputError, match="not prepared here"):
        prepare(request(corpus))
    assert contents(out) == {"train-00000.bin": b"mine"}


def test_the_output_below_the_input_is_not_read(corpus: Path) -> None:
    options = {"out": corpus / "out", "glob": "*"}
    first = prepare(request(corpus, **options))
    assert prepare(request(corpus, **options)) == first
    assert first.documents == 120


def test_one_document_cannot_be_divided_by_documents(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("x = 1\n")
    with pytest.raises(DataError, match=r"all of the 1 documents fell on the .*--split tail"):
        prepare(request(tmp_path / "one.py"))
    assert not list((tmp_path / "out").iterdir())


def test_an_input_without_one_usable_document_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' * 3)
    with pytest.raises(DataError, match=r"no document is left \(3 no text in field 'content'"):
        prepare(request(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
    "options", [{"validation_share": 0.0}, {"validation_share": 1.0}, {"share": 0.0}, {"share": 1.1}, {"split": "x"}]
)
def test_a_number_out_of_range_is_refused_with_its_name(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=next(iter(options)).replace("_", " ")):
        request(tmp_path, **options)


def test_the_command_prints_one_json_document_and_nothing_else(corpus: Path) -> None:
    out = corpus.parent / "out"
    arguments = ["prepare", "--input", str(corpus), "--out", str(out), "--vocab-size", "300", "--json"]
    result = CliRunner().invoke(command.app, arguments)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads((out / "manifest.json").read_bytes())
    assert result.stderr == ""


def test_the_command_sums_up_what_the_manifest_says(corpus: Path) -> None:
    arguments = ["prepare", "--input", str(corpus), "--out", str(corpus.parent / "out"), "--vocab-size", "300"]
    result = CliRunner().invoke(command.app, arguments)
    assert result.exit_code == 0
    assert "documents   120" in result.stdout
    assert "1 identical" in result.stdout


def test_importing_the_command_imports_nothing_heavy() -> None:
    heavy = "torch numpy pydantic duckdb sqlalchemy tokenizers pyarrow msgspec"
    code = f"import sys, trainwright.cli.data; sys.exit(str(set('{heavy}'.split()) & set(sys.modules) or ''))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr.strip() == ""
