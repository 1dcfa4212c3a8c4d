"""`pfl-ops partition import`: clients that another program made, as files of ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfl_ops.cli.browse import Plot, check_plot, show_counts
from pfl_ops.cli.checks import check_data_dir, check_folder, check_output
from pfl_ops.cli.names import names_of
from pfl_ops.cli.options import DataDir, option
from pfl_ops.cli.output import err, out, say
from pfl_ops.errors import LONGEST_PATH, PflOpsError, count, echo

if TYPE_CHECKING:
    import numpy as np

LISTS = (".json", ".npz")


def import_data(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Index lists (.json, .npz), or a data folder of PFLlib.")
    ],
    *,
    save: Annotated[Path, option("Index lists: a folder to write. PFLlib's data: a file .npz.", metavar="PATH")],
    dataset: Annotated[
        str | None,
        option(
            "The data set whose samples index lists number; needed for these.",
            metavar="NAME|FILE",
            names=names_of("datasets"),
        ),
    ] = None,
    plot: Plot = None,
    data_dir: DataDir = None,
) -> None:
    """Turn index lists into a partition (--partition file:FOLDER), PFLlib's data into a data set (--dataset FILE)."""
    source, save = source.expanduser(), save.expanduser()
    check_plot(plot)
    check_data_dir(data_dir)
    if _is_folder(source):
        if dataset is not None:
            raise PflOpsError("--dataset is for index lists; a data folder of PFLlib brings its samples")
        check_output("--save", save, (".npz",))
        counts, use, remark = *_import_folder(source, save), ""
    else:
        if source.suffix not in LISTS:
            raise PflOpsError(
                f"can't import '{echo(source, LONGEST_PATH)}': index lists end in .json or .npz, PFLlib's data are a "
                "folder"
            )
        if dataset is None:
            raise PflOpsError("index lists need --dataset: the data set whose samples they number")
        check_folder("--save", save)
        counts, use, remark = _import_lists(source, save, dataset, data_dir)
    show_counts(counts, f"{source.name}, {count(len(counts), 'client')}", plot)
    say(err(), remark)
    say(out(), f"saved     {save}  ({use})")


def _is_folder(source: Path) -> bool:
    if not str(source).isprintable():
        raise PflOpsError(f"can't import '{echo(source, LONGEST_PATH)}': its name has control characters")
    try:
        source.stat()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise PflOpsError(f"can't import '{echo(source, LONGEST_PATH)}': {why}") from error
    return source.is_dir()


def _import_folder(source: Path, save: Path) -> "tuple[np.ndarray, str]":
    """Write PFLlib's data; returns class counts [K, L] and the flags that use the file."""
    import numpy as np

    from pfl_ops.data.npz import write_npz
    from pfl_ops.data.pfllib import read_folder

    arrays = read_folder(source)
    write_npz(save, arrays)
    y, client = arrays["y_train"], arrays["client_train"]
    n_classes = int(max(y.max(), arrays["y_test"].max())) + 1
    flat = np.bincount(client * n_classes + y, minlength=(int(client.max()) + 1) * n_classes)
    return flat.reshape(-1, n_classes), f"--dataset {save} --train-size none"


def _import_lists(source: Path, save: Path, dataset: str, data_dir: str | None) -> "tuple[np.ndarray, str, str]":
    """Write a recorded partition; returns class counts [K, L], the flags that use the folder, and a line or ""."""
    from pfl_ops.data.datasets import DataSection, load
    from pfl_ops.data.index_lists import make_recorded, read_index_lists
    from pfl_ops.data.partition_files import write_partition

    lists = read_index_lists(source)
    data = load(DataSection(name=dataset, train_size=None), data_dir=data_dir, sealed=True)
    recorded = make_recorded(lists, data, source.name)
    write_partition(save, recorded)
    return recorded.counts, f"--dataset {dataset} --partition file:{save} --train-size none", lists.remark
