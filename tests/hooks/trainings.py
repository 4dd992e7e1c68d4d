"""Small trainings as people write them, none of which knows of us. Each tells what really happened in it.

`start(model)` stands where a script may attach; whatever else is captured has to be found from outside. The facts
returned are computed here with plain arithmetic: per step the loss of every backward, the gradient norm before any
clipping, and what else the training is about. Run as a script, this file serves the trainings that it is asked for
under `AutoAttach`, each in a fork of its own, because AutoAttach looks at everything that lives in the process.
"""

from __future__ import annotations

import copy
import gc
import json
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_  # by name, before anything is wrapped
from torch.utils.checkpoint import checkpoint

Start = Callable[[nn.Module], object]
Facts = dict[str, Any]


class Net(nn.Module):
    """Two layers, 4 -> 5 -> 3."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 5)
        self.b = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(x).relu())
        return y


class Wrapper(nn.Module):
    """What DDP looks like from outside."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        return self.module(*args)


def batch(seed: int, rows: int = 6, width: int = 4) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def norm_of(module: nn.Module, factor: float = 1.0) -> float:
    """L2 norm over all gradients times `factor`, in float64."""
    squares = [(p.grad.double() * factor).square().sum().item() for p in module.parameters() if p.grad is not None]
    return math.sqrt(sum(squares))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.125)


def grad_scaler(start: Start) -> Facts:
    model = Net()
    start(model)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    losses, norms = [], []
    for step in range(3):
        loss = model(batch(step)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        norms.append(norm_of(model, 1 / scaler.get_scale()))
        if step == 1:
            assert model.a.weight.grad is not None
            model.a.weight.grad[2, 1] = math.inf
            norms[-1] = math.nan
        scaler.step(optimizer)
        scaler.update()
        losses.append([loss.item()])
    return {"losses": losses, "norms": norms, "scale": scaler.get_scale()}


def muon_and_adamw(start: Start) -> Facts:
    model = Net()
    start(model)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    optimizers = [
        torch.optim.Muon(matrices, lr=0.25, weight_decay=0.0),
        torch.optim.AdamW([p for p in model.parameters() if p.dim() == 1], lr=0.01),
    ]
    losses, norms = [], []
    for step in range(2):
        loss = model(batch(step)).square().mean()
        loss.backward()
        norms.append(norm_of(model))
        clip_grad_norm_(model.parameters(), norms[-1] / 4)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append([loss.item()])
    return {"losses": losses, "norms": norms}


def optimizer_in_backward(start: Start) -> Facts:
    model = Net()
    start(model)
    optimizers = {p: torch.optim.SGD([p], lr=0.125) for p in model.parameters()}
    squares: list[float] = []

    def step_now(parameter: Tensor) -> None:
        assert parameter.grad is not None
        squares.append(parameter.grad.double().square().sum().item())
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_now)
    losses, norms = [], []
    for step in range(2):
        loss = model(batch(step)).square().mean()
        squares.clear()
        loss.backward()
        norms.append(math.sqrt(sum(squares)))
        losses.append([loss.item()])
    return {"losses": losses, "norms": norms}


def lbfgs(start: Start) -> Facts:
    model = Net()
    start(model)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
    losses: list[list[float]] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(batch(0)).square().mean()
        loss.backward()
        losses[-1].append(loss.item())
        return loss

    for _ in range(2):
        losses.append([])
        optimizer.step(closure)
    return {"losses": losses}


def accumulation(start: Start) -> Facts:
    model = Net()
    start(model)
    optimizer = sgd(model)
    losses: list[list[float]] = []
    norms = []
    for step in range(2):
        losses.append([])
        for part in range(3):
            loss = model(batch(3 * step + part)).square().mean() / 3
            loss.backward()
            losses[-1].append(loss.item())
        norms.append(norm_of(model))
        clip_grad_norm_(iter(model.parameters()), 1e9)
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "norms": norms}


def evaluation(start: Start) -> Facts:
    model = Net()
    start(model)
    optimizer = sgd(model)
    losses = []
    for step in range(2):
        loss = model(batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item()])
        model.eval()
        with torch.no_grad():
            model(batch(10))
            model(batch(11))
        model.train()
        with torch.inference_mode():
            model(batch(12))
    return {"losses": losses}


