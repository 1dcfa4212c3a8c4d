"""A report's files in a folder."""

import contextlib
import shutil
import tempfile
import time
from pathlib import Path

from pfl_ops import figures
from pfl_ops.errors import PflOpsError
from pfl_ops.files import sync
from pfl_ops.reports.pages.document import Document, Picture, Table
from pfl_ops.reports.pages.html import to_html
from pfl_ops.reports.pages.latex import to_latex, to_latex_document
from pfl_ops.reports.pages.markdown import to_csv, to_markdown

DRAFT = ".report-"


def write(document: Document, folder: str | Path) -> Path:
    """Write the report: index.html, report.md, report.tex, tables/<name>.{csv,tex}, figures/<name>.{svg,png}, and its
    further files.

    Everything is made and on the disk before anything is put in place, each file whole, the page last: a full disk
    leaves the report that was there. Other files of the folder stay.

    Returns:
        The page.
    Raises:
        PflOpsError: the folder can't be written to.
    """
    folder = Path(folder)
    texts: dict[str, str] = dict(document.files)
    for table in document.each(Table):
        texts |= {f"tables/{table.name}.csv": to_csv(table), f"tables/{table.name}.tex": to_latex(table)}
    texts |= {"report.md": to_markdown(document), "report.tex": to_latex_document(document)}
    texts["index.html"] = to_html(document)
    made_folders = [missing for missing in (folder, *folder.parents) if not missing.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with tempfile.TemporaryDirectory(dir=folder, prefix=DRAFT) as made:
            for picture in document.each(Picture):
                for ending in ("svg", "png"):
                    figures.save(picture.draw(), Path(made, "figures", f"{picture.name}.{ending}"))
            for name, text in texts.items():
                path = Path(made, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            files = [path.relative_to(made) for path in Path(made).rglob("*") if path.is_file()]
            for file in files:
                sync(Path(made, file))
            for file in sorted(files, key=lambda file: file.name == "index.html"):
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                Path(made, file).replace(folder / file)
            for place in {(folder / file).parent for file in files}:
                sync(place)
    except (OSError, PflOpsError) as error:
        for missing in made_folders:
            with contextlib.suppress(OSError):
                missing.rmdir()  # made for nothing; one that has entries stays
        if isinstance(error, PflOpsError):
            raise
        raise PflOpsError(f"can't write the report to {folder}: {error.strerror or error}") from error
    return folder / "index.html"


def _sweep(folder: Path) -> None:
    """Remove what a killed process left half-made more than a day ago."""
    for draft in folder.glob(f"{DRAFT}*"):
        if time.time() - draft.stat().st_mtime > 86_400:
            shutil.rmtree(draft, ignore_errors=True)
