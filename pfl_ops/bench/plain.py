"""The reference: what a user would write with PyTorch alone."""

import copy
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from pfl_ops import rng
from pfl_ops.bench.candidate import BenchCandidate, Label
from pfl_ops.bench.case import RATE, Case, as_written, normalised
from pfl_ops.data.clients import Clients
from pfl_ops.federation.network.net import Net

EVALUATION_BATCH = 500  # images that a model is shown at once in evaluation, as in ours


class PlainLoop(BenchCandidate):
    """One client after the other: a DataLoader over its float32 samples, an nn.Module, torch.optim.

    PyTorch's switches stand as it sets them: on a GPU its convolutions may use TF32. Evaluation has no DataLoader,
    which would be its bottleneck, and its images lie on the device.

    Args:
        case: data, network and models. threads: of this process; None: PyTorch's own number.
    """

    def __init__(self, case: Case, threads: int | None = None) -> None:
        super().__init__(Label("plain"), threads or torch.get_num_threads())
        torch.set_num_threads(self.threads)
        if case.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = False  # PyTorch's defaults, which a `Case` has changed
            torch.backends.cudnn.allow_tf32 = True
        self.case, self.device = case, case.device
        self.network = as_written(case.network).to(self.device)
        x, y = normalised(case.data.train, case.data)
        self.data = [TensorDataset(x[own], y[own]) for own in case.data.train.index]
        self.held = self._by_client(case.data)

    def train(self) -> list[nn.Module]:
        """The clients' models after J steps each."""
        trained: list[nn.Module] = []
        for data in self.data:
            model = copy.deepcopy(self.network)
            lr = RATE[self.case.settings.optimiser]
            make = torch.optim.SGD if self.case.settings.optimiser == "sgd" else torch.optim.Adam
            optimiser = make(model.parameters(), lr=lr)
            for x, y in islice(DataLoader(data, batch_size=self.case.batch, shuffle=True), self.case.steps):
                x, y = x.to(self.device), y.to(self.device)
                optimiser.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimiser.step()
            trained.append(model)
        return trained

    def evaluate(self) -> tuple[list[float], list[float]]:
        """Accuracy of each local model: on its own client's samples, and on the pooled images."""
        model = copy.deepcopy(self.network)
        local, pooled = [], []
        for parameters, own in zip(self._models, self._own, strict=True):
            model.load_state_dict(parameters)
            local.append(accuracy(model, *own))
            pooled.append(accuracy(model, *self._images))
        return local, pooled

    def round(self) -> tuple[list[float], list[float]]:
        """Accuracy on each client's held-out samples: of its own model, and of the average."""
        trained = self.train()
        average = copy.deepcopy(self.network)
        with torch.no_grad():
            for name, parameter in average.named_parameters():
                parameter.copy_(torch.stack([model.get_parameter(name) for model in trained]).mean(dim=0))
        own = [accuracy(model, *held) for model, held in zip(trained, self.held, strict=True)]
        return own, [accuracy(average, *held) for held in self.held]

    # -- what only evaluation needs -----------------------------------------------------------------------------------

    @cached_property
    def _models(self) -> list[dict[str, Tensor]]:
        layout = Net(self.case.network).layout
        return [layout.export(row) for row in self.case.models]

    @cached_property
    def _own(self) -> list[tuple[Tensor, Tensor]]:
        return self._by_client(self.case.judged)

    @cached_property
    def _images(self) -> tuple[Tensor, Tensor]:
        """The pooled images: the same stratified subset as the engine's."""
        held = self.case.judged.held
        x, y = normalised(held, self.case.judged)
        rows = held.subset(self.case.settings.evaluate_images, rng.generator(0, "evaluation/subset"))
        return x[rows].to(self.device), y[rows].to(self.device)

    def _by_client(self, data: Clients) -> list[tuple[Tensor, Tensor]]:
        x, y = normalised(data.held, data)
        return [(x[own].to(self.device), y[own].to(self.device)) for own in data.held.index]


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of right answers; NaN without a sample."""
    model.eval()
    right = [
        (model(images).argmax(dim=1) == classes).sum()
        for images, classes in zip(x.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True)
    ]
    return float(torch.stack(right).sum()) / len(y) if len(y) else float("nan")
