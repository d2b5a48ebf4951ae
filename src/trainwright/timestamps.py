"""Moments as records carry them."""

from datetime import UTC, datetime


def now() -> str:
    """Give the time as records carry it: UTC, ISO 8601, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
