"""What is counted of uploads, and the page on which Prometheus reads it."""

import socket
import urllib.request

import pytest

from trainwright.errors import InputError
from trainwright.telemetry import ADDRESS, Telemetry


def page(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://{ADDRESS}:{port}/metrics") as answer:
        text: str = answer.read().decode()
    return text.splitlines()


def test_the_page_tells_each_outcome_bytes_and_seconds_and_is_gone_after_the_block() -> None:
    telemetry = Telemetry()
    telemetry.uploaded(1000, 0.02)
    telemetry.uploaded(24, 2.0)
    telemetry.not_uploaded("failed")
    with telemetry.served(0) as port:
        lines = page(port)
    for line in (
        'trainwright_checkpoint_uploads_total{outcome="uploaded"} 2.0',
        'trainwright_checkpoint_uploads_total{outcome="failed"} 1.0',
        'trainwright_checkpoint_uploads_total{outcome="skipped"} 0.0',
        "trainwright_checkpoint_upload_bytes_total 1024.0",
        'trainwright_checkpoint_upload_seconds_bucket{le="0.03"} 1.0',
        "trainwright_checkpoint_upload_seconds_count 2.0",
        "trainwright_checkpoint_upload_seconds_sum 2.02",
    ):
        assert line in lines
    with pytest.raises(OSError, match="refused"):
        page(port)


def test_the_numbers_of_two_runs_in_one_process_do_not_meet() -> None:
    one, other = Telemetry(), Telemetry()
    one.uploaded(1, 0.1)
    assert (one.uploads("uploaded"), other.uploads("uploaded")) == (1, 0)


def test_a_port_that_is_taken_is_told_with_the_option() -> None:
    with socket.socket() as taken:
        taken.bind((ADDRESS, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--metrics-port {port}: cannot be served"), Telemetry().served(port):
            pass
    with pytest.raises(InputError, match="--metrics-port 70000"), Telemetry().served(70_000):
        pass
