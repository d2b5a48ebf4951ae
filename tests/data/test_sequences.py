"""A file of labelled sequences: what is read of it, what is refused, and the order of its batches."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as torch_file

from trainwright.data.sequence_batches import SequenceSource
from trainwright.data.sequences import Sequences, load
from trainwright.errors import DamagedCheckpointError, DataError, DataExhaustedError

ARRAYS: dict[str, Any] = {
    "x": np.arange(60.0).reshape(10, 3, 2),
    "y": np.arange(10) % 4,
    "x_validation": np.zeros((5, 4, 2), np.float32),
    "y_validation": np.arange(5, dtype=np.uint8),
}


def saved(folder: Path, **changes: Any) -> Path:
    np.savez(folder / "some.npz", **{**ARRAYS, **changes})
    return folder / "some.npz"


def source(data: Sequences, **options: Any) -> SequenceSource:
    return SequenceSource(data, **{"batch_size": 4, "seed": 3, **options})


def test_both_kinds_of_file_give_the_same_sequences(tmp_path: Path) -> None:
    save_file(ARRAYS, tmp_path / "some.safetensors")
    one, other = load(saved(tmp_path), "classes"), load(tmp_path / "some.safetensors", "classes")
    for a, b in zip((*one.train, *one.validation), (*other.train, *other.validation), strict=True):
        assert torch.equal(a, b)
    assert (one.features, one.kinds("y"), one.train.x.dtype, one.train.y.dtype) == (2, 5, torch.float32, torch.int64)
    assert one.train.lengths_b.tolist() == [3] * 10


def test_numbers_and_tokens_keep_their_kind(tmp_path: Path) -> None:
    tokens = {"x": np.full((10, 3), 7), "x_validation": np.full((5, 2), 9)}
    data = load(saved(tmp_path, **tokens, y=np.arange(10) / 3, y_validation=np.zeros(5)), "numbers")
    assert (data.features, data.kinds("x"), data.train.x.dtype) == (None, 10, torch.int64)
    assert (data.train.y.shape, data.train.y.dtype) == ((10, 1), torch.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": ARRAYS["x"] * np.nan}, r"x is float64 of shape \[10, 3, 2\]; expected finite reals"),
        ({"x": ARRAYS["x"] * 1e60}, "x is float64"),
        ({"x": ARRAYS["x"][:, :0]}, "x is float64"),
        ({"x": ARRAYS["x"][:, :, 0]}, r"x is float64 of shape \[10, 3\]; expected .* token ids from 0 on"),
        ({"x": np.full((10, 3), -1)}, "x is int64"),
        ({"y": ARRAYS["y"][1:]}, r"y is int64 of shape \[9\]; expected a class from 0 on for each of 10 sequences"),
        ({"y": ARRAYS["y"] / 2}, "y is float64"),
        ({"y_validation": np.array([-1] * 5)}, "y_validation is int64"),
        ({"lengths": np.full(10, 4)}, r"lengths is int64 of shape \[10\]; expected 1 … 3 positions for each of 10"),
        ({"lengths": np.zeros(10, int)}, "lengths is int64"),
        ({"lengths_validation": np.ones(5)}, "lengths_validation is float64"),
        ({"x_validation": np.zeros((5, 4, 3))}, "of 2 reals a position, one held out of 3 reals a position"),
        (
            {"x_validation": np.zeros((5, 4), int)},
            "a training sequence is of 2 reals a position, one held out of tokens",
        ),
        ({"labels": np.zeros(1)}, r"labels; expected x, y, x_validation, y_validation, and no others but lengths and"),
        ({"x": np.array([{}], dtype=object)}, "cannot be read: .*allow_pickle"),
    ],
)
def test_what_is_no_labelled_sequence_is_refused_by_the_name_of_its_array(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message) as refused:
        load(saved(tmp_path, **changes), "classes")
    assert str(refused.value).startswith(f"{tmp_path / 'some.npz'}: ")


def test_a_number_that_is_not_finite_is_no_target(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"y is float64 .*; expected a finite number, or a row of them, for each of 10"):
        load(saved(tmp_path, y=np.full((10, 2), np.inf)), "numbers")


@pytest.mark.parametrize(("name", "text"), [("none.npz", "there is no such file"), ("a.csv", "ends in .npz or")])
def test_a_file_that_is_missing_or_of_another_kind_is_refused(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(DataError, match=text):
        load(tmp_path / name, "classes")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_damaged_file_is_refused(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"some{suffix}"
    file.write_bytes(b"\x00" * 100)
    with pytest.raises(DataError, match="cannot be read"):
        load(file, "classes")


def test_an_array_without_a_name_and_an_archive_whose_bytes_were_lost_are_refused(tmp_path: Path) -> None:
    alone, squeezed = tmp_path / "alone.npz", tmp_path / "squeezed.npz"
    with alone.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match="holds one array without a name"):
        load(alone, "classes")
    np.savez_compressed(squeezed, **ARRAYS)
    content = bytearray(squeezed.read_bytes())
    content[60:120] = bytes(60)
    squeezed.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        load(squeezed, "classes")


def test_a_type_that_numpy_does_not_know_is_refused(tmp_path: Path) -> None:
    torch_file(
        {name: torch.as_tensor(array).bfloat16() for name, array in ARRAYS.items()}, file := tmp_path / "a.safetensors"
    )
    with pytest.raises(DataError, match="cannot be read"):
        load(file, "classes")


def test_a_pass_gives_each_sequence_once_and_the_next_one_in_another_order(tmp_path: Path) -> None:
    batches = source(load(saved(tmp_path), "classes"))
    passes = []
    for number in range(2):
        assert (batches.epoch, batches.micro_batches_left, batches.micro_batches_per_epoch) == (number, 3, 3)
        passes.append([batch.x[:, 0, 0].tolist() for batch in (batches.next_batch() for _ in range(3))])
        assert [len(rows) for rows in passes[-1]] == [4, 4, 2]
    first, second = (list(chain(*rows)) for rows in passes)
    assert sorted(first) == sorted(second) == ARRAYS["x"][:, 0, 0].tolist()
    assert first != second


def test_a_position_is_gone_on_from_with_any_batch_size(tmp_path: Path) -> None:
    data = load(saved(tmp_path), "classes")
    whole, cut, other = source(data), source(data), source(data, batch_size=2)
    cut.next_batch()
    other.load(cut.save())
    rest = torch.cat([whole.next_batch().y, whole.next_batch().y])[4:]
    assert torch.equal(torch.cat([other.next_batch().y for _ in range(2)]), rest)
    for position in (-1, 10, "1"):
        with pytest.raises(DamagedCheckpointError, match="these data have 10"):
            other.load({"epoch": 0, "position": position})


def test_a_second_pass_is_refused_where_it_is_not_wanted_and_a_batch_fits_into_the_data(tmp_path: Path) -> None:
    data = load(saved(tmp_path), "classes")
    once = source(data, exhaustion="halt", batch_size=10)
    once.next_batch()
    with pytest.raises(DataExhaustedError, match="all 10 training sequences were seen once"):
        once.next_batch()
    with pytest.raises(DataError, match="10 training sequences are fewer than a batch of 11"):
        source(data, batch_size=11)


def test_validation_gives_every_sequence_or_batches_from_all_over(tmp_path: Path) -> None:
    data = load(saved(tmp_path), "classes")
    told = [batch.y.tolist() for batch in source(data, batch_size=2).validation_batches()]
    assert told == [[0, 1], [2, 3], [4]]
    limited = source(data, batch_size=1, validation_batches=2)
    assert [batch.y.tolist() for batch in limited.validation_batches()] == [[0], [2]]
