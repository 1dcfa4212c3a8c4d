"""Options off the default path, together: each method's equation written out with autograd and `torch.optim`.

One client after another, without the engine's verbs: of the package only the batch plans are read. Five clients of
n = (5, 2, 8, 3, 7), batches of 3 or 4 samples (more than client 1 has), weight decay, momentum, Adam and a decaying η;
a cohort of three, then of one that was never there before, then all.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_ops.algorithms.apfl import APFL
from pfl_ops.algorithms.base import Algorithm
from pfl_ops.algorithms.cd2_pfed import CD2PFed
from pfl_ops.algorithms.ditto import Ditto
from pfl_ops.algorithms.drdm import DRDM
from pfl_ops.algorithms.fedas import FedAS
from pfl_ops.algorithms.fedavg2rep import FedAvg2Rep
from pfl_ops.algorithms.fedbabu import FedBABU
from pfl_ops.algorithms.fedpac import FedPAC
from pfl_ops.algorithms.fedrep import FedRep
from pfl_ops.algorithms.per_fedavg import PerFedAvg
from pfl_ops.algorithms.scaff_pd import ScaffPD
from pfl_ops.federation.method.walk import Keys, Length
from pfl_ops.federation.settings import Training
from pfl_ops.testing import MethodSimulation, ragged_task

D, H, L = 4, 3, 3
P_BODY, P = D * H + H, D * H + H + H * L + L
BODY, HEAD, WHOLE = slice(0, P_BODY), slice(P_BODY, P), slice(0, P)
COHORTS = [[0, 2, 3], [1], [0, 1, 2, 3, 4]]
TRAININGS: dict[str, dict[str, Any]] = {
    "sgd": {"local_epochs": 2, "batch_size": 3, "lr": 0.2, "lr_decay": 0.9, "weight_decay": 0.05},
    "momentum": {"local_epochs": 1, "batch_size": 4, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
    "adam": {"local_epochs": None, "local_steps": 4, "batch_size": 4, "optimiser": "adam", "lr": 0.05, "lr_decay": 0.8},
}
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
Memory = dict[str, Any]


def features(w: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(x @ w[:12].view(H, D).T + w[12:15])


def scores(w: Tensor, x: Tensor) -> Tensor:
    return features(w, x) @ w[15:24].view(L, H).T + w[24:27]


def cross_entropy(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores(w, x), y)


def gradient(loss: Loss, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    leaf = w.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(leaf, x, y), leaf)[0]


class Clients:
    """The clients' data and batches, and plain training of one client in round `t`."""

    def __init__(self, play: MethodSimulation) -> None:
        pool = ragged_task().pool
        self.play, self.how, self.t = play, play.training, 0
        self.x, self.y = ([values[own] for own in pool.index] for values in (pool.x, pool.y))
        self.n = pool.sizes.double()
        self.start = play.task.initial.clone()

    @property
    def lr(self) -> float:
        return self.how.lr * self.how.lr_decay**self.t

    def batches(
        self, k: int, stream: str = "", purpose: str = "train", nth: int = 0, **length: Any
    ) -> list[tuple[Tensor, Tensor]]:
        keys = Keys(0, purpose, self.t)
        (plan,) = self.play.trainer.plans([k], Length(**length, stream=stream), keys, nth)
        steps = [torch.from_numpy(plan.order[plan.bounds[j] : plan.bounds[j + 1]]) for j in range(plan.steps)]
        return [(self.x[k][i], self.y[k][i]) for i in steps]

    def optimiser(
        self, w: Tensor, lr: float | None = None, kind: str | None = None, **how: float
    ) -> torch.optim.Optimizer:
        decay, rate = how.get("weight_decay", self.how.weight_decay), self.lr if lr is None else lr
        if (kind or self.how.optimiser) == "adam":
            return torch.optim.Adam([w], lr=rate, weight_decay=decay)
        return torch.optim.SGD([w], lr=rate, weight_decay=decay, momentum=how.get("momentum", self.how.momentum))

    def train(
        self, w: Tensor, k: int, loss: Loss = cross_entropy, *, only: slice = WHOLE, shift: Tensor | None = None,
        pull: tuple[float, Tensor] | None = None, rule: dict[str, Any] | None = None, **batches: Any,
    ) -> Tensor:  # fmt: skip
        leaf = w[only].detach().clone().requires_grad_()
        optimiser = self.optimiser(leaf, **(rule or {}))
        for x, y in self.batches(k, **batches):
            now = torch.cat([w[: only.start], leaf, w[only.stop :]])
            (g,) = torch.autograd.grad(loss(now, x, y), leaf)
            g = g if shift is None else g + shift[only]
            leaf.grad = g if pull is None else g + pull[0] * (leaf.detach() - pull[1][only])
            optimiser.step()
        return torch.cat([w[: only.start], leaf.detach(), w[only.stop :]])

    def weights(self, cohort: list[int]) -> Tensor:
        return self.n[cohort] / self.n[cohort].sum()

    def counts(self, k: int) -> Tensor:
        return torch.bincount(self.y[k], minlength=L).double()

    def class_means(self, w: Tensor, k: int) -> Tensor:
        f, y = features(w, self.x[k]), self.y[k]
        return torch.stack([f[y == c].mean(0) if bool((y == c).any()) else torch.zeros(H).double() for c in range(L)])


