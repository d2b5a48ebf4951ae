"""Tokenizers: byte-level BPE, characters, or one that is given; all are `tokenizer.json` of the tokenizers library."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from trainwright.errors import DataError, InputError

END_OF_DOCUMENT = "<|endoftext|>"
SMALLEST_BPE = 257  # every byte, and the end of a document


def train_bpe(texts: Iterable[str], vocabulary_size: int) -> Tokenizer:
    """Train a byte-level BPE; equal texts give an equal tokenizer.

    The vocabulary holds the end of a document (id 0) and all 256 bytes, so every text can be encoded; it is smaller
    than asked for when the texts have too few pairs that occur twice.
    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2.
    Errors: InputError for a size under 257.
    """
    if vocabulary_size < SMALLEST_BPE:
        raise InputError(f"vocabulary size {vocabulary_size}: a byte-level BPE needs at least {SMALLEST_BPE}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def of_characters(characters: Iterable[str]) -> Tokenizer:
    """Give a tokenizer of single characters: ids in sorted order from 0, then the end of a document."""
    vocabulary = {token: index for index, token in enumerate([*sorted(set(characters)), END_OF_DOCUMENT])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106  no password; not in the vocabulary, so an unknown character is an error
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([END_OF_DOCUMENT])
    return tokenizer


def load(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`. Errors: InputError if it cannot be read, or does not know the end of a document."""
    try:
        tokenizer = Tokenizer.from_buffer(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: the tokenizer cannot be read: {error.strerror}; give a tokenizer.json") from error
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"{path}: is no tokenizer.json of the tokenizers library: {error}") from error
    if tokenizer.token_to_id(END_OF_DOCUMENT) is None:
        raise InputError(
            f"{path}: the vocabulary has no {END_OF_DOCUMENT!r}, which stands between documents; "
            "add it to the tokenizer as a special token"
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Give the number of ids that a model needs: the largest id and one."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def end_of_document_id(tokenizer: Tokenizer) -> int:
    return tokenizer.get_vocab(with_added_tokens=True)[END_OF_DOCUMENT]


def bytes_of_tokens(tokenizer: Tokenizer) -> npt.NDArray[np.int64] | None:
    """Give the bytes of UTF-8 text that each id stands for, 0 for a special token.

    None for a tokenizer that is neither of bytes nor of words as they stand: its tokens do not tell theirs.
    """
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        size: Callable[[str], int] = len  # a character stands for a byte
    elif isinstance(tokenizer.decoder, decoders.Fuse) and isinstance(tokenizer.model, models.WordLevel):
        size = _utf8_bytes
    else:
        return None
    sizes = np.zeros(vocabulary_size(tokenizer), np.int64)
    for token, index in tokenizer.get_vocab(with_added_tokens=True).items():
        sizes[index] = size(token)
    for index, added in tokenizer.get_added_tokens_decoder().items():
        sizes[index] = 0 if added.special else _utf8_bytes(added.content)
    return sizes


def _utf8_bytes(text: str) -> int:
    return len(text.encode())


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]:
    """Give the ids of each text, encoded on all cores; a special token spelled out in a text is encoded as text.

    Errors: DataError when the tokenizer has no token for a character of a text.
    """
    tokenizer.encode_special_tokens = True
    try:
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    except Exception as error:  # the library raises bare Exception
        raise DataError(
            f"the tokenizer cannot encode these documents: {error}; use one that was made of them"
        ) from error
    return [np.array(encoding.ids, np.uint32) for encoding in encodings]
