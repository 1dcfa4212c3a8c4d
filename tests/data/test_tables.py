"""Data sets from CSV and Parquet: which columns mean what, and one line for everything else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pfl_ops.config.experiment import Experiment
from pfl_ops.data import npz as npz_module
from pfl_ops.data.clients import build_clients
from pfl_ops.data.datasets import DataSection, load, partition_for
from pfl_ops.data.npz import DataError, checked
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.data.remarks import dataset_remarks
from pfl_ops.data.tables import read_table

Save = Callable[[pd.DataFrame], Path]


def frame(n: int = 60, **changes: Any) -> pd.DataFrame:
    """Three clients with n/3 samples each, two classes, two features; `changes` replace columns, None drops one."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "age": rng.integers(20, 80, n),
        "client": np.resize(["oslo", "bergen", "tromso"], n),
        "label": np.arange(n) // 3 % 2,
        "dose": rng.random(n),
    }
    return pd.DataFrame({name: values for name, values in (columns | changes).items() if values is not None})


@pytest.fixture(params=["csv", "parquet"])
def save(request: pytest.FixtureRequest, tmp_path: Path) -> Save:
    """Write a table in both formats."""

    def write(table: pd.DataFrame, index: bool = False) -> Path:
        path = tmp_path / f"mine.{request.param}"
        table.to_csv(path, index=index) if request.param == "csv" else table.to_parquet(path, index=index)
        return path

    return write


def test_columns_become_samples_labels_and_clients(save: Save) -> None:
    """Features keep the file's order; each client keeps 16 of 20 samples, 8 of each class, as a fifth is held out."""
    table = frame()
    done = checked(read_table(save(table)), "mine")
    assert done["x_train"].shape == (48, 2) and done["x_test"].shape == (12, 2) and done["x_test"].dtype == np.float32
    rows = np.concatenate([done["x_train"], done["x_test"]])
    assert sorted(rows.tolist()) == sorted(table[["age", "dose"]].to_numpy(np.float32).tolist())
    for number in range(3):  # bergen, oslo, tromso
        assert np.bincount(done["y_train"][done["client_train"] == number]).tolist() == [8, 8]
        assert np.bincount(done["y_test"][done["client_test"] == number]).tolist() == [2, 2]
    ages = set(table["age"][table["client"] == "bergen"])
    assert set(done["x_train"][done["client_train"] == 0][:, 0].astype(int).tolist()) <= ages


def test_a_column_split_says_what_is_for_testing(save: Save) -> None:
    split = np.where(np.arange(60) < 10, "test", "train")
    done = read_table(save(frame(split=split, client=None)))
    assert len(done["x_test"]) == 10 and "client_train" not in done
    assert done["x_test"][:, 0].tolist() == frame()["age"][:10].tolist()


def test_text_labels_and_whole_numbers_in_text_are_numbered(save: Save) -> None:
    table = frame(label=None, y=np.resize(["sick", "healthy"], 60), client=np.resize(["12", "7"], 60))
    done = read_table(save(table.assign(y=table["y"].astype("category"))))
    assert set(done["y_train"].tolist()) == {0, 1} and set(done["client_train"].tolist()) == {7, 12}
    assert (done["y_train"] == (done["client_train"] == 12)).all()  # sick is 1, and 12's


def test_spaces_around_a_text_do_not_count(save: Save) -> None:
    """Of labels 0 to 11 in text, some after a space; in the order of their texts ` 10` would be class 2."""
    labels, clients = np.arange(60) % 12, np.resize(["oslo", "bergen"], 60)
    plain = read_table(save(frame(label=labels, client=clients, split=np.resize(["train", "train", "test"], 60))))
    spaced = frame(
        label=[f" {label}" if i % 3 else f"{label} " for i, label in enumerate(labels)],
        client=[f" {name}" if i < 9 else name for i, name in enumerate(clients)],
        split=np.resize([" train", "train", "test "], 60),
    )
    done = read_table(save(spaced))
    assert all(np.array_equal(done[name], plain[name]) for name in plain)
    assert set(done["y_train"].tolist()) <= set(range(12)) and set(done["client_train"].tolist()) == {0, 1}


def test_whole_numbers_stay_and_flags_are_features(save: Save) -> None:
    done = read_table(save(frame(client=np.resize([5, 3], 60), flag=np.resize([True, False], 60))))
    assert set(done["client_test"].tolist()) == {3, 5} and set(done["x_train"][:, 2].tolist()) == {0.0, 1.0}