def serving(start: Start) -> Facts:
    """A script that loads a model and answers; nothing of it is trained."""
    model = Net().eval().requires_grad_(False)
    start(model)
    with torch.inference_mode():
        for step in range(3):
            model(batch(step))
    return {"n_forwards": 3}


def patient(start: Start) -> Facts:
    """Trains until somebody has seen enough."""
    model = Net()
    start(model)
    optimizer = sgd(model)
    enough = Path(os.environ["ENOUGH"])
    n_steps = 0
    while n_steps < 4000 and not enough.exists():
        model(batch(n_steps)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.005)
        n_steps += 1
    return {"n_steps": n_steps}


class Temperature(nn.Module):
    """A criterion with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits * self.scale, target)


def criteria(start: Start) -> Facts:
    model, criterion, learnt = Net(), nn.CrossEntropyLoss(), Temperature()
    start(model)
    optimizer = torch.optim.SGD([*model.parameters(), *learnt.parameters()], lr=0.125)
    target = torch.tensor([0, 1, 2, 0, 1, 2])
    losses = []
    for step in range(2):
        logits = model(batch(step))
        loss = criterion(logits, target) + learnt(logits, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item()])
    return {"losses": losses}


class Scorer(nn.Module):
    """A criterion that holds a Linear: a model of its own, as far as one can see."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(3, 1)

    def forward(self, y: Tensor) -> Tensor:
        loss: Tensor = self.score(y).square().mean()
        return loss


def learnt_criterion(start: Start) -> Facts:
    model, criterion = Net(), Scorer()
    start(nn.ModuleDict({"net": model, "criterion": criterion}))
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.125)
    losses = []
    for step in range(2):
        loss = criterion(model(batch(step)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item()])
    return {"losses": losses}


class SelfTraining(nn.Module):
    """A model that is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
        self.head = nn.Linear(5, 3)

    def loss(self, x: Tensor) -> Tensor:
        loss: Tensor = self.head(self.body(x)).square().mean()
        return loss


def method(start: Start) -> Facts:
    model = SelfTraining()
    start(model)
    optimizer = sgd(model)
    losses = []
    for step in range(2):
        loss = model.loss(batch(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item()])
    return {"losses": losses}


class Generator(nn.Module):
    def __init__(self, fc: nn.Linear) -> None:
        super().__init__()
        self.fc = fc  # older than the model that holds it

    def forward(self, z: Tensor) -> Tensor:
        y: Tensor = self.fc(z)
        return y


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y


def gan(start: Start) -> Facts:
    generator, critic = Generator(nn.Linear(2, 4)), Critic()
    start(nn.ModuleDict({"g": generator, "d": critic}))
    optimizer_g, optimizer_d = sgd(generator), sgd(critic)
    losses = []
    for step in range(2):
        optimizer_d.zero_grad()
        real = critic(batch(step)).square().mean()
        real.backward()
        fake = generator(batch(10 + step, width=2))
        made = critic(fake.detach()).square().mean()
        made.backward()
        optimizer_d.step()
        losses.append([real.item(), made.item()])
        optimizer_g.zero_grad()
        fooled = (critic(fake) - 1).square().mean()
        fooled.backward()
        optimizer_g.step()
        losses.append([fooled.item()])
    return {"losses": losses}


class Teacher(Net):
    pass


class Student(Net):
    pass


def distillation(start: Start) -> Facts:
    teacher, student = Teacher(), Student()
    start(nn.ModuleDict({"teacher": teacher, "student": student}))
    teacher.eval().requires_grad_(False)
    optimizer = sgd(student)
    losses = []
    for step in range(3):
        target = teacher(batch(step))
        loss = mse_loss(student(batch(step)), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item()])
    return {"losses": losses}


def copied(start: Start) -> Facts:
    model = copy.deepcopy(Net())
    average = copy.deepcopy(model).requires_grad_(False)
    start(model)
    optimizer = sgd(model)
    losses = []
    for step in range(2):
        loss = model(batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(new, 0.5)
        losses.append([loss.item()])
    return {"losses": losses}


def wrapped(start: Start) -> Facts:
    model = Wrapper(Net())
    start(model)
    optimizer = sgd(model)
    losses = []
    for step in range(2):
        loss = model(batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item()])
    return {"losses": losses}


def wrapped_late(start: Start) -> Facts:
    """A first look at the output, then the wrapping, then the training."""
    inner = Net()
    start(inner)
    inner.eval()
    inner(batch(0))
    inner.train()
    return {"losses": _train(Wrapper(inner), 2)}


class Shared(nn.Module):
    """One layer used twice, and two that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.twice.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.tied(self.twice(self.twice(x)).tanh())
        return y


