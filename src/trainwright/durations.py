"""Spans of time as people read them."""

from typing import Final

UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
PRECISE_SECONDS: Final = 10.0  # below it a second is too coarse


def duration(seconds: float) -> str:
    """Write a span in its two largest units: `3 d 4 h`, `5 min 2 s`, `1.72 s`; a negative one is none."""
    if 0 < seconds < PRECISE_SECONDS:
        return f"{seconds:.3g} s"
    rest, parts = max(0, round(seconds)), list[str]()
    for unit, size in UNITS:
        count, rest = divmod(rest, size)
        if count or parts or unit == "s":
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