def test_a_constant_that_float32_rounds_is_a_feature(save: Save) -> None:
    done = read_table(save(frame(dose=np.full(60, 0.1), stamp=np.full(60, 1_700_000_001))))
    assert set(done["x_train"][:, 1].tolist()) == {float(np.float32(0.1))}


def test_the_draw_of_the_test_set_is_always_the_same(save: Save) -> None:
    first, second = read_table(save(frame())), read_table(save(frame()))
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": None}, r"needs one column label \(or y\); it has neither label nor y, but age, client, dose"),
        ({"y": np.zeros(60, int)}, "it has both label and y"),
        ({"age": None, "dose": None}, "has no feature"),
        ({"town": ["x"] * 60}, r"column 'town' holds .*string.*; features are numbers"),
        ({"dose": [None] + [1.0] * 59}, r"column 'dose' has 1 empty entries \(first: row 1\)"),
        ({"dose": [1.0, np.inf] * 30}, r"column 'dose' has 30 entries that are not finite in float32 \(first: row 2\)"),
        ({"dose": [1e300] * 60}, "column 'dose' has 60 entries that are not finite in float32"),
        (
            {"dose": 1_700_000_000 + np.arange(60)},  # float32 has steps of 128 there
            r"column 'dose' loses its differences in float32: values from 1700000000 to 1700000059; subtract a",
        ),
        ({"client": ["a", " "] * 30}, "column 'client': an empty name"),
        ({"split": ["train", "valid"] * 30}, "column 'split' has 'valid'; allowed: train, test"),
        ({"split": ["train"] * 60}, "has no sample for testing: column split has none"),
        ({"client": np.arange(60)}, "has no sample for testing: a client with one sample keeps it"),
        ({"label": np.full(60, -1)}, "y_train has class -1; classes are 0..65,535"),
        ({"label": [0.5, 1.0] * 30}, r"column 'label' holds .*; it must hold whole numbers or text"),
        (
            {"label": ["0.5", "1.0"] * 30},
            r"label' holds 0.5; it must hold whole .*; a range of numbers has to be divided",
        ),
        ({"label": ["2.0", "3.0"] * 30}, r"column 'label' holds 2.0; it must hold whole numbers or text, as 1 and not"),
        ({"": np.zeros(60)}, "a column without a name, as pandas writes its index; write it with index=False"),
    ],
)
def test_what_does_not_fit_is_named(save: Save, changes: dict[str, Any], message: str) -> None:
    path = save(frame(**changes))
    with pytest.raises(DataError, match=message) as error:
        checked(read_table(path), str(path))
    assert "\n" not in str(error.value) and path.name in str(error.value)


def test_an_index_of_pandas_is_refused(save: Save) -> None:
    with pytest.raises(DataError, match="as pandas writes its index; write it with index=False"):
        read_table(save(frame().sort_values("age"), index=True))  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b"PAR1PAR1", b"label,x\n0", b"label;x\n0;1\n", b"label,x\n"])
def test_damaged_files_are_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name) as error:
        read_table(tmp_path / name)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize(("separator", "told"), [(";", "semicolons"), ("\t", "tabs")])
