"""From an experiment's sections to what the engine runs on: the task that a method sees, and the trainer."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from pfl_ops.data.clients import Clients
from pfl_ops.federation.loop import cohort
from pfl_ops.federation.losses import LOSSES
from pfl_ops.federation.method.contract import ClientRows, Net, Task
from pfl_ops.federation.method.method import Method
from pfl_ops.federation.method.walk import Length
from pfl_ops.federation.network.layout import initial_extra
from pfl_ops.federation.network.optim import Rule
from pfl_ops.federation.settings import Participation, Training
from pfl_ops.federation.training.feed import Feed
from pfl_ops.federation.training.train import Trainer
from pfl_ops.system.allocator import keep_freed_memory
from pfl_ops.system.collector import collect_as_usual


def constant_buffers(network: nn.Module) -> dict[str, Tensor]:
    """Return copies of the buffers of a network's state dict by name, on the CPU: some are drawn by the run's seed.

    >>> layer = nn.Linear(1, 1)
    >>> layer.register_buffer("scale", torch.tensor([2.0]))
    >>> constant_buffers(nn.Sequential(layer, nn.ReLU()))
    {'0.scale': tensor([2.])}
    """
    names = {name for name, _ in network.named_buffers(remove_duplicate=False)}
    return {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in network.state_dict().items()
        if name in names
    }


def make_task(
    network: nn.Module, method: Method, clients: Clients, feed: Feed, training: Training, participation: Participation,
    seed: int, new_rows: Callable[[Tensor, int], ClientRows] = ClientRows,
) -> Task:  # fmt: skip
    """Make the task; Θ⁰ [P] is the network's parameters, then the first values of a method's own blocks.

    Args:
        new_rows: makes the state of all clients, of a row [Q] and their number; in memory or in a file.
    """
    net = Net(network)
    sizes = clients.train.sizes
    task = Task(
        net=net,
        layout=net.layout,
        initial=net.row(),
        sizes=sizes.to(feed.device),
        class_counts=clients.train.class_counts(clients.n_classes).to(feed.device),
        rounds=training.rounds,
        cohort_size=cohort.size(participation, len(sizes)),
        seed=seed,
        example=feed.inputs(torch.zeros(1, dtype=torch.int64, device=feed.device)),
        loss=LOSSES.get(training.loss),
        new_rows=new_rows,
    )
    return with_extra(task, network, method)


def with_extra(task: Task, network: nn.Module, method: Method) -> Task:
    """Return the task with the blocks that a method adds to the network's layout."""
    blocks: Mapping[str, tuple[int, ...]] = getattr(method, "extra", lambda task: {})(task)
    if not blocks:
        return task
    net = Net(network, blocks)
    added = initial_extra(blocks, task.seed)
    return replace(task, net=net, layout=net.layout, initial=torch.cat([task.initial, added.to(task.initial)]))


def rule_of(training: Training) -> Rule:
    """The optimiser of a training section."""
    return Rule(training.optimiser, training.lr, training.momentum, training.weight_decay)


def make_trainer(
    task: Task, feed: Feed, training: Training, stack: int | None, draws: bool, compiled: bool = False
) -> Trainer:
    """The trainer of an experiment's training section.

    Args:
        stack: clients stacked at once; None: one at a time.
        draws: the network may draw numbers itself (dropout).
        compiled: use the compiled kernels where they cover a step.
    """
    keep_freed_memory()
    collect_as_usual()
    rule = rule_of(training)
    length = Length(training.local_epochs, training.local_steps, training.batch_size)
    return Trainer(
        task, feed, rule, length, stack, bfloat16=training.precision == "bfloat16", draws=draws, compiled=compiled
    )
