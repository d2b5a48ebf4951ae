"""Work in a child with limits: what it gives, and how each of its ends is told."""

import math
import os
import resource
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from tests.contract import confined_work
from trainwright.contract.confined import LIMITS, Limits, confined
from trainwright.contract.load import shipped_contracts
from trainwright.contract.validate import validate
from trainwright.errors import DataError, InputError

SMALL = Limits(address_space_bytes=512 << 20, seconds=20.0)


def told(work: Any, limits: Limits = SMALL) -> str:
    with pytest.raises(InputError) as caught:
        confined(work, gives=None, about="their.yaml", limits=limits)
    return str(caught.value)


def test_a_child_gives_what_the_work_gives_and_not_what_it_prints() -> None:
    assert confined(confined_work.add, 1, 0.5, gives=float, about="x", limits=SMALL) == 1.5
    assert math.isnan(confined(confined_work.add, 1, math.nan, gives=float, about="x", limits=SMALL))


def test_a_child_that_takes_more_memory_than_its_limit_is_ended_and_told() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    assert told(confined_work.take_memory) == (
        "their.yaml: work on it took too much memory; a contract from outside may use 0.5 GiB of address space and "
        "20 seconds"
    )
    assert resource.getrlimit(resource.RLIMIT_AS) == before, "this process is as it was"


def test_a_child_that_takes_longer_than_its_limit_is_ended_and_told() -> None:
    began = perf_counter()
    text = told(confined_work.spin, Limits(seconds=0.5))
    assert text.startswith("their.yaml: work on it took too long; a contract from outside may use 4 GiB")
    assert perf_counter() - began < 10.0


def test_a_child_that_dies_takes_nothing_with_it() -> None:
    assert told(confined_work.die).startswith("their.yaml: work on it was ended by SIGSEGV; ")


def test_an_error_of_ours_comes_back_as_what_it_was_and_any_other_with_its_traceback() -> None:
    with pytest.raises(DataError, match=r"^steps\.jsonl:3: no row$"):
        confined(confined_work.refuse, "steps.jsonl:3: no row", gives=None, about="x", limits=SMALL)
    with pytest.raises(RuntimeError, match=r"x: work on it failed:\n(.*\n)+KeyError: 'a bug'"):
        confined(confined_work.break_down, gives=None, about="x", limits=SMALL)


def test_a_child_imports_nothing_from_the_folder_it_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('imported from beside the contract')")
    monkeypatch.chdir(tmp_path)
    here, *places = confined(confined_work.folder, gives=list[str], about="x", limits=SMALL)
    assert here == os.fspath(tmp_path)
    assert here not in places


def test_the_limits_leave_room_for_the_judge() -> None:
    half = Limits(LIMITS.address_space_bytes // 2, LIMITS.seconds)
    assert confined(validate, shipped_contracts()[0], None, gives=list[Any], about="x", limits=half) == []