def test_other_separators_than_commas_are_named(tmp_path: Path, separator: str, told: str) -> None:
    """Spreadsheets of many countries write semicolons, and commas in numbers; a name may have a semicolon."""
    rows = "label;x;w\n0;0,5;1\n1;1,5;2\n0;1;1\n1;2;1\n"
    (tmp_path / "a.csv").write_text(rows.replace(";", separator))
    with pytest.raises(DataError, match=f"^.*a.csv has {told} between its columns; write it with commas, and points"):
        read_table(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text(f"label,x{separator}label\n" + "0,0.5\n1,1\n" * 9)
    assert read_table(tmp_path / "b.csv")["x_train"].shape[1] == 1


def test_text_of_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("label,client,x\n0,Zoë,1\n1,Zoë,2\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.csv is no UTF-8 text; write it with encoding='utf-8'$"):
        read_table(tmp_path / "a.csv")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,x,x\n0,1,2\n")
    with pytest.raises(DataError, match="has two columns named 'x'"):
        read_table(tmp_path / "a.csv")


def test_more_than_this_machine_holds_is_refused(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz_module, "MAX_BYTES", 1024)
    with pytest.raises(DataError, match=r"unpacks to .* KiB; at most 1 KiB can be read on this machine"):
        read_table(save(frame()))


def test_natural_is_the_partition_of_a_file_with_clients(save: Save, npz: Callable[..., Path]) -> None:
    """Unless another is named; K may be given; files without clients and named data sets keep lsqs."""
    path = str(save(frame()))
    experiment = Experiment.of("fedavg", dataset=path)
    assert (experiment.partition.kind, experiment.partition.clients) == ("natural", None)
    assert len(experiment.clients().table) == 3
    assert Experiment.of("fedavg", dataset=path, clients=2).partition.kind == "natural"
    assert Experiment.of("fedavg", dataset=path, partition="iid").partition.kind == "iid"
    assert Experiment.of("fedavg", dataset=str(npz())).partition.kind == "lsqs"
    assert partition_for("digits") == partition_for("shakespeare") == "lsqs"


def test_a_written_experiment_keeps_its_partition(save: Save) -> None:
    """A file of settings states every value: what it ran on before natural was the default, it runs on now."""
    old = Experiment.of("fedavg", dataset=str(save(frame())), partition="lsqs")
    assert Experiment.from_yaml(old.to_yaml()) == old and Experiment.from_yaml(old.to_yaml()).hash == old.hash


def test_clients_keep_their_own_test_samples(save: Save) -> None:
    clients = build_clients(
        load(DataSection(name=str(save(frame())))), PARTITIONS.get("natural")(), seed=0, split="test"
    )
    assert clients.held.sizes.tolist() == [4, 4, 4] and clients.shape == (2,)


@pytest.mark.parametrize("name", ["client_id", "Client", "User ID", "clients"])
def test_owners_under_another_name_are_named(save: Save, name: str) -> None:
    """Such a column is a feature like any other, and the clients are those of a partition; one line says so."""
    table = frame(client=None, **{name: np.arange(60) % 3})
    data = load(DataSection(name=str(save(table))))
    assert data.shape == (3,) and data.train.client is None
    told = f"column '{name}' is a feature, and mine has no clients; their column is named client"
    assert build_clients(data, PARTITIONS.get("iid")(clients=2), seed=0, split="test").remarks[0] == told


@pytest.mark.parametrize("name", ["Split", "is_test", "train/test", "Fold"])
def test_a_split_under_another_name_is_named(save: Save, name: str) -> None:
    """Numbers in such a column are a feature, and test samples are drawn; one line says so."""
    data = load(DataSection(name=str(save(frame(**{name: np.arange(60) % 2})))))
    told = f"column '{name}' is a feature, and mine has no test samples of its own; their column is named split"
    assert dataset_remarks(data) == (told,)
    split = np.resize(["train", "train", "train", "test"], 60)
    assert dataset_remarks(load(DataSection(name=str(save(frame(split=split, **{name: np.arange(60) % 2})))))) == ()


def test_a_table_behind_a_link_is_read_by_the_ending_of_the_link(save: Save, tmp_path: Path) -> None:
    """Stores of contents, as Hugging Face's cache, have files without an ending; it was "damaged, or no .npz file"."""
    data = load(DataSection(name=str(file := save(frame()))))
    link = tmp_path / f"linked{file.suffix}"
    link.symlink_to(file.rename(tmp_path / "0123abcd"))
    assert load(DataSection(name=str(link))).digest == data.digest


def test_features_and_known_clients_make_no_line_on_owners(save: Save) -> None:
    """No line about a feature whose name only begins so, nor about a client's number beside `client`."""
    assert dataset_remarks(load(DataSection(name=str(save(frame(client=None, user_age=np.arange(60))))))) == ()
    assert dataset_remarks(load(DataSection(name=str(save(frame(client_id=np.arange(60) % 3)))))) == ()


def test_arrays_of_owners_under_another_name_are_named(tmp_path: Path) -> None:
    """An .npz file with `clients_train` has no clients; its other arrays are left alone without a line."""
    part = {"x": np.zeros((4, 2), np.float32), "y": np.arange(4) % 2}
    arrays = {f"{key}_{split}": value for split in ("train", "test") for key, value in part.items()}
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays, notes=np.arange(3))
    assert dataset_remarks(load(DataSection(name=str(path)))) == ()
    np.savez(path, **arrays, clients_train=np.arange(4), clients_test=np.arange(4))
    (told,) = dataset_remarks(load(DataSection(name=str(path))))
    assert told == "array 'clients_train' is left alone, and mine has no clients; owners are client_train, client_test"
