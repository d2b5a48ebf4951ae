"""SIGTERM and SIGINT as a request to stop after the step; a second SIGINT ends at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """`received` is the signal's number once one came, else None."""

    def __init__(self) -> None:
        self.received: int | None = None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Catch SIGTERM and SIGINT while in the block, then put the earlier handlers back.

    Off the main thread, where Python allows no handlers, the request just stays unset.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, _frame: FrameType | None) -> None:
        if request.received == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.received = number

    before: dict[int, Any] = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
