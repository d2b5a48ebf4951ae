from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trainwright.data import tokenizer as tokenizers
from trainwright.data.tokenizer import END_OF_DOCUMENT
from trainwright.errors import DataError, InputError

TEXTS = [f"def function_{n}(argument):\n    return argument * {n}\n\n" for n in range(200)]


def test_equal_texts_train_equal_bpe_tokenizers() -> None:
    assert tokenizers.train_bpe(TEXTS, 400).to_str() == tokenizers.train_bpe(iter(TEXTS), 400).to_str()


def test_the_vocabulary_has_the_size_asked_for_and_counts_the_end_of_document() -> None:
    tokenizer = tokenizers.train_bpe(TEXTS, 300)
    assert tokenizers.vocabulary_size(tokenizer) == 300
    assert tokenizers.end_of_document_id(tokenizer) == 0


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=80))
def test_a_bpe_gives_any_text_back(text: str) -> None:
    tokenizer = tokenizers.train_bpe(TEXTS[:20], 280)
    assert tokenizer.decode(tokenizers.encode(tokenizer, [text])[0].tolist()) == text


@settings(max_examples=50, deadline=None)
@given(st.text(min_size=1, max_size=80))
def test_characters_are_one_token_each_in_sorted_order_and_give_the_text_back(text: str) -> None:
    tokenizer = tokenizers.of_characters(text)
    ids = tokenizers.encode(tokenizer, [text])[0].tolist()
    alphabet = sorted(set(text))
    assert ids == [alphabet.index(character) for character in text]
    assert tokenizer.decode(ids) == text
    assert tokenizers.vocabulary_size(tokenizer) == len(alphabet) + 1


def test_an_unknown_character_is_an_error() -> None:
    with pytest.raises(DataError, match="cannot encode"):
        tokenizers.encode(tokenizers.of_characters("ab"), ["abc"])


def test_an_end_of_document_spelled_out_in_a_text_stays_text() -> None:
    tokenizer = tokenizers.train_bpe(TEXTS, 300)
    ids = tokenizers.encode(tokenizer, [f"a{END_OF_DOCUMENT}b"])[0].tolist()
    assert tokenizers.end_of_document_id(tokenizer) not in ids
    assert tokenizer.decode(ids) == f"a{END_OF_DOCUMENT}b"


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_transformers_loads_what_was_saved(kind: str, tmp_path: Path) -> None:
    tokenizer = tokenizers.train_bpe(TEXTS, 300) if kind == "bpe" else tokenizers.of_characters("".join(TEXTS))
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_str())
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path))  # type: ignore[no-untyped-call]  # untyped in transformers
    assert theirs(TEXTS[7])["input_ids"] == tokenizers.encode(tokenizer, [TEXTS[7]])[0].tolist()
    assert theirs.convert_tokens_to_ids(END_OF_DOCUMENT) == tokenizers.end_of_document_id(tokenizer)


def test_a_given_tokenizer_without_an_end_of_document_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "foreign.json"
    path.write_text(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str())
    with pytest.raises(InputError, match=r"foreign\.json: .*<\|endoftext\|>"):
        tokenizers.load(path)


def test_truncation_and_padding_of_a_given_tokenizer_do_not_cut_documents(tmp_path: Path) -> None:
    given_one = Tokenizer(models.WordLevel({"a": 0, END_OF_DOCUMENT: 1}, unk_token="a"))
    given_one.pre_tokenizer = pre_tokenizers.Whitespace()
    given_one.enable_truncation(2)
    given_one.enable_padding(length=2)
    path = tmp_path / "tokenizer.json"
    path.write_text(given_one.to_str())
    assert len(tokenizers.encode(tokenizers.load(path), ["a a a a"])[0]) == 4


@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_a_file_that_is_no_tokenizer_is_refused_by_name(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        tokenizers.load(path)


def test_a_vocabulary_that_cannot_hold_all_bytes_is_refused() -> None:
    with pytest.raises(InputError, match="at least 257"):
        tokenizers.train_bpe(TEXTS, 256)
