from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from trainwright import yamlfile
from trainwright.errors import InputError


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    count: int = 1
    sizes: tuple[int, int] = (1, 1)


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = "x"
    inner: Inner | None = None
    renamed_: Inner = Field(Inner(), alias="renamed")
    needed: float


def refusal(text: str, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        yamlfile.validate(Outer, yamlfile.override(yamlfile.parse(text, "f.yaml"), overrides))
    return str(caught.value)


def test_every_key_and_item_has_its_line() -> None:
    document = yamlfile.parse("a: 1\nb:\n  - x\n  - c: 2\n", "f.yaml")
    assert document.data == {"a": 1, "b": ["x", {"c": 2}]}
    assert document.lines == {("a",): 1, ("b",): 2, ("b", 0): 3, ("b", 1): 4, ("b", 1, "c"): 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: key 'a' stands twice; it was first on line 1"),
        ("a:\n  b: 1\n  b: 1\n", "f.yaml:3: key 'b' stands twice; it was first on line 2"),
        ("a: [1,\n", "f.yaml:2: is not valid YAML: "),
        ("a: 1\nb: 2024-99-99\n", "f.yaml:2: is not valid YAML: '2024-99-99': month must be in 1..12"),
        ("a: !!int x\n", "f.yaml:1: is not valid YAML: 'x': "),
        ("a: 1\nb: !!python/object:os.system {}\n", "f.yaml:2: is not valid YAML: could not determine a constructor"),
        ("a: 1\n? [b]\n: 2\n", "f.yaml:2: a key is one word"),
        ("a: &x [*x]\n", "f.yaml: is nested too deeply, or holds itself"),
        ("a: \0\n", "f.yaml: is not valid YAML: "),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: is not valid YAML: "),
        ("- a\n", "f.yaml:1: expected a mapping of keys to values, found a list"),
        ("", "f.yaml:1: expected a mapping of keys to values, found an empty file"),
        ("word", "f.yaml:1: expected a mapping of keys to values, found text"),
    ],
)
def test_what_is_no_strict_mapping_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        yamlfile.parse(text, "f.yaml")
    assert str(caught.value).startswith(message)


def bombed(first: str, later: str, levels: int = 30) -> str:
    """Give lines of which each writes the one before it several times; `later` has its places for both names."""
    return first + "".join(later.format(name=f"k{n}", before=f"k{n - 1}") for n in range(1, levels))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (bombed("k0: &k0 [1, 1]\n", "{name}: &{name} [*{before}, *{before}]\n"), 16),
        (bombed("k0: &k0 {x: 1}\n", "{name}: &{name} {{a: *{before}, b: *{before}}}\n"), 16),
        (bombed("k0: &k0 {x: 1}\n", "{name}: &{name} {{<<: [*{before}, *{before}]}}\n"), 16),
        ("a: &a [" + "1," * 400 + "]\nb:\n  [" + "*a, " * 400 + "]\n", 3),
        ("a: 1\nb: [" + "1," * yamlfile.MAX_ENTRIES + "]\n", 2),
    ],
    ids=["lists", "mappings", "merge keys", "one level", "plain"],
)
def test_a_few_lines_that_write_out_to_many_entries_are_refused_at_once(text: str, line: int) -> None:
    with pytest.raises(InputError) as caught:
        yamlfile.parse(text, "f.yaml")
    assert str(caught.value) == f"f.yaml:{line}: holds over 100,000 entries, with its aliases written out"


def test_aliases_and_merge_keys_that_write_out_to_little_are_read() -> None:
    text = bombed("k0: &k0 {x: 1}\n", "{name}: &{name} {{<<: *{before}, y: 2}}\n", levels=4)
    assert yamlfile.parse(text, "f.yaml").data["k3"] == {"x": 1, "y": 2}


@given(st.text(alphabet="ab:-? \n[]{},&*!|>'\"#%@0129.e\t", max_size=40))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        assert isinstance(yamlfile.parse(text, "f.yaml").data, dict)
    except InputError as error:
        assert str(error).startswith("f.yaml")  # noqa: PT017  either end is right


