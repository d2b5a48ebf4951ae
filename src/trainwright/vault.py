"""Values out of HashiCorp Vault or OpenBao: key-value version 2, by hvac.

The token in use is renewed once a third of its time is over, by whoever asks next; where it cannot be, an AppRole logs
in anew, and a token that was changed where it stands is taken up. No thread works here: between two questions nothing
is needed of the vault.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from time import monotonic, time
from typing import Any, Final, TypeAlias, final

import hvac
from hvac.exceptions import Forbidden, InvalidPath, InvalidRequest, VaultDown, VaultError, VaultNotInitialized
from requests import exceptions as http

from trainwright.errors import InputError, StoreRefusedError, StoreUnavailableError, TrainwrightError
from trainwright.redaction import redacted
from trainwright.secrets import Secret

Read: TypeAlias = Callable[[], Secret]  # reads a secret where it stands, now

TIMEOUT_SECONDS: Final = 10.0
REFRESH: Final = "make a new one (bao token create, vault token create) and put it where vault.token says"
RELOGIN: Final = "make a new secret_id (bao write -f auth/approle/role/NAME/secret-id); see vault.role_id, secret_id"
WRONG_ADDRESS: Final = "see vault.address, as https://vault.example.com:8200"


@dataclass(frozen=True, slots=True)
class Lease:
    """The token in use. `seconds` None: it has no end, or its vault does not tell it."""

    token: Secret
    began: float
    seconds: float | None
    renewable: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """What a vault says of itself and of the token.

    `seconds_left` None: the token has no end, or its vault does not tell. `clock_ahead` the vault's clock less this
    machine's, in whole seconds.
    """

    version: str
    seconds_left: float | None
    renewable: bool
    clock_ahead: float


@final
class KeyValueVault:
    """One vault, logged in to when something is asked of it. Several threads may ask."""

    def __init__(
        self,
        address: str,
        *,
        token: Read | None = None,
        role: tuple[Read, Read] | None = None,
        namespace: str | None = None,
        ca: Path | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Take `token`, or of an AppRole how to read role_id and secret_id. `ca`: certificates to trust."""
        if ca is not None and not ca.exists():
            raise InputError(f"vault.ca: {ca}: is not there; expected the certificates that sign the vault's own")
        self.address = address
        self._token, self._role, self._clock = token, role, clock
        self._client = _client(address, namespace, ca)
        self._lease: Lease | None = None
        self._lock = RLock()

    def read(self, path: str, key: str) -> str:
        """Give the newest value of `key` at `path`, whose first word is the mount.

        Errors: InputError when path or key are not there; StoreRefusedError for a wrong, expired or revoked token, a
        wrong AppRole and a missing right; StoreUnavailableError when the vault does not answer, is sealed or fails.
        """
        with self._lock, _told(f"vault:{path}#{key}", self.address):
            return _text(key, self._values(path))

    def standing(self) -> Standing:
        """Ask the vault for its version and clock, and for what is left of the token's time. Errors: as `read`."""
        with self._lock, _told("vault", self.address):
            if _answer(self._client.sys.read_seal_status())["sealed"]:
                raise VaultDown
            health = _answer(self._client.sys.read_health_status(standby_ok=True, method="GET"))
            ahead = float(health["server_time_utc"]) - time()
            self._lease = lease = self._in_use()
            left = None if lease.seconds is None else lease.seconds - self._age(lease)
            return Standing(str(health["version"]), left, lease.renewable, ahead)

    def _values(self, path: str) -> dict[str, Any]:
        self._lease = self._in_use()
        try:
            return self._read(path)
        except Forbidden as error:
            if self._own_entry() is not None:
                raise StoreRefusedError(_no_right(path)) from error
            self._lease = self._another(self._lease)
        try:
            return self._read(path)
        except Forbidden as error:
            raise StoreRefusedError(_no_right(path)) from error

    def _read(self, path: str) -> dict[str, Any]:
        mount, _, rest = path.partition("/")
        read = self._client.secrets.kv.v2.read_secret_version
        values: dict[str, Any] = _answer(read(rest, mount_point=mount, raise_on_deleted_version=True))["data"]["data"]
        return values

    # -- the token ---------------------------------------------------------------------------------------------------

    def _in_use(self) -> Lease:
        """Give the lease to ask with: the one there is, renewed when a third of its time is over, or a new one."""
        lease = self._lease
        if lease is None:
            return self._new()
        if lease.seconds is None or self._age(lease) < lease.seconds / 3:
            return lease
        return self._extended(lease) or (self._new() if self._role else lease)

    def _age(self, lease: Lease) -> float:
        return self._clock() - lease.began

    def _extended(self, lease: Lease) -> Lease | None:
        """Renew; None where that is over: the token has ended, was revoked, or has had its longest time."""
        try:
            renewed = self._leased(lease.token, self._client.auth.token.renew_self()) if lease.renewable else None
        except (Forbidden, InvalidRequest):
            return None
        return renewed if renewed and renewed.seconds else None

    def _new(self) -> Lease:
        if self._role:
            self._client.token = ""
            return self._logged_in(*(read().reveal() for read in self._role))
        assert self._token is not None
        token = self._token()
        self._client.token = token.reveal()
        entry = self._own_entry()
        if entry is None:
            raise StoreRefusedError(f"the vault does not know this token: wrong, expired or revoked; {REFRESH}")
        seconds = entry["ttl"] if entry.get("expire_time") else None
        return Lease(token, self._clock(), seconds, bool(entry.get("renewable")))

    def _logged_in(self, role_id: str, secret_id: str) -> Lease:
        try:
            answer = _answer(self._client.auth.approle.login(role_id, secret_id, use_token=False))
        except (Forbidden, InvalidRequest) as error:
            raise StoreRefusedError(f"the AppRole login was refused ({_why(error)}); {RELOGIN}") from error
        return self._leased(Secret(answer["auth"]["client_token"]), answer)

    def _leased(self, token: Secret, answer: Any) -> Lease:
        auth = _answer(answer)["auth"]
        self._client.token = token.reveal()
        return Lease(token, self._clock(), auth["lease_duration"] or None, bool(auth["renewable"]))

    def _another(self, used: Lease) -> Lease:
        """Give a new lease after a token was no longer taken. Errors: StoreRefusedError when no other one is there."""
        if self._token is not None and self._token() == used.token:
            expired = used.seconds is not None and self._age(used) >= used.seconds - 1  # it is told in whole seconds
            what = "has expired" if expired else "was revoked"
            raise StoreRefusedError(f"the token {what} while it was in use; {REFRESH}")
        return self._new()

    def _own_entry(self) -> dict[str, Any] | None:
        """Give the token's entry; empty when its policies hide it; None when the vault does not know the token."""
        try:
            entry: dict[str, Any] = _answer(self._client.auth.token.lookup_self())["data"]
        except Forbidden as error:
            return {} if _by_policy(error) else None
        return entry


