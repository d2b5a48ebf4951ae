import base64
import json
import subprocess
import sys
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.redaction import REDACTED, know, redacted, redacted_within

VALUE = "p@ss/wörd +1\"'\\"


@pytest.mark.parametrize(
    "form",
    [
        VALUE,
        quote(VALUE, safe=""),
        quote(VALUE),
        quote(VALUE, safe=" +"),
        quote_plus(VALUE),
        json.dumps(VALUE)[1:-1],
        json.dumps(VALUE, ensure_ascii=False)[1:-1],
        repr(VALUE)[1:-1],
        base64.b64encode(VALUE.encode()).decode(),
        base64.urlsafe_b64encode(VALUE.encode()).decode(),
    ],
)
def test_a_known_value_is_taken_out_in_each_form_in_which_it_is_written(form: str) -> None:
    know(VALUE)
    assert redacted(f"before {form} after {form}") == f"before {REDACTED} after {REDACTED}"


def test_of_two_values_of_which_one_begins_with_the_other_both_are_taken_out_whole() -> None:
    know("abcdef")
    know("abcdefghij")
    assert redacted("abcdefghij abcdef") == f"{REDACTED} {REDACTED}"


def test_a_value_that_stands_in_ordinary_words_is_left() -> None:
    know("the")
    assert redacted("the loss") == "the loss"


@given(st.text(min_size=4), st.text(), st.text())
def test_no_known_value_is_left_in_any_text(value: str, before: str, after: str) -> None:
    know(value)
    assert value in REDACTED or value not in redacted(before + value + after).replace(REDACTED, "\0")


def test_texts_within_a_value_of_json_are_redacted_and_numbers_stay() -> None:
    know("1234567")
    assert redacted_within({"a": ["no 1234567", 1234567, None], "b": {"c": ("1234567",)}}) == {
        "a": [f"no {REDACTED}", 1234567, None],
        "b": {"c": [REDACTED]},
    }


# -- the whole process -------------------------------------------------------------------------------------------------

CHILD = """
import logging, threading, warnings
from trainwright.redaction import know, redact_process
know("kept" + "-value")
redact_process()
VALUE = "-".join(["kept", "value"])
def fail(): raise ValueError("refused " + VALUE)
logging.getLogger("library").warning("key %s: %d", VALUE, 5, stack_info=True)
logging.getLogger("library").warning("a call that does not fit: %d", VALUE)
assert logging.getLogRecordFactory()("n", 20, "p", 1, "%s: %d", ("a", 5), None).args == ("a", 5)
warnings.warn("warned of " + VALUE)
try: fail()
except ValueError: logging.getLogger("library").exception("caught")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
fail()
"""


def test_logs_warnings_and_the_errors_that_end_a_thread_are_redacted(
    child_environment: dict[str, str],
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=child_environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"key {REDACTED}: 5" in done.stderr
    assert f"'a call that does not fit: %d' % ('{REDACTED}',)" in done.stderr
    assert f"UserWarning: warned of {REDACTED}" in done.stderr
    assert done.stderr.count(f"ValueError: refused {REDACTED}") == 3
    assert "kept-value" not in done.stderr
