"""What must not be said: the secret values that this process holds, taken out of text before it leaves the process."""

import base64
import json
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, quote_plus

REDACTED: Final = "[redacted]"
LEAST_LENGTH: Final = 4  # a shorter one stands in ordinary words
_known: dict[str, None] = {}  # each form of each value, in the order in which they came to be known


def know(value: str) -> None:
    """Take `value` out of every text from now on, in each form in which it may stand there.

    A value of under 4 characters is not looked for: it stands in ordinary words.
    """
    if len(value) >= LEAST_LENGTH:
        _known.update(dict.fromkeys(_forms(value)))


def _forms(value: str) -> Iterator[str]:
    yield value
    yield from (quote(value, safe=""), quote(value), quote(value, safe=" +"))  # the last as SQLAlchemy writes URLs
    yield quote_plus(value)
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]
    encoded = value.encode()
    yield from (base64.b64encode(encoded).decode(), base64.urlsafe_b64encode(encoded).decode())


def redacted(text: str) -> str:
    """Give `text` with `[redacted]` in the place of every secret value that this process has held."""
    for form in sorted(_known, key=len, reverse=True):
        text = text.replace(form, REDACTED)
    return text


def redacted_within(value: Any) -> Any:
    """Give a JSON value with each text in it redacted; keys and numbers stay."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: redacted_within(item) for key, item in value.items()}
    return [redacted_within(item) for item in value] if isinstance(value, list | tuple) else value


def redact_process() -> None:
    """Let what ends this process or a thread of it, each record of `logging` and each warning be told redacted."""
    sys.excepthook = lambda _, error, __: _tell(error)
    threading.excepthook = lambda ended: _tell(ended.exc_value)
    told = warnings.formatwarning
    warnings.formatwarning = lambda *arguments, **options: redacted(told(*arguments, **options))
    make = logging.getLogRecordFactory()
    logging.setLogRecordFactory(lambda *arguments, **options: _redacted_record(make(*arguments, **options)))


def _tell(error: BaseException | None) -> None:
    print(_traceback(error), end="", file=sys.stderr)  # noqa: T201  in the place of Python's own


def _traceback(error: BaseException | None) -> str:
    return redacted("".join(traceback.format_exception(error)))


def _message(record: logging.LogRecord) -> str:
    """Give the text; of a call whose arguments do not fit, what it was given: that must not end who calls."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  whatever their own text raises
        return f"{record.msg!r} % {record.args!r}"


def _redacted_record(record: logging.LogRecord) -> logging.LogRecord:
    text = _message(record)
    if redacted(text) != text:
        record.msg, record.args = redacted(text), ()  # else they stay: there are formatters that read them
    if record.exc_info and record.exc_info[1]:
        record.exc_text = _traceback(record.exc_info[1])
    record.stack_info = record.stack_info and redacted(record.stack_info)
    return record
