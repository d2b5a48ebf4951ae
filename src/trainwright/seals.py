"""The seal of evidence.json in its folder: evidence.sha256 over it or, with a key, a DSSE envelope that holds it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trainwright.errors import InputError
from trainwright.files import sha256_of_bytes, sync_directory, write_atomically
from trainwright.rundir import ENVELOPE, EVIDENCE, EVIDENCE_SHA256
from trainwright.signing import read_envelope, sign, signature_problem

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
SHA256_LINE: Final = re.compile(rb"[0-9a-f]{64}  evidence\.json\n")


def write_seal(folder: Path, text: bytes, key: Path | None) -> None:
    """Write evidence.json and its seal, signed where there is a key; a seal of the other kind is removed.

    Errors: OSError when a file cannot be written; InputError for a key that cannot be used, with nothing written.
    """
    name, seal = (ENVELOPE, sign(text, PAYLOAD_TYPE, key)) if key else (EVIDENCE_SHA256, _sha256_line(text))
    write_atomically(folder / EVIDENCE, text)
    write_atomically(folder / name, seal)
    (folder / (EVIDENCE_SHA256 if key else ENVELOPE)).unlink(missing_ok=True)
    sync_directory(folder)


def seals_in(folder: Path) -> list[str]:
    """Give the names of the seals in a folder: one, unless something is wrong there."""
    return [name for name in (EVIDENCE_SHA256, ENVELOPE) if (folder / name).is_file()]


def seal_problems(
    folder: Path, text: bytes, again: bytes | None = None, *, public: Path | None = None, signed: bool = False
) -> list[str]:
    """Hold evidence.json, whose bytes are `text`, against its seal; give a line a problem, with the file's name.

    `again` is evidence.json as it can be made again, to tell which of two files was changed. `public` is the key that
    a signature is checked with, and `signed` asks for one. Errors: InputError when `public` is no key.
    """
    there = seals_in(folder)
    if len(there) > 1:
        return [f"{EVIDENCE_SHA256}: stands beside {ENVELOPE}; a run has one seal"]
    if signed and ENVELOPE not in there:
        return [f"{ENVELOPE}: is missing: the evidence is not signed, and a key was given to check it"]
    if not there:
        return [f"{EVIDENCE_SHA256}: is missing, and there is no {ENVELOPE}"]
    if there == [EVIDENCE_SHA256]:
        return [*_sha256_problems((folder / EVIDENCE_SHA256).read_bytes(), text, again)]
    return [*_envelope_problems((folder / ENVELOPE).read_bytes(), text, again, public)]


def _sha256_line(text: bytes) -> bytes:
    """Give what `sha256sum evidence.json` prints."""
    return f"{sha256_of_bytes(text)}  {EVIDENCE}\n".encode()


def _sha256_problems(line: bytes, text: bytes, again: bytes | None) -> Iterator[str]:
    if line == _sha256_line(text):
        return
    if not SHA256_LINE.fullmatch(line):
        yield f"{EVIDENCE_SHA256}: is not a line as sha256sum writes it"
    elif text == again:
        yield f"{EVIDENCE_SHA256}: is not the SHA-256 of {EVIDENCE}"
    else:
        yield f"{EVIDENCE}: its SHA-256 is not the one in {EVIDENCE_SHA256}"


def _envelope_problems(data: bytes, text: bytes, again: bytes | None, public: Path | None) -> Iterator[str]:
    try:
        envelope = read_envelope(data)
    except InputError as error:
        yield f"{ENVELOPE}: {error}"
        return
    if envelope.payload_type != PAYLOAD_TYPE:
        yield f"{ENVELOPE}: its payload is of type {envelope.payload_type}, and evidence is {PAYLOAD_TYPE}"
    problem = signature_problem(envelope, public) if public else None
    if public is None:
        told = "no public key was given; give the signer's by --key FILE.pub"
        yield f"{ENVELOPE}: its signature was not checked: {told}"
    elif problem:
        yield f"{ENVELOPE}: {problem}"
    if envelope.payload != text:
        if text == again and (problem or public is None):
            yield f"{ENVELOPE}: its payload is not {EVIDENCE}"
        else:
            yield f"{EVIDENCE}: is not the payload of {ENVELOPE}"
