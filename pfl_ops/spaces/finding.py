"""Search spaces by the name of a method: from a file of the user's, the package's own, or the method's fields."""

from pathlib import Path

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.config import yaml_files
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.spaces.derived import from_fields
from pfl_ops.spaces.reading import from_dict
from pfl_ops.spaces.space import Space, SpaceError

PACKAGE = Path(__file__).parents[1]
SHIPPED = (PACKAGE / "search_spaces", PACKAGE.parent / "search_spaces")  # inside a wheel; in a checkout
COMMON = "common"  # the space that all methods of a comparison share


def read(source: str | Path | None, algorithm: str) -> Space:
    """The search space for `algorithm`.

    Args:
        source: a file, or a folder with <algorithm>.yaml; none: ./search_spaces if it has one, else the package's own,
            else what follows from the fields of the method (`derived.from_fields`).
        algorithm: the method's name.
    Raises:
        SpaceError: no such file, or a file that can't be understood.
    """
    if source is None and algorithm not in names() and algorithm in ALGORITHMS.names():
        return from_fields(ALGORITHMS.get(algorithm))
    file = find(source, algorithm)
    return from_dict(yaml_files.read(file), str(_shown(file)))


def find(source: str | Path | None, algorithm: str) -> Path:
    """The file that `read` reads."""
    name = f"{algorithm}.yaml"
    if source is not None:
        given = Path(source).expanduser()
        try:
            path = given / name if given.is_dir() else given
            there = path.exists()
        except (OSError, ValueError) as error:  # a name that is too long, a null byte
            raise SpaceError.at(str(given), "", in_a_line(error)) from error
        if not there:
            raise SpaceError.at(str(given), "", f"has no {name}" if given.is_dir() else "no such search space file")
        return path
    for folder in (Path("search_spaces"), *SHIPPED):
        if (folder / name).is_file():
            return folder / name
    has = ", ".join(names()) or "none"
    raise PflOpsError(f"no search space for '{algorithm}' (there are: {has}); write one and give it by --search-space")


def names() -> list[str]:
    """The algorithms that have a search space here."""
    folders = (Path("search_spaces"), *SHIPPED)
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml")} - {COMMON})


def read_common(source: str | Path | None) -> Space | None:
    """Return the part of the search that methods share where they are compared, `common.yaml`.

    Args:
        source: as for `read`; a file stands for itself, and a folder without common.yaml has none.
    """
    if source is not None and not (Path(source).expanduser() / f"{COMMON}.yaml").is_file():
        return None
    file = find(source, COMMON)
    return from_dict(yaml_files.read(file), str(_shown(file)))


def _shown(path: Path) -> Path:
    """The path as a reader knows it: relative to the working folder where it lies inside."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path
