import signal
import threading
from collections.abc import Iterator

import pytest

from trainwright.signals import StopRequest, stop_on_signals

NUMBERS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    """Stand in for a host program that has handlers of its own; a signal that reaches them fails the test."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    for number in NUMBERS:
        signal.signal(number, reached_the_host)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def reached_the_host(number: int, _frame: object) -> None:
    raise AssertionError(f"signal {number} reached the handler of before")


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_is_a_request_and_ends_nothing(number: signal.Signals) -> None:
    with stop_on_signals() as stop:
        assert stop.received is None
        signal.raise_signal(number)
        assert stop.received == number


def test_a_second_sigint_ends_at_once() -> None:
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_second_sigterm_is_still_a_request() -> None:
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.received == signal.SIGTERM


def test_the_handlers_of_before_are_put_back_also_after_an_error() -> None:
    with stop_on_signals():
        assert signal.getsignal(signal.SIGTERM) is not reached_the_host
    assert [signal.getsignal(number) for number in NUMBERS] == [reached_the_host] * 2
    with pytest.raises(ZeroDivisionError), stop_on_signals():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in NUMBERS] == [reached_the_host] * 2


def test_off_the_main_thread_the_request_just_stays_unset() -> None:
    seen: list[StopRequest] = []

    def work() -> None:
        with stop_on_signals() as stop:
            seen.append(stop)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [stop.received for stop in seen] == [None]
    assert signal.getsignal(signal.SIGINT) is reached_the_host
