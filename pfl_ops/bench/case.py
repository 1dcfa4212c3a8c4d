"""One network at one batch size: its data, the experiment that our candidates run, and the work that a sample takes."""

import copy
from collections import OrderedDict
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_ops.bench.settings import BenchSettings
from pfl_ops.config.experiment import Experiment
from pfl_ops.data.clients import Clients, Pool, build_clients
from pfl_ops.data.datasets import DataSection, load
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.execution import choose
from pfl_ops.federation.network.net import Net
from pfl_ops.federation.settings import Execution, Precision
from pfl_ops.models import MODELS
from pfl_ops.models.base import Network, build, example_of
from pfl_ops.system.attributes import replace_attributes

RATE = {"sgd": 0.05, "adam": 0.001}  # η
HEAVY = 1e11  # floating-point operations of a cohort's training, after which an epoch is cut short on a CPU
LEAST_STEPS = 3  # with fewer, what a client costs once would count for too much
FOREVER = 1_000_000  # rounds: as many as are asked for


class Work(NamedTuple):
    """Floating-point operations for one sample; a multiplication and an addition are two."""

    train: int
    forward: int


class Case:
    """The parts that all candidates for one network and batch size share.

    Clients hold equal shares of the training data, drawn at random, and take J full batches each in a round, so that
    every candidate does the same work: C · J · B samples.

    Args:
        settings: what is measured. model: name of the network. batch: B.
        data_dir: where data sets lie; none: as `data.datasets.load` finds them.
    Attributes:
        device: where candidates compute. dataset: name of the data set. network: with its first parameters, float32.
        data: of the C clients that train. judged: of the M clients whose models are evaluated. steps: J.
    Raises:
        PflOpsError: data are missing, the network does not fit them, or there are too few samples.
    """

    def __init__(self, settings: BenchSettings, model: str, batch: int, data_dir: str | None = None) -> None:
        self.settings, self.model, self.batch, self.data_dir = settings, model, batch, data_dir
        self.device = choose.device(Execution(device=settings.device), "float32")
        self.dataset = settings.data_of(model)
        self.section = self._section()
        self.data = self._clients(settings.clients)
        same = settings.evaluate_models == settings.clients
        self.judged = self.data if same else self._clients(settings.evaluate_models)
        self.network = build(MODELS.get(model).model_validate({}), self.data.shape, self.data.n_classes, seed=0)
        self.steps = self._steps()

    @cached_property
    def work(self) -> Work:
        """Operations a sample."""
        return count(self.network, self.data.shape)

    @property
    def title(self) -> str:
        """The case as a heading."""
        return f"{self.model} on {self.section.label}, B {self.batch}"

    @property
    def samples(self) -> int:
        """Samples that a cohort trains on in one round."""
        return self.settings.clients * self.steps * self.batch

    @property
    def answers(self) -> int:
        """Samples shown in one evaluation: the pooled images to each model, and its own client's held-out ones."""
        return self.settings.evaluate_models * self.settings.evaluate_images + len(self.judged.held)

    @cached_property
    def models(self) -> Tensor:
        """M local models that all differ, rows [M, P] on the device."""
        layout = Net(self.network).layout
        start = layout.flatten({name: p.detach() for name, p in self.network.named_parameters()})
        noise = torch.randn(self.settings.evaluate_models, layout.size, generator=torch.Generator().manual_seed(0))
        return noise.mul_(0.1).add_(1).mul_(start).to(self.device)

    def experiment(self, precision: Precision, clients: int) -> Experiment:
        """FedAvg on this case's data: a round is J local steps, an average, and the local view of each stage."""
        optimiser = self.settings.optimiser
        training = {"rounds": FOREVER, "local_steps": self.steps, "batch_size": self.batch, "precision": precision}
        return Experiment.model_validate(
            {
                "data": self.section,
                "partition": {"kind": "iid", "clients": clients},
                "model": {"name": self.model},
                "algorithm": {"name": "fedavg"},
                "training": {**training, "optimiser": optimiser, "lr": RATE[optimiser]},
                "evaluation": {"global_every": FOREVER, "subset": self.settings.evaluate_images, "clients": clients},
            }
        )

    def _section(self) -> DataSection:
        """The usual cut of the data, unless more test images are asked for than it leaves."""
        images = self.settings.evaluate_images
        for section in (DataSection(name=self.dataset), DataSection(name=self.dataset, train_size=None)):
            there = len(load(section, data_dir=self.data_dir).test.y)
            if there >= images:
                return section
        raise PflOpsError(
            f"{self.dataset} has {there} test images, {images} are asked for; take fewer: --evaluate-images {there}"
        )

    def _clients(self, n: int) -> Clients:
        """As `Experiment.build` makes them."""
        dataset = load(self.section, data_dir=self.data_dir)
        return build_clients(dataset, PARTITIONS.get("iid").model_validate({"clients": n}), seed=0, split="test")

    def _steps(self) -> int:
        """J: an epoch's full batches; of heavy networks on a CPU fewer, so that a round takes seconds."""
        smallest = int(self.data.train.sizes.min())
        epoch = smallest // self.batch
        if not epoch:
            raise PflOpsError(
                f"each of {self.settings.clients} clients holds {smallest} samples of {self.section.label}, less than "
                f"a batch of {self.batch}; take fewer clients or a smaller batch"
            )
        wanted = self.settings.steps
        if wanted is not None and wanted > epoch:
            raise PflOpsError(f"an epoch of {self.title} has {epoch} full batches a client; steps can't be {wanted}")
        if wanted is not None or self.device.type == "cuda":
            return wanted or epoch
        affordable = int(HEAVY / (self.settings.clients * self.batch * self.work.train))
        return min(epoch, max(affordable, LEAST_STEPS))


def as_written(network: Network) -> Network:
    """A copy with ReLU before pooling, as papers and their users write it: the same function, more work."""
    layers = list(network.body.named_children())
    for i in range(len(layers) - 1):
        if isinstance(layers[i][1], nn.MaxPool2d) and isinstance(layers[i + 1][1], nn.ReLU):
            layers[i], layers[i + 1] = layers[i + 1], layers[i]
    written = copy.deepcopy(network)
    written.body = nn.Sequential(OrderedDict(copy.deepcopy(layers)))
    return written


def normalised(pool: Pool, data: Clients) -> tuple[Tensor, Tensor]:
    """A pool as a user holds it: float32 inputs [n, C, H, W] or [n, d], contiguous, and classes [n]."""
    x = (pool.x.float() - torch.as_tensor(data.mean)) / torch.as_tensor(data.std)
    return (x.movedim(-1, 1).contiguous() if x.dim() == 4 else x), pool.y


def count(network: nn.Module, shape: tuple[int, ...]) -> Work:
    """Operations of convolutions and matrix products, counted by PyTorch's own counter as they are dispatched.

    Training is a forward and a backward pass; no gradient is taken with respect to the first layer's input.
    """
    from torch.utils.flop_counter import FlopCounterMode

    x = example_of(shape)
    y = torch.zeros(len(x), dtype=torch.int64)
    with replace_attributes(torch.backends.mkldnn, enabled=False):  # oneDNN's LSTM is an operator that is not counted
        with FlopCounterMode(display=False) as both:
            F.cross_entropy(network(x), y).backward()
        network.zero_grad()
        with FlopCounterMode(display=False) as once, torch.no_grad():
            network(x)
    return Work(both.get_total_flops() // len(x), once.get_total_flops() // len(x))
