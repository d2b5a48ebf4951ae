"""What a bucket answered, as an error of ours: refused, unavailable, or not there."""

import re
from html import unescape
from typing import Final

from trainwright.errors import DamagedCheckpointError, StoreError, StoreRefusedError, StoreUnavailableError

STATUS = re.compile(r"status code: (\d{3})(?: ([^:\n<]*))?")
ANSWER = re.compile(r"<Code>(?P<code>[^<]*)</Code>(?:.*?<Message>(?P<message>[^<]*)</Message>)?", re.DOTALL)
NO_KEYS = re.compile(r"https?://[^/ ]+/latest/(api/token|meta-data/)")  # asked last for a role, where none are given
TRY_LATER: Final = {408, 429}
REMEDIES: Final = {
    "SignatureDoesNotMatch": "check s3.secret_key (or AWS_SECRET_ACCESS_KEY)",
    "InvalidAccessKeyId": "check s3.access_key (or AWS_ACCESS_KEY_ID)",
    "ExpiredToken": "renew s3.session_token (or AWS_SESSION_TOKEN)",
    "AccessDenied": "give this key the right to do so, or use another",
    "NoSuchBucket": "make the bucket, or name another",
    "RequestTimeTooSkewed": "set this machine's clock",
    "AuthorizationHeaderMalformed": "check s3.region",
    "PermanentRedirect": "check s3.region and s3.endpoint",
}


def error_of(text: str, *, what: str, endpoint: str, missing: bool = False) -> StoreError:
    """Give the error for an answer `text` (what obstore tells, or `status code: …` and the body).

    `what` says what could not be done; `missing`, that the store says that there is no such value.
    """
    status = STATUS.search(text)
    number = int(status.group(1)) if status else None
    answer = ANSWER.search(text)
    code = answer["code"] if answer else ""
    if missing and code != "NoSuchBucket":
        return DamagedCheckpointError(f"{what}: it is not in this store")
    if NO_KEYS.search(text):
        return StoreRefusedError(f"{what}: there are no keys; set s3.access_key and s3.secret_key, or AWS_* for them")
    reason = _reason(text, answer, status)
    if number is None or number >= 500 or number in TRY_LATER:
        return StoreUnavailableError(f"{what}: {endpoint} does not answer as it should: {reason}; try again later")
    return StoreRefusedError(f"{what}: {endpoint} refuses: {reason}; {_remedy(code, number)}")


def _reason(text: str, answer: re.Match[str] | None, status: re.Match[str] | None) -> str:
    number = status[1] if status else ""
    if answer:
        return f"{number} {answer['code']}: {unescape(answer['message'] or '').strip().rstrip('.')}"
    return f"{number} {(status[2] or '').strip()}".strip() if status else text.partition("\n")[0].strip()


def _remedy(code: str, status: int) -> str:
    if status == 403:
        return REMEDIES.get(code, "check s3.access_key, s3.secret_key and what they may do")
    return REMEDIES.get(code, "check s3.endpoint, s3.region and the name of the bucket")
