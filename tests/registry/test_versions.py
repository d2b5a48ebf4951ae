import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.suites.registry import HOSTILE_VERSIONS
from trainwright.errors import InputError
from trainwright.registry.versions import BUMPS, Bump, Version, first_after

IDENTIFIERS = st.from_regex(r"\A(0|[1-9][0-9]{0,5}|[0-9]{0,3}[A-Za-z-][0-9A-Za-z-]{0,5})\Z")
PRES = st.lists(IDENTIFIERS, max_size=4).map(".".join)
VERSIONS = st.builds(Version, *[st.integers(0, 12)] * 3, PRES)


def precedence(version: Version) -> tuple[object, ...]:
    """Give clause 11 of Semantic Versioning 2.0.0 word by word, apart from the code under test."""
    pre = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in version.pre.split(".") if part]
    return version.major, version.minor, version.patch, not pre, pre


def test_1_10_0_comes_after_1_9_0() -> None:
    assert Version.parse("1.9.0") < Version.parse("1.10.0") < Version.parse("1.10.1") < Version.parse("2.0.0")


def test_pre_releases_are_ordered_as_in_the_specification() -> None:
    order = ["alpha", "alpha.1", "alpha.beta", "beta", "beta.2", "beta.11", "rc.1"]
    versions = [Version.parse(f"1.0.0-{pre}") for pre in order] + [Version.parse("1.0.0")]
    by_letters = sorted(versions, key=str)
    assert by_letters != versions
    assert sorted(by_letters) == versions


@given(one=VERSIONS, other=VERSIONS)
def test_two_versions_are_ordered_as_in_the_specification(one: Version, other: Version) -> None:
    assert (one < other) == (precedence(one) < precedence(other))
    assert (one == other) == (precedence(one) == precedence(other))


@given(version=VERSIONS)
def test_a_version_is_read_as_it_is_written(version: Version) -> None:
    assert Version.parse(str(version)) == version


@pytest.mark.parametrize("text", [*HOSTILE_VERSIONS, "1.0.0-" + "a" * 65, "1.1000000000.0", "1.0.0 ", " 1.0.0"])
def test_what_is_no_version_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(InputError, match=r"expected major\.minor\.patch|is too long a version"):
        Version.parse(text)


@pytest.mark.parametrize(
    ("version", "bumped"),
    [
        ("1.2.3", ("2.0.0", "1.3.0", "1.2.4")),
        ("1.0.0-rc.1", ("1.0.0", "1.0.0", "1.0.0")),
        ("1.1.0-rc.1", ("2.0.0", "1.1.0", "1.1.0")),
        ("1.1.1-rc.1", ("2.0.0", "1.2.0", "1.1.1")),
    ],
)
def test_a_bump_raises_one_number_and_a_pre_release_leads_to_its_release(
    version: str, bumped: tuple[str, str, str]
) -> None:
    assert tuple(str(Version.parse(version).bumped(bump)) for bump in BUMPS) == bumped


@given(version=VERSIONS, bump=st.sampled_from(BUMPS))
def test_a_bump_gives_a_release_that_comes_after(version: Version, bump: Bump) -> None:
    assert version < version.bumped(bump)
    assert not version.bumped(bump).pre


def test_the_first_version_is_a_bump_of_0_0_0() -> None:
    assert [str(first_after(None, bump)) for bump in BUMPS] == ["1.0.0", "0.1.0", "0.0.1"]


def test_a_number_that_would_be_too_long_is_refused() -> None:
    with pytest.raises(InputError, match="is too long a version"):
        Version.parse("999999999.0.0").bumped("major")
