"""Contracts by name or path: strict YAML, every expression accepted before the contract is given."""

from importlib import resources
from pathlib import Path
from typing import Final

from trainwright import yamlfile
from trainwright.config import RunConfig
from trainwright.contract.expressions import Parser, connect
from trainwright.contract.rules import Contract, Gate, KeyedError, accept_gate
from trainwright.contract.schema import ContractFile
from trainwright.errors import InputError
from trainwright.yamlfile import Document

SUFFIX: Final = ".yaml"
MAX_SIZE_BYTES: Final = 1 << 20


def shipped_contracts() -> list[str]:
    """Give the names of the contracts that come with the package."""
    folder = resources.files("trainwright") / "contracts"
    return sorted(file.name.removesuffix(SUFFIX) for file in folder.iterdir() if file.name.endswith(SUFFIX))


def contract_named_by(config: RunConfig) -> Contract | None:
    """Load the contract of a configuration. Errors: as `load_contract`; one that is not found is told by its key."""
    if config.contract is None:
        return None
    with config.at("contract"):
        found = read_contract(config.contract)
    return parse_contract(*found)


def load_contract(name_or_path: str | Path) -> Contract:
    """Load a shipped contract by its name, or a file by its path.

    Errors: InputError with file, line and key of each problem; for an unknown name, the names that are shipped.
    """
    return parse_contract(*read_contract(name_or_path))


def file_of(name_or_path: str | Path) -> Path:
    """Give the file of a shipped contract by its name, or of a path. Errors: InputError when it is neither."""
    text = str(name_or_path)
    if text in shipped_contracts():
        return Path(str(resources.files("trainwright") / "contracts" / f"{text}{SUFFIX}"))
    path = Path(name_or_path)
    if not path.is_file():
        raise InputError(f"{text}: is no file and no shipped contract; shipped: {', '.join(shipped_contracts())}")
    return path


def read_contract(name_or_path: str | Path) -> tuple[str, str]:
    """Give the text of a contract, and what stands for the file in messages. Errors: InputError without a line."""
    file, name = file_of(name_or_path), str(name_or_path)
    if file.stat().st_size > MAX_SIZE_BYTES:
        raise InputError(f"{name}: is larger than {MAX_SIZE_BYTES} bytes; a contract is a page or two of rules")
    try:
        return file.read_text(encoding="utf-8"), f"{name}{SUFFIX}" if name in shipped_contracts() else name
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: cannot be read: {error}") from error


def parse_contract(text: str, name: str) -> Contract:
    """Check a contract's text; `name` stands for the file in messages. Errors: InputError, one line a problem."""
    document = yamlfile.parse(text, name)
    entry = yamlfile.validate(ContractFile, document)
    return Contract(entry, _accepted(entry, document), name, text)


def _accepted(entry: ContractFile, document: Document) -> tuple[Gate, ...]:
    gates, problems = [], []
    with connect() as connection:
        parser = Parser(connection)
        for index, gate in enumerate(entry.gates):
            try:
                gates.append(accept_gate(parser, gate, entry.declared))
            except KeyedError as error:
                where = document.where(("gates", index, *error.key.split(".")))
                problems.append(f"{where}: {gate.id}: {error}")
    if problems:
        raise InputError("\n".join(problems))
    return tuple(gates)
