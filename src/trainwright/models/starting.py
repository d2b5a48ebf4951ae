"""Commented starting files (run.yaml) of the built-in models, shipped with the package."""

import difflib
from importlib import resources
from typing import Final

from trainwright.errors import InputError

SUFFIX: Final = ".yaml"


def known_names() -> list[str]:
    folder = resources.files("trainwright") / "templates" / "init"
    return sorted(file.name.removesuffix(SUFFIX) for file in folder.iterdir() if file.name.endswith(SUFFIX))


def starting_file(name: str) -> str:
    """Give the text of a run.yaml that validates as it stands. Errors: InputError with the known names."""
    known = known_names()
    if name not in known:
        nearest = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise InputError(f"there is no starting file {name!r}; {hint}known names: {', '.join(known)}")
    return (resources.files("trainwright") / "templates" / "init" / f"{name}{SUFFIX}").read_text(encoding="utf-8")