def apfl(m: APFL, c: Clients, s: Memory, cohort: list[int]) -> dict[str, Tensor]:
    v, alpha = s.setdefault("v", c.start.repeat(5, 1)), s.setdefault("alpha", [m.alpha] * 5)
    theta, mixed = [], []
    for k in cohort:
        w, own, a = (*(u.clone().requires_grad_() for u in (s["central"], v[k])), alpha[k])
        descents = c.optimiser(w), c.optimiser(own)
        for j, (x, y) in enumerate(c.batches(k)):
            before = (own - w).detach()
            w.grad = gradient(cross_entropy, w, x, y)
            paper = m.mixing == "step"
            g = gradient(cross_entropy, a * own + (1 - a) * w if paper else own, x, y)
            own.grad = a * g if paper else g
            for descent in descents:
                descent.step()
            if m.adaptive and (m.every == "step" or j == 0):
                slope = g @ before if paper else (a * g + (1 - a) * w.grad) @ (own - w).detach() + 0.02 * a
                a = min(max(a - c.lr * float(slope), 0.0), 1.0)
        theta.append(w.detach())
        mixed.append((a * own + (1 - a) * w).detach())
        v[k], alpha[k] = own.detach() if m.mixing == "step" else mixed[-1], a
    s["central"] = torch.stack(theta).mean(0)
    share = torch.tensor(alpha, dtype=torch.float64)[:, None]
    held = share * v + (1 - share) * s["central"] if m.mixing == "step" else v.clone()
    return {"L1": held, "L2": torch.stack(mixed), "G": s["central"]}


