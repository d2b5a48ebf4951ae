"""Semantic versions, `major.minor.patch[-pre]`, and how one is chosen after another.

Source: Semantic Versioning 2.0.0, clauses 2, 9 and 11 (precedence). Build metadata (`+…`) are no part of a version
here: they have no precedence, so two versions that differ in them alone could not be put in order.
"""

import re
from typing import Final, Literal, TypeAlias

import msgspec

from trainwright.errors import InputError

Bump: TypeAlias = Literal["major", "minor", "patch"]
BUMPS: Final[tuple[Bump, ...]] = ("major", "minor", "patch")

_NUMBER: Final = "(0|[1-9][0-9]*)"
_IDENTIFIER: Final = "(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION: Final = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?")
DIGITS: Final = 9  # of each number, so that it fits an integer of every database
PRE_LENGTH: Final = 64
AFTER_EVERY_PRE: Final = "~"  # sorts after the digits that `pre_order` begins with


class Version(msgspec.Struct, frozen=True, gc=False):  # a list holds ten thousand
    """A semantic version; a later one is greater. `pre` is empty for a release."""

    major: int
    minor: int
    patch: int
    pre: str = ""

    @classmethod
    def parse(cls, text: str) -> "Version":
        """Errors: InputError that says what was expected."""
        match = _VERSION.fullmatch(text)
        if match is None:
            raise InputError(
                f"{text!r} is no version; expected major.minor.patch or major.minor.patch-pre, as 1.10.0 or "
                "2.0.0-rc.1, without leading zeros and without build metadata"
            )
        *numbers, pre = match.groups(default="")
        if max(map(len, numbers)) > DIGITS or len(pre) > PRE_LENGTH:
            raise InputError(
                f"{text!r} is too long a version: {DIGITS} digits a number, {PRE_LENGTH} characters of pre"
            )
        major, minor, patch = map(int, numbers)
        return cls(major, minor, patch, pre)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + (f"-{self.pre}" if self.pre else "")

    def __lt__(self, other: "Version") -> bool:
        return self.order < other.order

    def __le__(self, other: "Version") -> bool:
        return self.order <= other.order

    @property
    def order(self) -> tuple[int, int, int, str]:
        return self.major, self.minor, self.patch, self.pre_order

    @property
    def pre_order(self) -> str:
        """Give a text that sorts, character by character, as the pre-release does: clause 11.4, and a release last.

        Each identifier ends with '!', which sorts before every character of one; a number stands after its length.
        """
        if not self.pre:
            return AFTER_EVERY_PRE
        return "".join(_identifier_order(identifier) for identifier in self.pre.split("."))

    def bumped(self, bump: Bump) -> "Version":
        """Give the least release above this version whose numbers after the bumped one are 0.

        A pre-release leads to its own release where that fits: 1.1.0-rc.1 bumped by minor is 1.1.0. Errors:
        InputError where a number would be too long.
        """
        raised = {
            "major": Version(self.major + 1, 0, 0),
            "minor": Version(self.major, self.minor + 1, 0),
            "patch": Version(self.major, self.minor, self.patch + 1),
        }[bump]
        own = msgspec.structs.replace(self, pre="")
        fits = {"major": not (own.minor or own.patch), "minor": not own.patch, "patch": True}[bump]
        return Version.parse(str(own if self.pre and fits else raised))


NOTHING: Final = Version(0, 0, 0)


def first_after(greatest: Version | None, bump: Bump) -> Version:
    """Give the version that a bump chooses after the greatest that was ever used; the first is a bump of 0.0.0.

    So the first minor is 0.1.0, the first major 1.0.0, the first patch 0.0.1.
    """
    return (NOTHING if greatest is None else greatest).bumped(bump)


def _identifier_order(identifier: str) -> str:
    return f"0{len(identifier):02d}{identifier}!" if identifier.isdigit() else f"1{identifier}!"
