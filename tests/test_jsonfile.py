from pathlib import Path

import pytest

from trainwright.errors import InputError
from trainwright.jsonfile import read_json, write_json
from trainwright.rundir import Start
from trainwright.timestamps import now


def test_json_reads_back_and_what_is_something_else_is_named(tmp_path: Path) -> None:
    start = Start(attempt=2, time=now(), step=7, checkpoint="step-00000007.a1", metrics={"a": "nats"})
    write_json(tmp_path / "start.json", start)
    assert read_json(tmp_path / "start.json", Start) == start
    (tmp_path / "start.json").write_text("{}")
    with pytest.raises(InputError, match=r"start\.json: is not what it should be: .*`attempt`"):
        read_json(tmp_path / "start.json", Start)
    with pytest.raises(InputError, match=r"no\.json: cannot be read: No such file"):
        read_json(tmp_path / "no.json")