def test_a_number_with_an_exponent_needs_no_point() -> None:
    assert yamlfile.parse("a: 3e-4\nb: 1E+3\nc: -2.5e1\nd: e4\n", "f.yaml").data == {
        "a": 3e-4,
        "b": 1000.0,
        "c": -25.0,
        "d": "e4",
    }


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.yaml: cannot be read: No such file"):
        yamlfile.load(tmp_path / "no.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(InputError, match=r"bytes\.yaml: is not UTF-8 text: .* at byte 3"):
        yamlfile.load(tmp_path / "bytes.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("needed: 1\nnmae: y\n", "f.yaml:2: unknown key 'nmae'; did you mean 'name'?"),
        ("needed: 1\nzzz: y\n", "f.yaml:2: unknown key 'zzz'; known keys: inner, name, needed, renamed"),
        ("needed: 1\ninner:\n  cuont: 1\n", "f.yaml:3: unknown key 'inner.cuont'; did you mean 'count'?"),
        ("needed: 1\nrenamed:\n  cuont: 1\n", "f.yaml:3: unknown key 'renamed.cuont'; did you mean 'count'?"),
        ("name: y\n", "f.yaml: key 'needed' is missing"),
        ("needed: 1\ninner:\n  count: 1.5\n", "f.yaml:3: inner.count: found 1.5; input should be a valid integer"),
        ("needed: 1\ninner:\n  sizes: [1, x]\n", "f.yaml:3: inner.sizes.1: found 'x'; input should be a valid integer"),
        ("needed: 1\ninner:\n  sizes: [1]\n", "f.yaml:3: key 'inner.sizes.1' is missing"),
        ("needed: 1\ninner: 5\n", "f.yaml:2: inner: found 5; expected a mapping of keys to values"),
    ],
)
def test_each_problem_names_file_line_key_and_expectation(text: str, message: str) -> None:
    assert refusal(text).startswith(message)


def test_every_problem_is_told_on_a_line_of_its_own() -> None:
    assert refusal("nmae: y\ninner:\n  count: x\n").splitlines() == [
        "f.yaml:3: inner.count: found 'x'; input should be a valid integer, unable to parse string as an integer",
        "f.yaml: key 'needed' is missing",
        "f.yaml:1: unknown key 'nmae'; did you mean 'name'?",
    ]


def test_an_override_wins_is_typed_by_the_schema_and_leaves_the_document_as_it_was() -> None:
    document = yamlfile.parse("needed: 1\ninner: {count: 2}\n", "f.yaml")
    changed = yamlfile.override(document, ["inner.count=7", "needed=3e-4", "name=a=b", "renamed.count=5"])
    outer = yamlfile.validate(Outer, changed)
    assert outer.inner is not None
    assert (outer.inner.count, outer.needed, outer.name, outer.renamed_.count) == (7, 3e-4, "a=b", 5)
    assert document.data == {"needed": 1, "inner": {"count": 2}}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("needed", "argument 'needed': expected key=value, as in train.steps=50"),
        ("=1", "argument '=1': expected key=value"),
        ("a..b=1", "argument 'a..b=1': expected key=value"),
        ("needed=[1", "argument 'needed=[1': the value is not valid YAML"),
        ("needed=2024-99-99", "argument 'needed=2024-99-99': the value is not valid YAML"),
        ("inner.cuont=1", "argument 'inner.cuont=1': unknown key 'inner.cuont'; did you mean 'count'?"),
        ("inner.count=x", "argument 'inner.count=x': inner.count: found 'x'; input should be a valid integer"),
    ],
)
def test_a_wrong_override_is_named_as_it_was_typed(argument: str, message: str) -> None:
    assert refusal("needed: 1\n", argument).startswith(message)


def test_a_section_is_a_document_with_its_own_lines() -> None:
    document = yamlfile.override(yamlfile.parse("a: 1\nb:\n  c: 2\n", "f.yaml"), ["b.d=3"])
    section = document.at("b")
    assert section.data == {"c": 2, "d": 3}
    assert section.where(("c",)) == "f.yaml:3"
    assert section.where(("d",)) == "argument 'b.d=3'"
    assert document.at("none").data == {}


TEXT = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=8) | st.sampled_from(["3e-4", "no", "1"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_what_is_dumped_is_parsed_as_what_it_was(data: dict[str, Any]) -> None:
    assert yamlfile.parse(yamlfile.dump(data), "f.yaml").data == data
