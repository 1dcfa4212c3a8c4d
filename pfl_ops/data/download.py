"""Named data sets from where they are published, through torchvision's downloaders and against their checksums."""

import contextlib
import sys
import tarfile
from pathlib import Path

import numpy as np

from pfl_ops.data.npz import DataError
from pfl_ops.fetching import patience, reason
from pfl_ops.system.scratch import scratch

# torchvision fetches CIFAR as pickles; the same publisher's binary files hold the same images and need no unpickling.
# file, MD5, files for training, file for testing, label bytes a record (the last one is the class), the tar's folder
CIFAR = {
    "cifar10": (
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
        tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        "test_batch.bin",
        1,
    ),
    "cifar100": (
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-binary",
        ("train.bin",),
        "test.bin",
        2,
    ),
}
MNIST = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "kmnist": "KMNIST"}  # torchvision's class


def fetch(name: str) -> dict[str, np.ndarray]:
    """Download a named data set.

    Returns:
        x_train, y_train, x_test, y_test.
    Raises:
        DataError: it could not be downloaded; the text is the reason alone ("no network").
    """
    with scratch() as folder, patience():
        try:
            # the downloaders report on stdout, which belongs to the command's own output
            with contextlib.redirect_stdout(sys.stderr):
                return _cifar(name, folder) if name in CIFAR else _mnist(name, folder)
        except RuntimeError as error:  # torchvision's word for a wrong checksum, or for every mirror having failed
            raise DataError(reason(error) if "Error downloading" in str(error) else "its checksum is wrong") from error
        except (OSError, EOFError, tarfile.TarError, ValueError) as error:
            raise DataError(reason(error)) from error


def _mnist(name: str, folder: Path) -> dict[str, np.ndarray]:
    from torchvision import datasets

    source = getattr(datasets, MNIST[name])
    arrays = {}
    for part, train in (("train", True), ("test", False)):
        # an empty folder of ours: torchvision checks what it downloads, not what it finds
        found = source(str(folder), train=train, download=True)
        arrays[f"x_{part}"], arrays[f"y_{part}"] = found.data.numpy(), found.targets.numpy()
    return arrays


def _cifar(name: str, folder: Path) -> dict[str, np.ndarray]:
    from torchvision import datasets
    from torchvision.datasets.utils import download_url

    file, md5, inside, train, test, label_bytes = CIFAR[name]
    base = datasets.CIFAR10.url.rsplit("/", 1)[0]
    download_url(f"{base}/{file}", str(folder), file, md5)
    arrays: dict[str, np.ndarray] = {}
    with tarfile.open(folder / file) as archive:
        for part, names in (("train", train), ("test", (test,))):
            raw = []
            for member in names:
                stream = archive.extractfile(f"{inside}/{member}")
                if stream is None:
                    raise ValueError(f"{member} is not a file")
                raw.append(np.frombuffer(stream.read(), np.uint8).reshape(-1, label_bytes + 3072))
            records = np.concatenate(raw)
            arrays[f"y_{part}"] = records[:, label_bytes - 1].astype(np.int64)
            # planes R, G, B of 32 rows each
            arrays[f"x_{part}"] = records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return arrays
