"""Interrupted uploads in parts: listed and aborted by requests of our own, for obstore has no verb for it.

The signature is AWS Signature Version 4, by headers, as Amazon's "Create a signed AWS API request" has it.
"""

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from html import unescape
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from trainwright.checkpoints.s3errors import error_of
from trainwright.secrets import Secret

UPLOAD = re.compile(r"<Upload>.*?<Key>(.*?)</Key>.*?</Upload>", re.DOTALL)
UPLOAD_ID = re.compile(r"<UploadId>(.*?)</UploadId>")
NOTHING: Final = hashlib.sha256(b"").hexdigest()
TIMEOUT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Keys:
    access: str
    secret: Secret
    token: Secret | None


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket by its address: `scheme://host[/bucket]`, as its client reaches it."""

    scheme: str
    host: str
    path: str
    region: str
    keys: Keys

    @classmethod
    def of(cls, signed_url: str, keys: Keys) -> "Bucket":
        """Read off the address and region of a URL that the client signed for the key `k`."""
        parts = urlsplit(signed_url)
        region = parse_qs(parts.query)["X-Amz-Credential"][0].split("/")[2]
        return cls(parts.scheme, parts.netloc, parts.path.removesuffix("/k"), region, keys)

    def abort_uploads(self, prefix: str) -> None:
        """Abort every upload in parts to a key that starts with `prefix`. Errors: those of `error_of`."""
        done: set[tuple[str, str]] = set()
        while left := [upload for upload in self._uploads(prefix) if upload not in done]:
            for key, upload_id in left:
                self._ask("DELETE", f"/{key}", {"uploadId": upload_id})
            done.update(left)

    def _uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        listed = self._ask("GET", "" if self.path else "/", {"prefix": prefix, "uploads": ""})
        for upload in UPLOAD.finditer(listed):
            key, upload_id = unescape(upload[1]), UPLOAD_ID.search(upload[0])
            if key.startswith(prefix) and upload_id:
                yield key, unescape(upload_id[1])

    def _ask(self, method: str, path: str, query: Mapping[str, str]) -> str:
        connect = HTTPSConnection if self.scheme == "https" else HTTPConnection
        connection = connect(self.host, timeout=TIMEOUT_SECONDS)
        path, line = quote(self.path + path), urlencode(sorted(query.items()), quote_via=quote)
        endpoint = f"{self.scheme}://{self.host}"
        what = f"{endpoint}{path}: interrupted uploads cannot be removed"
        try:
            connection.request(method, f"{path}?{line}", headers=self._signed(method, path, line, datetime.now(UTC)))
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, HTTPException) as error:
            raise error_of(str(error), what=what, endpoint=endpoint) from error
        finally:
            connection.close()
        if answer.status >= 300 and not (method == "DELETE" and answer.status == 404):
            raise error_of(f"status code: {answer.status} {answer.reason}: {text}", what=what, endpoint=endpoint)
        return text

    def _signed(self, method: str, path: str, query: str, now: datetime) -> Mapping[str, str]:
        time, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        headers = {"host": self.host, "x-amz-content-sha256": NOTHING, "x-amz-date": time}
        if self.keys.token:
            headers["x-amz-security-token"] = self.keys.token.reveal()
        names, lines = ";".join(sorted(headers)), (f"{name}:{headers[name]}" for name in sorted(headers))
        request = "\n".join([method, path, query, *lines, "", names, NOTHING])
        scope = f"{day}/{self.region}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", time, scope, hashlib.sha256(request.encode()).hexdigest()])
        key = f"AWS4{self.keys.secret.reveal()}".encode()
        for word in (*scope.split("/"), text):
            key = hmac.digest(key, word.encode(), "sha256")
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.keys.access}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        )
        return headers