def shared(start: Start) -> Facts:
    model = Shared()
    start(model)
    return {"losses": _train(model, 2)}


def frozen(start: Start) -> Facts:
    model = Net()
    model.a.requires_grad_(False)
    start(model)
    return {"losses": _train(model, 2)}


class Checkpointed(nn.Module):
    """A layer, a recomputed block of two, a head."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(checkpoint(self.block, self.first(x), use_reentrant=self.reentrant))
        return y


def checkpointed(start: Start) -> Facts:
    model = Checkpointed(reentrant=False)
    start(model)
    return {"losses": _train(model, 2)}


def checkpointed_reentrant(start: Start) -> Facts:
    model = Checkpointed(reentrant=True)
    start(model)
    return {"losses": _train(model, 2)}


def checkpointed_loss(start: Start) -> Facts:
    """A recomputed region that ends in a scalar: the backward inside the backward is of no loss."""
    model = Net()
    start(model)
    optimizer = sgd(model)
    losses = []
    for step in range(2):
        x = batch(step).requires_grad_()
        loss = checkpoint(lambda x: model(x).square().mean(), x, use_reentrant=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item()])
    return {"losses": losses}


def eval_mode_only(start: Start) -> Facts:
    """A fine-tuning of a model that came in evaluation mode."""
    model = Net().eval()
    start(model)
    return {"losses": _train(model, 2)}


def forked_worker(start: Start) -> Facts:
    """A data worker that runs a model, before and while the training does."""
    model = Net()
    start(model)
    losses = []
    for step in range(2):
        child = os.fork()
        if child == 0:
            Net()(batch(0)).sum().backward()
            model(batch(0)).sum().backward()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        losses += _train(model, 1, first=step)
    return {"losses": losses}


def _train(model: nn.Module, n_steps: int, first: int = 0, width: int = 4) -> list[list[float]]:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.125)
    losses = []
    for step in range(first, first + n_steps):
        loss = model(batch(step, width=width)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item()])
    return losses


def shared_encoder(start: Start) -> Facts:
    """Two models around one encoder; of the first only the parts are called."""
    encoder = nn.Linear(4, 4)
    large, small = nn.Sequential(encoder, nn.Linear(4, 2), nn.Linear(2, 1)), nn.Sequential(encoder, nn.Linear(4, 1))
    start(nn.ModuleDict({"small": small, "large": large}))
    optimizer = sgd(small)
    loss = small[1](small[0](batch(0))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"losses": [[loss.item()], *_train(large, 1, first=1)]}


def second_model_later(start: Start) -> Facts:
    """A model that is made and trained when the first has long been trained."""
    first = Net()
    start(first)
    losses = _train(first, 3)
    second = SelfTraining()
    optimizer = sgd(second)
    for step in range(2):
        loss = second.loss(batch(step))
        loss.backward()
        optimizer.step()
        losses.append([loss.item()])
    return {"losses": losses}


def parameters_without_layers(start: Start) -> Facts:
    """What runs first has parameters but no layer to capture."""
    table, model = nn.Embedding(6, 4), Net()
    start(model)
    loss = model(table(torch.arange(6))).square().mean()
    loss.backward()
    return {"losses": [[loss.item()]]}


def finder_breaks(start: Start) -> Facts:
    """A bug of ours before anything is attached."""
    from fp8debug.hooks import autoattach

    vars(autoattach)["find_roots"] = lambda called: [][0]
    return method(start)


def endless(start: Start) -> Facts:
    """Writes parts as often as it can until it is killed."""
    from fp8debug.hooks import flushing

    vars(flushing)["flush_interval_s"] = lambda elapsed_s: -1.0
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    start(model)
    return {"losses": _train(model, 1_000_000, width=64)}


def endless_with_output(start: Start) -> Facts:
    """As endless, with a file of its own, one line a step."""
    from fp8debug.hooks import flushing

    vars(flushing)["flush_interval_s"] = lambda elapsed_s: -1.0
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    start(model)
    optimizer = sgd(model)
    with open(os.environ["OUTPUT"], "w") as output:
        for step in range(1_000_000):
            loss = model(batch(step, width=16)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(step, loss.item().hex(), file=output, flush=True)
    return {}


def inside_a_transform(start: Start) -> Facts:
    """The model runs in nothing but torch.func: it is found there."""
    model = Net()
    start(model)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss_of(given: dict[str, Tensor], x: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(model, given, (x,)).square().mean()
        return y

    losses = []
    for step in range(2):
        per_row = torch.func.vmap(torch.func.grad_and_value(loss_of), in_dims=(None, 0))
        gradients, rows = per_row(weights, batch(step))
        weights = {name: w - 0.125 * gradients[name].mean(0) for name, w in weights.items()}
        losses.append([rows.mean().item()])
    return {"losses": losses}


def no_model_around(start: Start) -> Facts:
    """The layers themselves are what is called first, by position and by name, and more than once."""
    a, b = nn.Linear(4, 4), nn.Linear(4, 3)
    layers = nn.ModuleDict({"a": a, "b": b})
    start(layers)
    optimizer = sgd(layers)
    losses = []
    for step in range(3):
        loss = b(a(input=a(batch(step)).relu())).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item()])
    return {"losses": losses}


def two_threads(start: Start) -> Facts:
    """Each trains a model of its own; both models are called first at the same time."""
    models = [Net(), Net()]
    ready = threading.Barrier(2)
    losses: dict[int, list[list[float]]] = {}

    def train(number: int) -> None:
        ready.wait()
        losses[number] = _train(models[number], 2)

    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"losses": losses[0] + losses[1]}


def child_outlives_parent(start: Start) -> Facts:
    """A fork that is still there when the training has ended: the run is over all the same."""
    model = Net()
    start(model)
    losses = _train(model, 1)
    hold, release = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release)
        os.read(hold, 1)
        os._exit(0)
    return {"losses": losses, "child": child, "release": release}


def run_alone(name: str, folder: Path, options: dict[str, Any]) -> None:
    """Run one training under AutoAttach; leaves `run/` and `facts.json` in `folder`."""
    from fp8debug.config import CaptureOptions
    from fp8debug.hooks.autoattach import AutoAttach, StopBeforeTraining

    warnings.simplefilter("error")
    os.environ |= options.pop("environment", {})
    said: list[str] = []
    shown: list[str] = []
    settings: dict[str, Any] = {"every": 1, "engine": "torch", "out": str(folder / "run")} | options
    auto = AutoAttach(
        CaptureOptions(**settings), command=["train.py"], script="train.py", say=said.append, show=shown.append
    )
    auto.start()
    torch.manual_seed(0)
    try:
        facts = globals()[name](lambda model: None)
    except StopBeforeTraining as stop:
        facts = {"exit_code": stop.exit_code, "message": stop.message}
    summary = auto.close()
    facts |= {"said": said, "shown": shown, "problems": summary.problems if summary else None}
    facts["still_found"] = len(torch.nn.modules.module._global_forward_pre_hooks)
    (folder / "facts.json").write_text(json.dumps(facts))


def serve() -> None:
    """Read lines of [name, folder, options]; run each in a fork; answer with its pid, then with its wait status."""
    import pyarrow as pa

    from fp8debug.hooks import autoattach  # noqa: F401  # paid for once, as is what torch and pyarrow import late

    sgd(nn.Linear(1, 1))
    pa.array([1])
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        name, folder, options = json.loads(line)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run_alone(name, Path(folder), options)
                status = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(status)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve()