def own_heads(c: Clients, s: Memory, cohort: list[int], w: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """The shared body is averaged, heads stay: L1, L2 and G, the body with the mean of all N heads."""
    s["body"], s["heads"][cohort] = weights @ w[:, BODY], w[:, HEAD]
    held = torch.cat([s["body"].expand(5, -1), s["heads"]], dim=1)
    return {"L1": held, "L2": w, "G": torch.cat([s["body"], s["heads"].mean(0)])}


def fedrep(m: FedRep, c: Clients, s: Memory, cohort: list[int]) -> dict[str, Tensor]:
    models = []
    for k in cohort:
        w = torch.cat([s["body"], s["heads"][k]])
        if m.schedule == "steps":
            w = c.train(w, k, only=HEAD, steps=(c.how.local_steps or 0) - 1)
            models.append(c.train(w, k, steps=1, stream="whole"))
        else:
            w = c.train(w, k, only=HEAD, epochs=m.head_epochs)
            models.append(c.train(w, k, only=BODY, epochs=m.body_epochs, stream="body"))
    return own_heads(c, s, cohort, torch.stack(models), c.weights(cohort))


def fedavg2rep(m: FedAvg2Rep, c: Clients, s: Memory, cohort: list[int]) -> dict[str, Tensor]:
    """`head: personal` after a warm-up of one round."""
    steps = c.how.local_steps or 0
    if c.t == 0:
        w = torch.stack([c.train(c.start, k, steps=m.warm_up_steps) for k in cohort])
        mean = w.mean(0)
        s["body"], s["heads"] = mean[BODY], mean[HEAD].repeat(5, 1)
        return {"L1": mean, "L2": w, "G": mean}
    models = [c.train(torch.cat([s["body"], s["heads"][k]]), k, only=HEAD, steps=steps - 1) for k in cohort]
    w = torch.stack([c.train(w, k, steps=1, stream="whole") for w, k in zip(models, cohort, strict=True)])
    return own_heads(c, s, cohort, w, torch.full((len(cohort),), 1 / len(cohort), dtype=torch.float64))


def fedbabu(m: FedBABU, c: Clients, s: Memory, cohort: list[int]) -> dict[str, Tensor]:
    parts = {"whole": WHOLE, "body": BODY, "head": HEAD}
    central = torch.stack([c.train(s["central"], k, only=parts[m.federated]) for k in cohort]).mean(0)
    tuned = [c.train(central, k, only=parts[m.fine_part], epochs=m.fine_epochs, stream="fine") for k in cohort]
    s["central"] = central
    return {"L1": central, "L2": torch.stack(tuned), "G": central}


def ditto(m: Ditto, c: Clients, s: Memory, cohort: list[int]) -> dict[str, Tensor]:
    v, received = s.setdefault("v", c.start.repeat(5, 1)), s["central"]
    s["central"] = c.weights(cohort) @ torch.stack([c.train(received, k) for k in cohort])
    for k in cohort:
        v[k] = c.train(v[k], k, pull=(m.lam, received), epochs=m.personal_epochs, stream="personal")
    return {"L1": v.clone(), "L2": v[cohort], "G": s["central"]}


def fedpac(m: FedPAC, c: Clients, s: Memory, cohort: list[int]) -> dict[str, Tensor]:
    """`combine: false`."""
    models = []
    for k in cohort:
        w = torch.cat([s["body"], s["heads"][k]])
        own = c.class_means(w, k)
        centres = torch.where(s["known"][:, None], s["centres"], own) if c.t else own
        lam = m.lam if c.t else 0.0

        def loss(u: Tensor, x: Tensor, y: Tensor, centres: Tensor = centres, lam: float = lam) -> Tensor:
            return cross_entropy(u, x, y) + lam * (features(u, x) - centres[y]).square().mean()

        rule = {"lr": m.head_lr, "kind": "sgd", "momentum": c.how.momentum}
        w = c.train(w, k, only=HEAD, rule=rule, epochs=m.head_epochs)
        models.append(c.train(w, k, loss, only=BODY, stream="body"))
    counts = torch.stack([c.counts(k) for k in cohort])
    means = torch.stack([c.class_means(w, k) for w, k in zip(models, cohort, strict=True)])
    s["known"] = counts.sum(0) > 0
    s["centres"] = (counts[..., None] * means).sum(0) / counts.sum(0).clamp(min=1)[:, None]
    return own_heads(c, s, cohort, torch.stack(models), c.weights(cohort))


def fedas(m: FedAS, c: Clients, s: Memory, cohort: list[int]) -> dict[str, Tensor]:
    old: dict[int, Tensor] = s.setdefault("old", {})

    def received(k: int, purpose: str) -> Tensor:
        w = torch.cat([s["body"], s["heads"][k]])
        if k not in old or m.align not in ("receipt", "global"):
            return w
        others = [j for j in old if j != k]
        counts = sum((c.counts(j) for j in others), torch.zeros(L).double())
        sums = sum((c.counts(j)[:, None] * c.class_means(old[j], j) for j in others), torch.zeros(L, H).double())
        centres = sums / counts.clamp(min=1)[:, None]

        def away(u: Tensor, x: Tensor, y: Tensor) -> Tensor:
            if m.align == "global":
                return (counts[y] > 0)[:, None] * (features(u, x) - centres[y]).square()
            return (features(u, x) - features(old[k], x)).square()

        if m.align_rule == "letter":
            g = gradient(lambda u, x, y: away(u, x, y).sum(), w, c.x[k], c.y[k])
            return torch.cat([(w - g)[BODY], w[HEAD]])
        rule = {"lr": m.align_lr, "kind": "sgd", "momentum": 0.0, "weight_decay": 0.0}
        more = {"epochs": 1, "stream": "align", "purpose": purpose}
        return c.train(w, k, lambda u, x, y: away(u, x, y).mean(), only=BODY, rule=rule, **more)

    def loss(k: int) -> Loss:
        if m.align != "parallel" or k not in old:
            return cross_entropy

        def beside(u: Tensor, x: Tensor, y: Tensor) -> Tensor:
            far = (features(u, x) - features(old[k], x)).square().mean()
            return cross_entropy(u, x, y) + m.align_weight * far

        return beside

    w = torch.stack([c.train(received(k, "train"), k, loss(k)) for k in cohort])
    pieces = {
        "sample": lambda k: [(x[None], y[None]) for x, y in zip(c.x[k], c.y[k], strict=True)],
        "dataset": lambda k: [(c.x[k], c.y[k])],
        "batch": lambda k: c.batches(k, epochs=1, stream="fisher"),
    }[m.fisher]
    factors = {"sample": 1 / c.n, "dataset": c.n.square(), "batch": torch.ones(5)}[m.fisher]
    traces = [
        factors[k] * sum(gradient(cross_entropy, own, x, y).square().sum() for x, y in pieces(k))
        for own, k in zip(w, cohort, strict=True)
    ]
    alpha = torch.stack(traces).double()
    alpha = {"proportional": alpha, "softmax": alpha.softmax(0), "min_max": alpha - alpha.min()}[m.normalise]
    alpha = alpha if m.synchronize and bool(alpha.any()) else torch.ones_like(alpha)
    change = alpha / alpha.sum() @ (w[:, BODY] - s["body"]) / (len(cohort) if m.shrink else 1)
    s["body"], s["heads"][cohort] = s["body"] + change, w[:, HEAD]
    old.update(zip(cohort, w, strict=True))
    held = torch.stack([received(k, "evaluate") for k in range(5)])
    return {"L1": held, "L2": w, "G": torch.cat([s["body"], s["heads"].mean(0)])}


def per_fedavg(m: PerFedAvg, c: Clients, s: Memory, cohort: list[int]) -> dict[str, Tensor]:
    models = []
    for k in cohort:
        w = s["central"].clone().requires_grad_()
        descent = c.optimiser(w, lr=m.beta)
        for d, d1, d2 in zip(*(c.batches(k, nth=nth) for nth in range(3)), strict=True):
            now = w.detach().clone()
            g = gradient(cross_entropy, now - m.alpha * gradient(cross_entropy, now, *d), *d1)
            if m.variant == "hf":
                ahead, behind = (gradient(cross_entropy, now + sign * m.delta * g, *d2) for sign in (1, -1))
                g = g - m.alpha * (ahead - behind) / (2 * m.delta)
            w.grad = g
            descent.step()
        models.append(w.detach())
    central = s["central"] = torch.stack(models).mean(0)
    adapted = [central - m.alpha * gradient(cross_entropy, central, c.x[k], c.y[k]) for k in cohort]
    return {"L1": central, "L2": torch.stack(adapted), "G": central}


def scaff_pd(m: ScaffPD, c: Clients, s: Memory, cohort: list[int]) -> dict[str, Tensor]:
    """`gradient: full`; λ by bisection on τ of max(v − τ, 0)."""
    received, before = s["central"], dict(s.setdefault("losses", {}))
    s["losses"].update({k: float(cross_entropy(received, c.x[k], c.y[k])) for k in cohort})
    seen = s["losses"]
    mean = sum(seen.values()) / len(seen)
    score = [(1 + m.theta) * seen[k] - m.theta * before.get(k, seen[k]) if k in seen else mean for k in range(5)]
    lam = s.setdefault("lam", torch.full((5,), 0.2, dtype=torch.float64))
    v = (torch.tensor(score, dtype=torch.float64) + m.rho + lam / m.sigma) / (5 * m.rho + 1 / m.sigma)
    low, high = float(v.min()) - 1, float(v.max())
    for _ in range(100):
        tau = (low + high) / 2
        low, high = (tau, high) if float((v - tau).clamp(min=0).sum()) > 1 else (low, tau)
    s["lam"] = (v - low).clamp(min=0)
    p = s["lam"][cohort] / s["lam"][cohort].sum()
    g = torch.stack([gradient(cross_entropy, received, c.x[k], c.y[k]) for k in cohort])
    w = torch.stack([c.train(received, k, shift=p @ g - g[i]) for i, k in enumerate(cohort)])
    s["central"] = received - m.global_lr * (received - p @ w)
    return {"L1": s["central"], "L2": w, "G": s["central"], "state/lam": s["lam"]}


def drdm(m: DRDM, c: Clients, s: Memory, cohort: list[int]) -> dict[str, Tensor]:
    """γ = 0, so that λ stays n_k / n, and a ball."""
    received, g = s["central"], s.setdefault("g", torch.zeros(5, P).double())
    h = s.setdefault("h", torch.zeros(P).double())
    models = []
    for k in cohort:
        w = received.clone().requires_grad_()
        descent = c.optimiser(w)
        for x, y in c.batches(k):
            w.grad = gradient(cross_entropy, w, x, y) - g[k] + m.alpha * (w.detach() - received)
            descent.step()
            with torch.no_grad():
                w.mul_(min(1.0, (m.radius or torch.inf) / float(w.norm())))
        models.append(w.detach())
    w = torch.stack(models)
    g[cohort] -= m.alpha * (w - received)
    s["h"] = c.n / c.n.sum() @ g if m.h == "dual" else h - m.alpha * (w - received).sum(0) / 5
    s["central"] = w.mean(0) - s["h"] / m.alpha
    return {"L1": s["central"], "L2": w, "G": s["central"], "state/h": s["h"]}


def cd2_pfed(m: CD2PFed, c: Clients, s: Memory, cohort: list[int]) -> dict[str, Tensor]:
    """`temporal: false`: the last q = ⌊3 p t / 2⌋ of three channels are private in round t."""
    q = int(m.share * c.t * H / 2 + 1e-9)
    rows = torch.arange(H) >= H - q
    private = torch.cat([rows[:, None].expand(H, D).flatten(), rows, rows.expand(L, H).flatten(), torch.zeros(L) > 0])
    answering = private | (torch.arange(P) >= P - L)

    def loss(u: Tensor, x: Tensor, y: Tensor) -> Tensor:
        shared, own = (torch.log_softmax(scores(u * group, x), 1) for group in (~private, answering))
        both = F.kl_div(own, shared, log_target=True, reduction="batchmean")
        both = both + F.kl_div(shared, own, log_target=True, reduction="batchmean")
        return cross_entropy(u, x, y) + (both / 2 if 0 < q < H else 0)

    own, received = s.setdefault("own", torch.zeros(5, P).double()), s["central"]
    w = torch.stack([c.train(received + own[k], k, loss) for k in cohort])
    s["central"] = torch.where(private, received, c.weights(cohort) @ w)
    own[cohort] = (w - received) * private
    return {"L1": s["central"] + own, "L2": w, "G": s["central"] + own.mean(0)}


CASES: list[tuple[Algorithm, Callable[..., dict[str, Tensor]], tuple[str, ...]]] = [
    *((method, apfl, tuple(TRAININGS)) for method in (APFL(every="step"), APFL(mixing="round", alpha=0.7))),
    (APFL(adaptive=False, alpha=0.3), apfl, ("adam",)),
    (FedRep(head_epochs=2, body_epochs=3), fedrep, tuple(TRAININGS)),
    (FedRep(schedule="steps"), fedrep, ("adam",)),
    (FedAvg2Rep(head="personal", warm_up=1, warm_up_steps=5), fedavg2rep, ("adam",)),
    (FedBABU(federated="whole", fine_part="head", fine_epochs=2), fedbabu, tuple(TRAININGS)),
    (FedBABU(fine_part="body", fine_epochs=1), fedbabu, ("momentum", "adam")),
    (Ditto(lam=0.3, personal_epochs=3), ditto, tuple(TRAININGS)),
    (FedPAC(combine=False, lam=3, head_epochs=2, head_lr=0.05), fedpac, tuple(TRAININGS)),
    (FedAS(align_rule="letter", fisher="dataset"), fedas, ("momentum",)),
    (FedAS(align="parallel", align_weight=0.7, fisher="batch", normalise="min_max"), fedas, ("momentum", "adam")),
    (FedAS(align="global", align_lr=0.3, normalise="softmax", shrink=True), fedas, tuple(TRAININGS)),
    (FedAS(align="off", synchronize=False), fedas, ("adam",)),
    (PerFedAvg(alpha=0.3, beta=0.1, delta=0.05, variant="hf"), per_fedavg, tuple(TRAININGS)),
    (PerFedAvg(alpha=0.3, variant="fo"), per_fedavg, ("momentum", "adam")),
    (ScaffPD(gradient="full", rho=0.5, sigma=0.3, theta=0.5, global_lr=1.5), scaff_pd, tuple(TRAININGS)),
    (DRDM(gamma=0, radius=1.5, alpha=0.7), drdm, ("adam",)),
    (DRDM(gamma=0, radius=2, alpha=0.7, h="feddyn"), drdm, ("adam",)),
    (CD2PFed(share=0.7, temporal=False), cd2_pfed, tuple(TRAININGS)),
]


@pytest.mark.parametrize(
    ("method", "equation", "training"),
    [
        pytest.param(method, equation, name, id=f"{method.name}-{i}-{name}")
        for i, (method, equation, names) in enumerate(CASES)
        for name in names
    ],
)
def test_options_together_by_their_equations(
    method: Algorithm, equation: Callable[..., dict[str, Tensor]], training: str
) -> None:
    """Every stage of three rounds, stacked and one client at a time."""
    how = Training(rounds=3, precision="float64", **TRAININGS[training])
    for stack in (None, 5):
        play = MethodSimulation(ragged_task(), method, how, stack=stack)
        clients = Clients(play)
        start = clients.start
        memory: Memory = {"central": start, "body": start[BODY], "heads": start[HEAD].repeat(5, 1)}
        for t, cohort in enumerate(COHORTS):
            clients.t = t
            found, expected = play.round(cohort), equation(method, clients, memory, cohort)
            assert {"L1", "L2", "G"} & found.keys() == {"L1", "L2", "G"} & expected.keys()
            for name, value in expected.items():
                message = f"{name} of round {t}, stack {stack}: "
                torch.testing.assert_close(
                    found[name], value, rtol=0, atol=1e-10, msg=lambda text, message=message: message + text
                )
