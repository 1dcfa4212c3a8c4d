"""Checks of speed: networks in stacks, one process; and processes side by side, each within its share of memory."""

import gc
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache, partial

import torch

from pfl_ops.bench.candidate import Label
from pfl_ops.bench.case import Case
from pfl_ops.bench.gpu_check.options import Options
from pfl_ops.bench.gpu_check.outcome import NO_GPU, CheckRow, passed_if, step
from pfl_ops.bench.ours import EngineCandidate
from pfl_ops.bench.peak import matmul_rate
from pfl_ops.bench.process import Stopwatch
from pfl_ops.bench.settings import BenchSettings, Figure
from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.settings import Execution
from pfl_ops.probe import Probe
from pfl_ops.system.hosting import HostedProcess, OutOfMemory

CAP = 0.05  # share of a GPU that the process may take whose cap is tried
WINDOW = 2.0  # seconds of a measurement of processes side by side


def matrix_product(o: Options) -> Iterator[CheckRow]:
    """Measure a large matrix product in each precision, to hold the other figures against."""
    rates = {f"{p}_tflops": matmul_rate(o.on, p, torch.get_num_threads()) / 1e12 for p in ("float32", "bfloat16")}
    if o.is_gpu:
        rates["tf32_tflops"] = matmul_rate(o.on, "tf32", 1) / 1e12
    yield CheckRow("speed", "matrix product", "passed", figures=rates)


def networks(o: Options) -> Iterator[CheckRow]:
    """Measure training and scoring of each network in stacks of each size."""
    for network, batch in o.sizes.networks.items():
        settings = BenchSettings(
            model=(network,), batch=(batch,), dataset="mnist", clients=o.sizes.clients, steps=o.sizes.steps,
            device=o.device, evaluate_models=o.sizes.models, evaluate_images=o.sizes.images,
        )  # fmt: skip
        case = cache(partial(Case, settings, network, batch, o.data_dir))
        for stack in o.sizes.stacks:
            name = f"{network}, stacks of {stack}"
            yield step(o, "speed", name, partial(_stack, o, case, stack, name))


def _stack(o: Options, make: Callable[[], Case], stack: int, name: str) -> CheckRow:
    case = make()
    label = Label("vmap", chunk=stack) if stack > 1 else Label("loop")
    gc.collect()
    if o.is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    figures: dict[str, float] = {}
    try:
        with closing(EngineCandidate(case, label)) as ours:
            watch = Stopwatch(ours, o.on)
            amounts: dict[Figure, int] = {"train": case.samples, "evaluate": case.answers}
            for figure, amount in amounts.items():
                calls = watch.warm(figure, o.sizes.window).calls
                figures[f"{figure}_samples_per_second"] = calls * amount / watch.seconds(figure, calls)
    except torch.OutOfMemoryError:
        return CheckRow("speed", name, "skipped", "more than the GPU's memory", figures)
    if o.is_gpu:
        figures["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
    return CheckRow("speed", name, "passed", figures=figures)


def processes(o: Options) -> Iterator[CheckRow]:
    """Train in several processes at once, each within its share of the GPU's memory."""
    most = max(o.sizes.processes)
    e = Experiment.of(
        "fedavg", dataset="mnist", model="mlp", clients=max(o.sizes.clients // 5, 2), batch_size=10, local_epochs=1
    ).override({"evaluation.split": "validation", "evaluation.every": 5})
    o.say(f"processes: {most} start")
    with Probe(e, most, data_dir=o.data_dir) as probe:
        for count in o.sizes.processes:
            name = f"{count} side by side"
            yield step(o, "processes", name, partial(_side_by_side, o, probe, count, name))


def _side_by_side(o: Options, probe: Probe, count: int, name: str) -> CheckRow:
    execution = Execution(device=o.device, way="loop", workers=1, threads=1)
    share = 1 / count if o.is_gpu else 0.0
    found = probe.speed(count, execution, share, seconds=min(WINDOW, 10 * o.sizes.window))
    figures = {"samples_per_second": found.rate, "peak_mib_of_each": found.peak / 2**20}
    if not o.is_gpu:
        return CheckRow("processes", name, "passed", "without caps, which only a GPU has", figures)
    cap = share * torch.cuda.get_device_properties(0).total_memory
    return passed_if(found.peak <= cap, "processes", name, "more than its share", **figures, share_mib=cap / 2**20)


def cap(o: Options) -> Iterator[CheckRow]:
    """Let a process take twice its share of the GPU's memory, which must be refused."""
    if not o.is_gpu:
        yield CheckRow("processes", "cap on memory", "skipped", NO_GPU)
        return
    yield step(o, "processes", "cap on memory", _cap)


def _cap() -> CheckRow:
    process = HostedProcess("pfl_ops.bench.gpu_check.inside.Greedy", CAP)
    try:
        taken = process.call("take", 2 * CAP)
        return CheckRow("processes", "cap on memory", "failed", f"{taken / 2**20:,.0f} MiB were given, twice the share")
    except OutOfMemory:
        return CheckRow("processes", "cap on memory", "passed")
    finally:
        process.kill()
