"""Keys and signatures: Ed25519 keys in files of their owner alone, and DSSE envelopes (DSSE v1) around signed bytes.

A private key is read when something is signed and is kept nowhere else.
"""

import json
import os
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import Error as SecureSystemsError
from securesystemslib.signer import CryptoSigner, SSlibKey  # type: ignore[attr-defined]  # exported without __all__

from trainwright.errors import InputError
from trainwright.files import make_directory, sync_directory

KEY_VARIABLE: Final = "TRAINWRIGHT_EVIDENCE_KEY"
HOME_VARIABLE: Final = "TRAINWRIGHT_HOME"
PUBLIC_SUFFIX: Final = ".pub"
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Where a key and its public half lie; `key_id` is the name by which a signature tells its key."""

    private: Path
    public: Path
    key_id: str


def default_key() -> Path:
    """Give the place of the key where none is named: keys/evidence.pem in TRAINWRIGHT_HOME (./.trainwright)."""
    return Path(os.environ.get(HOME_VARIABLE) or ".trainwright") / "keys" / "evidence.pem"


def signing_key() -> Path | None:
    """Give the private key to sign with: the one that TRAINWRIGHT_EVIDENCE_KEY names, else the default, if it is there.

    A key that is named has to be there: `sign` refuses it otherwise.
    """
    named = os.environ.get(KEY_VARIABLE)
    if named:
        return Path(named)
    return default_key() if default_key().exists() else None


def check_signing_key() -> None:
    """Read the key that a run will be sealed with, where there is one. Errors: InputError as `sign` has them."""
    key = signing_key()
    if key is not None:
        _private_key(key)


def public_key() -> Path | None:
    """Give the public half of the key that this user signs with, where it is there."""
    public = public_half(Path(os.environ.get(KEY_VARIABLE) or default_key()))
    return public if public.is_file() else None


def public_half(private: Path) -> Path:
    return private.with_suffix(PUBLIC_SUFFIX)


def make_key(private: Path) -> KeyPair:
    """Make a key: PEM (PKCS8), mode 0600 from its first moment on, its public half beside it as `.pub`.

    Errors: InputError where either file is there already (nothing is overwritten) or cannot be written.
    """
    public = public_half(private)
    if public == private:
        raise InputError(f"{private}: is the name of a public key; choose one that does not end in {PUBLIC_SUFFIX}")
    key = Ed25519PrivateKey.generate()
    try:
        make_directory(private.parent)
        _write_new(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), 0o644)
        try:
            _write_new(private, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
        except OSError:
            public.unlink()
            raise
        sync_directory(private.parent)
    except FileExistsError as error:
        told = "is there already, and a key is never overwritten; choose another file by --out"
        raise InputError(f"{error.filename}: {told}") from error
    except OSError as error:
        raise InputError(f"{error.filename or private}: cannot be written: {error.strerror}") from error
    return KeyPair(private, public, SSlibKey.from_crypto(key.public_key()).keyid)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sign(payload: bytes, payload_type: str, private: Path) -> bytes:
    """Give the envelope of `payload`, as JSON, signed by a key file that its owner alone can read.

    Errors: InputError for a key that others can read, with the command that changes that; for one that is none.
    """
    envelope = Envelope(payload, payload_type, {})
    envelope.sign(CryptoSigner(_private_key(private)))
    return _encoded(envelope)


def _private_key(path: Path) -> Ed25519PrivateKey:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & OTHERS:
                told = f"others than its owner can use this private key (mode {mode:04o}); type"
                raise InputError(f"{path}: {told}: chmod 600 {shlex.quote(str(path))}")
            key = load_pem_private_key(file.read(), None)
    except OSError as error:
        raise InputError(f"{path}: the key to sign with cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path}: is no private key in PEM; make one by: trainwright evidence keygen") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{path}: is no Ed25519 key; make one by: trainwright evidence keygen")
    return key


def read_envelope(data: bytes) -> Envelope:
    """Read an envelope of one signature. Errors: InputError for anything that `sign` would not have written so."""
    try:
        envelope: Envelope = Envelope.from_dict(msgspec.json.decode(data, type=dict))
        extra = [signature.unrecognized_fields for signature in envelope.signatures.values()]
        again = _encoded(envelope)
    except (msgspec.MsgspecError, SecureSystemsError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"is no DSSE envelope: {error}") from error
    if len(extra) != 1 or extra[0] or again != data:
        raise InputError("is not an envelope of one signature as it was written; it was changed")
    return envelope


def _encoded(envelope: Envelope) -> bytes:
    return json.dumps(envelope.to_dict(), indent=2).encode() + b"\n"


def signature_problem(envelope: Envelope, public: Path) -> str | None:
    """Say why the envelope's signature is not that of the key whose public half this file is; None when it is.

    Errors: InputError when the file is no public key.
    """
    key = _public_key(public)
    signed_by = next(iter(envelope.signatures))
    if signed_by != key.keyid:
        return f"is signed by the key {signed_by}, and {public} is the key {key.keyid}"
    try:
        envelope.verify([key], 1)
    except SecureSystemsError:
        return f"its signature is not one that the key {key.keyid} made of its payload"
    return None


def key_id(public: Path) -> str:
    """Give the name by which a signature tells its key. Errors: InputError when the file is no public key."""
    name: str = _public_key(public).keyid
    return name


def _public_key(path: Path) -> SSlibKey:
    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: the public key cannot be read: {error.strerror}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path}: is no public key in PEM; give the .pub file of evidence keygen") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{path}: is no Ed25519 public key; give the .pub file of evidence keygen")
    return SSlibKey.from_crypto(key)
