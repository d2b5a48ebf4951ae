"""Every token of shards told once, against sums written out; and the bytes that tokens stand for."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from torch.nn import functional as F  # noqa: N812  torch's own convention

from tests import texts
from trainwright.data import shards
from trainwright.data import tokenizer as tokenizers
from trainwright.data.prepare import PrepareRequest, prepare
from trainwright.errors import DataError, InputError
from trainwright.models import token_evaluation
from trainwright.models.token_evaluation import TokenText, all_of, held_out, score
from trainwright.models.token_model import DataOptions, TokenModelOptions

PARTS = [np.arange(length, dtype=np.uint16) * 7 % texts.VOCABULARY for length in (16 * 3 + 1, 40, 17, 5, 1)]
TOLD = sum(len(part) - 1 for part in PARTS)


def one_by_one(decoder: Any, parts: list[Any]) -> list[float]:
    """Give the loss of each token by a pass of its own over what stands before it in its window."""
    found = []
    for part in parts:
        for place in range(1, len(part)):
            start = (place - 1) // decoder.shape.context * decoder.shape.context
            logits = decoder(torch.from_numpy(part[start:place].astype(np.int64))[None])[0, -1]
            found.append(F.cross_entropy(logits, torch.tensor(int(part[place]))).item())
    return found


@pytest.mark.parametrize("model", [texts.TINY_LM, texts.TINY_MAMBA2])
@torch.no_grad()
def test_every_token_but_the_first_of_a_shard_is_told_once(model: TokenModelOptions, tmp_path: Path) -> None:
    decoder = texts.build(texts.tokens(tmp_path), model).decoder.eval()
    bytes_v = np.arange(texts.VOCABULARY)
    found = score(decoder, TokenText({}, PARTS, bytes_v))
    losses = one_by_one(decoder, PARTS)
    assert (found.loss.n, len(losses)) == (TOLD, TOLD)
    assert found.loss.value == pytest.approx(np.mean(losses), rel=1e-5)
    assert found.measures["perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-4)
    told_bytes = sum(int(part[1:].sum()) for part in PARTS)
    assert found.measures["bits_per_byte"] == pytest.approx(sum(losses) / math.log(2) / told_bytes, rel=1e-5)
    assert found.baselines["uniform_entropy"] == math.log(texts.VOCABULARY)
    assert found.baselines["unigram_entropy"] == shards.unigram_entropy(PARTS)


def test_batches_of_other_sizes_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = texts.build(texts.tokens(tmp_path), texts.TINY_LM).decoder
    at_once = score(decoder, TokenText({}, PARTS, None))
    monkeypatch.setattr(token_evaluation, "LOGITS", 1)
    one_each = score(decoder, TokenText({}, PARTS, None))
    assert one_each.loss.value == pytest.approx(at_once.loss.value, rel=1e-6)
    assert one_each.loss.standard_error == pytest.approx(at_once.loss.standard_error, rel=1e-5)
    assert one_each.measures["bits_per_byte"] is None


def test_a_shard_of_one_token_tells_nothing(tmp_path: Path) -> None:
    decoder = texts.build(texts.tokens(tmp_path), texts.TINY_LM).decoder
    with pytest.raises(InputError, match="there are no validation data"):
        score(decoder, TokenText({}, [np.zeros(1, np.uint16)], None))


# -- bytes -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("texts")
    for number in range(30):
        lines = [f"é = {number} # naïve <|endoftext|> 日本 {line * number}\n" for line in range(20)]
        (found / f"{number}.py").write_text("".join(lines))
    return found


@pytest.mark.parametrize("tokenizer", ["bpe", "characters"])
def test_the_bytes_of_all_tokens_are_those_of_the_text(tokenizer: Any, folder: Path, tmp_path: Path) -> None:
    manifest = prepare(PrepareRequest(folder, tmp_path / "out", tokenizer=tokenizer, vocabulary_size=400))
    found = shards.load(tmp_path / "out")
    bytes_v = tokenizers.bytes_of_tokens(tokenizers.load(tmp_path / "out" / shards.TOKENIZER))
    assert bytes_v is not None
    parts = [*found.train.values(), *found.validation.values()]
    assert sum(int(bytes_v[part].sum()) for part in parts) == manifest.text_bytes


def test_a_tokenizer_whose_tokens_do_not_tell_their_bytes_gives_none() -> None:
    tokenizer = Tokenizer(models.WordLevel({"▁a": 0, tokenizers.END_OF_DOCUMENT: 1}, unk_token="▁a"))
    tokenizer.decoder = decoders.Metaspace()
    assert tokenizers.bytes_of_tokens(tokenizer) is None


# -- which shards ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "own"
    prepare(PrepareRequest(folder, out, vocabulary_size=400))
    return out


def test_the_held_out_tokens_are_the_validation_shards(prepared: Path) -> None:
    own, found = shards.load(prepared), held_out(DataOptions(path=prepared))
    assert found.hashes == {"data": own.data_sha256, "tokenizer": own.tokenizer_sha256}
    assert sum(map(len, found.parts)) == sum(map(len, own.validation.values()))


def test_held_out_shards_are_hashed_even_where_the_run_did_not(prepared: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(prepared, tmp_path / "copy"))
    shard = next(copy.glob("val*.bin"))
    shard.write_bytes(bytes(reversed(shard.read_bytes())))
    with pytest.raises(DataError, match="is damaged"):
        held_out(DataOptions(path=copy, verify=False))


def test_other_shards_of_the_same_tokenizer_are_told_whole(prepared: Path, folder: Path, tmp_path: Path) -> None:
    stamped = held_out(DataOptions(path=prepared)).hashes
    prepare(PrepareRequest(folder, tmp_path / "other", tokenizer=prepared / shards.TOKENIZER, validation_share=0.4))
    other = shards.load(tmp_path / "other")
    found = all_of(tmp_path / "other", stamped)
    assert sum(map(len, found.parts)) == sum(map(len, [*other.train.values(), *other.validation.values()]))


def test_shards_of_another_tokenizer_or_none_and_the_runs_own_are_refused(
    prepared: Path, folder: Path, tmp_path: Path
) -> None:
    stamped = held_out(DataOptions(path=prepared)).hashes
    prepare(PrepareRequest(folder, tmp_path / "other", vocabulary_size=300))
    plain = tmp_path / "plain"
    plain.mkdir()
    for refused in (tmp_path / "other", texts.tokens(plain)):
        with pytest.raises(DataError, match=r"not known to be of the run's own tokenizer.*prepare it with the run's"):
            all_of(refused, stamped)
    with pytest.raises(DataError, match="holds the run's own data, most of which it was trained on"):
        all_of(prepared, stamped)
    with pytest.raises(DataError, match="not known to be of the run's own tokenizer"):
        all_of(plain, {"data": "0"})
