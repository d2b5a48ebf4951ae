"""`trainwright data`: make data ready for training."""

import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trainwright.data.shards import Manifest

STANDARD_LIBRARY = "stdlib"
PLAIN_INTERVAL_SECONDS = 5.0

app = typer.Typer(help="Make data ready for training.", no_args_is_help=True)


@app.callback()
def data() -> None:
    """Make data ready for training."""


@app.command("prepare")
def prepare_command(
    *,
    source: Annotated[
        str,
        typer.Option("--input", help="Directory, text file, .jsonl or .parquet; or 'stdlib', Python's own library."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the shards, the tokenizer and the manifest.")],
    glob: Annotated[str, typer.Option(help="Names of documents in the directory, at any depth.")] = "*.py",
    vocab_size: Annotated[int, typer.Option(help="Entries of the vocabulary, for 'bpe'.")] = 4096,
    tokenizer: Annotated[str, typer.Option(help="'bpe', 'characters', or a tokenizer.json.")] = "bpe",
    field: Annotated[str, typer.Option(help="The field or column with the text (.jsonl, .parquet).")] = "content",
    validation_share: Annotated[float, typer.Option(help="Share that is held out.")] = 0.1,
    split: Annotated[str, typer.Option(help="'documents': whole ones are held out; 'tail': the end of each.")] = (
        "documents"
    ),
    share: Annotated[float, typer.Option(help="Share of the corpus to take, chosen by hash.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Turn documents into shards of tokens."""
    from trainwright.data.prepare import PrepareRequest, prepare

    directory, without = _standard_library() if source == STANDARD_LIBRARY else (Path(source), ())
    request = PrepareRequest(
        input=directory,
        out=out,
        glob=glob,
        field=field,
        vocabulary_size=vocab_size,
        tokenizer=tokenizer if tokenizer in {"bpe", "characters"} else Path(tokenizer),  # type: ignore[arg-type]  # narrowed by the set
        validation_share=validation_share,
        split=split,  # type: ignore[arg-type]  # checked by the request
        share=share,
        without=without,
    )
    with _progress() as progress:
        manifest = prepare(request, progress)
    typer.echo(manifest.to_json().decode() if as_json else _summary(out, manifest), nl=not as_json)


def _standard_library() -> tuple[Path, tuple[str, ...]]:
    return Path(sysconfig.get_path("stdlib")), ("site-packages", "dist-packages")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Give a callback: a bar on stderr where that is a terminal, else one plain line each few seconds."""
    if not sys.stderr.isatty():
        yield _plain_lines()
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _plain_lines() -> Callable[[int, int], None]:
    last = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PLAIN_INTERVAL_SECONDS:
            last = time.monotonic()
            typer.echo(f"read {done / 1e6:.1f} of {total / 1e6:.1f} MB", err=True)

    return line


def _summary(out: Path, manifest: "Manifest") -> str:
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in manifest.documents_skipped.items()) or "none"
    rows = {
        "folder": out,
        "documents": f"{manifest.documents:,} ({manifest.text_bytes:,} bytes of text)",
        "left out": f"{manifest.documents_identical:,} identical, {manifest.documents_outside_share:,} outside --share",
        "skipped": skipped,
        "tokens": ", ".join(f"{count:,} {split}" for split, count in manifest.tokens.items()),
        "vocabulary": f"{manifest.vocabulary_size:,} entries, {manifest.dtype}",
        "shards": f"{len(manifest.shards):,}",
    }
    return "\n".join(f"{name:<11} {value}" for name, value in rows.items())