def _client(address: str, namespace: str | None, ca: Path | None) -> hvac.Client:
    verify = str(ca) if ca else None  # None: VAULT_CACERT, else what requests trusts
    return hvac.Client(address, token="", verify=verify, timeout=TIMEOUT_SECONDS, namespace=namespace)


@contextmanager
def _told(what: str, address: str) -> Iterator[None]:
    """Put errors of hvac and of the network in our words, and `what` before them. No text of theirs holds a secret."""
    try:
        yield
    except (VaultError, http.RequestException) as error:
        kind, text = _in_our_words(error, address)
        raise kind(f"{what}: {redacted(text)}") from error
    except TrainwrightError as error:
        raise type(error)(f"{what}: {error}") from error


def _in_our_words(error: Exception, address: str) -> tuple[type[TrainwrightError], str]:
    at = f"the vault at {address}"
    match error:
        case http.SSLError():
            return (
                StoreRefusedError,
                f"{at} shows a certificate that is not trusted; set vault.ca to its signers'",
            )
        case http.InvalidURL() | http.InvalidSchema() | http.MissingSchema():
            return InputError, f"{address!r} is no address of a vault; {WRONG_ADDRESS}"
        case http.RequestException():
            return StoreUnavailableError, f"{at} does not answer ({type(error).__name__}); start it, or {WRONG_ADDRESS}"
        case VaultDown():
            return StoreUnavailableError, f"{at} is sealed; unseal it: bao operator unseal, vault operator unseal"
        case VaultNotInitialized():
            return StoreUnavailableError, f"{at} is not initialized; do so: bao operator init, vault operator init"
        case InvalidPath():
            return InputError, _no_path(error)
        case Forbidden() | InvalidRequest():
            return StoreRefusedError, f"{at} refuses ({_why(error)}); see vault.token, vault.role_id and their policies"
        case _:
            return StoreUnavailableError, f"{at} failed ({_why(error)}); try again later, or see its own log"


def _why(error: Exception) -> str:
    return " ".join(str(error.args[0] if error.args else "").split()) or type(error).__name__


def _no_path(error: InvalidPath) -> str:
    told = " ".join(error.errors or ())
    if "no handler" in told:
        return "no secrets engine is mounted there; expected vault:MOUNT/PATH#KEY, as vault:secret/trainwright/s3#key"
    if "namespace" in told:
        return "the namespace is not there; see vault.namespace"
    return "nothing is there, or it was deleted; write it: bao kv put -mount=MOUNT PATH KEY=… (key-value version 2)"


def _no_right(path: str) -> str:
    mount, _, rest = path.partition("/")
    return (
        f'the token may not read it; give one of its policies: path "{mount}/data/{rest}" {{ capabilities = ["read"] }}'
    )


def _by_policy(error: Forbidden) -> bool:
    """Tell whether a known token lacks a right: only then is the refusal one of a list of errors."""
    told = " ".join(error.errors or ())
    return "error occurred" in told and "invalid token" not in told


def _answer(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise InputError(f"what answers there is no vault; {WRONG_ADDRESS}")
    return answer


def _text(key: str, values: dict[str, Any]) -> str:
    value = values.get(key)
    if key not in values:
        raise InputError(f"there is no key {key!r} there; keys: {', '.join(sorted(values)) or 'none'}")
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"the value of {key!r} is {'empty' if value in ('', None) else 'no text'}; write it as text")
    return value
