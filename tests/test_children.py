import pytest

from trainwright.children import Child
from trainwright.errors import InputError


def test_a_command_that_fails_is_told_with_its_own_words() -> None:
    with Child("train", "none.yaml") as child, pytest.raises(InputError) as told:
        child.finish()
    assert str(told.value).startswith("trainwright train none.yaml: exit code 2: error: none.yaml: cannot be read")


def test_a_kill_tells_whether_it_ended_the_process() -> None:
    with Child("version") as running, Child("--help") as ended:
        assert running.kill()
        assert not running.runs()
        ended.finish()
        assert not ended.kill()
