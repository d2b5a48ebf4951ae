import pytest

from trainwright.durations import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-3, "0 s"), (0, "0 s"), (0.0123, "0.0123 s"), (9.876, "9.88 s"), (59.4, "59 s")),
        *((59.9, "1 min 0 s"), (3605, "1 h 0 min"), (100_000, "1 d 3 h")),
    ],
)
def test_a_span_is_told_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
