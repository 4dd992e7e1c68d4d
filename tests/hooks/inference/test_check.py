"""The inference check: what it measures, and which layer it names."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fp8debug.errors import UsageError
from fp8debug.hooks.inference.batch import Batch
from fp8debug.hooks.inference.check import InferenceCheck, check_inference
from fp8debug.hooks.inference.script import first_training_forward, unwrapped
from fp8debug.plans import Plan, PlanEntry

N, CLASSES, DEPTH = 32, 16, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(N)
        self.up, self.down = nn.Linear(N, 2 * N, bias=False), nn.Linear(2 * N, N, bias=False)
        for weight in (self.up.weight, self.down.weight):
            nn.init.normal_(weight, std=N**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return x + y


class Net(nn.Module):
    """A residual network; `outliers`: blocks in which one channel of the input of `up` is 2^18 times the others."""

    def __init__(self, *outliers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])
        self.norm, self.dropout = nn.LayerNorm(N), nn.Dropout(0.5)
        self.head = nn.Linear(N, CLASSES, bias=False)
        for number in outliers:
            block = self.blocks[number]
            assert isinstance(block, Block)
            with torch.no_grad():
                block.norm.weight[5] = 2.0**18
                block.up.weight[:, 5] = 0

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.dropout(self.norm(x)))
        return logits


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, N, generator=generator)
    return Batch((x,), {}, torch.randint(0, CLASSES, (64,), generator=generator))


def own(check: InferenceCheck) -> dict[str, float | None]:
    return {layer.name: layer.own_db for layer in check.layers}


def test_a_layer_with_an_outlier_channel_is_named(batch: Batch) -> None:
    check = check_inference(Net(1), batch, "current")
    origin = check.origin
    assert (origin.verdict, origin.layers, origin.operand) == ("layers", ("blocks.1.up",), "x")
    assert origin.trial is not None and origin.trial.share > 0.9
    everything, weights = check.variants
    assert everything.outputs.noise.sqnr_db < 15 < weights.outputs.noise.sqnr_db  # type: ignore[operator]
    by_name = {layer.name: layer for layer in check.layers}
    assert list(by_name) == [*(f"blocks.{i}.{name}" for i in range(DEPTH) for name in ("up", "down")), "head"]
    faulty = by_name["blocks.1.up"]
    assert faulty.own_db < 10 < 30 < faulty.own_weights_db  # type: ignore[operator]
    assert all(db is not None and db > 25 for name, db in own(check).items() if name != "blocks.1.up")
    # Before the layer nothing is lost, after it nothing comes back.
    assert by_name["blocks.0.down"].gathered_db > 20 > by_name["blocks.1.down"].gathered_db  # type: ignore[operator]


def test_a_family_of_layers_is_named(batch: Batch) -> None:
    origin = check_inference(Net(*range(DEPTH)), batch, "current").origin
    assert (origin.verdict, origin.layers) == ("layers", tuple(f"blocks.{i}.up" for i in range(DEPTH)))


@pytest.mark.parametrize("recipe", ["current", "mxfp8"])
def test_a_healthy_model_errs_everywhere(batch: Batch, recipe: str) -> None:
    check = check_inference(Net(), batch, recipe)
    assert check.origin.verdict == "spread"
    assert all(25 < db < 33 for db in own(check).values() if db is not None)


def test_what_is_compared(batch: Batch) -> None:
    """Reference and loss by hand; evaluation mode; the model is as before; under delayed scaling, own scales."""
    net = Net().train()
    labels = batch.labels
    assert labels is not None
    check = check_inference(net, batch, "delayed:amax_history_len=16", title="net")
    assert net.training and net.dropout.training and "forward" not in vars(net.head)
    net.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = net(*batch.args)
        loss = float(functional.cross_entropy(logits.float(), labels))
    assert (check.title, check.recipe, check.precision) == ("net", "current", "BF16 autocast")
    assert check.loss == loss and "labels" in check.loss_source
    assert "no history for delayed:amax_history_len=16" in check.notes[0]
    outputs = check.emulated.outputs
    assert outputs.noise.signal == pytest.approx(float(logits.double().square().sum()))
    assert outputs.mean_kl is not None and 0 < outputs.mean_kl < 0.01
    assert outputs.argmax_changed is not None and 0 <= outputs.argmax_changed < 0.2
    assert outputs.max_difference < 0.5
    without = check_inference(net, batch, "bf16")
    assert without.emulated.outputs.noise.sqnr_db is None or without.emulated.outputs.noise.sqnr_db > 35


def test_a_plan_keeps_layers_out(batch: Batch) -> None:
    plan = Plan("current", (PlanEntry("blocks.1.up", "bf16"), PlanEntry("head", "bf16", tensor="x")))
    check = check_inference(Net(1), batch, plan=plan)
    assert check.kept == ("blocks.1.up",)
    assert own(check)["blocks.1.up"] is None
    assert check.origin.verdict == "spread"
    head = next(layer for layer in check.layers if layer.name == "head")
    assert head.own_db == head.own_weights_db, "of head only w is left in FP8"


class Tokens(nn.Module):
    """Logits of tokens by tables alone, so that the emulated Linear sees what a test chooses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(8, N), nn.Linear(N, 8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.head(self.table(input_ids))}


def test_tokens_predict_the_next_one_and_padding_is_left_out() -> None:
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    model = Tokens()
    check = check_inference(model, Batch((), {"input_ids": ids}), "current")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = model(ids)["logits"].float()
    assert check.loss == float(functional.cross_entropy(logits[:, :-1].reshape(-1, 8), ids[:, 1:].reshape(-1)))
    assert check.emulated.outputs.n_positions == 8
    assert (check.origin.verdict, check.origin.layers) == ("layers", ("head",)), "there is no other"
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    masked = check_inference(model, Batch((), {"input_ids": ids, "attention_mask": mask}), "current")
    assert masked.emulated.outputs.n_positions == 6
    seen = torch.tensor([[2, 3, 4], [6, -100, -100]])
    assert masked.loss == float(functional.cross_entropy(logits[:, :-1].reshape(-1, 8), seen.reshape(-1)))


def test_what_becomes_nan_is_located() -> None:
    """The first layer whose output has it, which is the one after the root."""

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            with torch.no_grad():
                self.a.weight.fill_(1.0)
                self.b.weight.fill_(1.0)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.b(torch.sqrt(self.a(x).float() - 3.01))
            return y

    # In BF16 the sum is 1.03125 + 2; in E4M3 under scale 1 it is 1 + 2, too little for the root.
    check = check_inference(Root(), Batch((torch.tensor([[1.03, 2.0]]),)), "static:scale=1")
    assert (check.origin.verdict, check.origin.layers) == ("nonfinite", ("b",))
    assert check.emulated.outputs.noise.n_nonfinite == 2
    assert not check.are_logits and math.isnan(check.loss or math.nan)


def test_what_cannot_be_checked(batch: Batch) -> None:
    with pytest.raises(UsageError, match="neither a recipe nor a plan"):
        check_inference(Net(), batch)
    with pytest.raises(UsageError, match=r"LayerNorm has no nn\.Linear layer"):
        check_inference(nn.LayerNorm(4), batch, "current")
    with pytest.raises(UsageError, match=r"Net cannot run on the input 2x3: RuntimeError"):
        check_inference(Net(), Batch((torch.ones(2, 3),)), "current")


def test_a_script_whose_step_is_compiled() -> None:
    """It runs eagerly, so the model is seen where it is called; keyword arguments are too."""
    net = Net().train()

    def program() -> None:
        step = torch.compile(lambda x: net(x=x).sum(), backend="eager")
        step(torch.ones(2, N))
        raise AssertionError("not reached")

    reached = first_training_forward(program)
    assert reached is not None and reached.model is net and reached.n_layers_elsewhere == 0
    assert reached.args == () and reached.kwargs["x"].shape == (2, N)
    assert first_training_forward(lambda: None) is None

    def by_parts() -> None:
        net.blocks[0](torch.ones(2, N))

    parts = first_training_forward(by_parts)
    assert parts is not None and parts.model is net.blocks[0] and parts.n_layers_elsewhere == 2 * (DEPTH - 1) + 1
    assert unwrapped(torch.compile(net, backend="eager")) is net  # type: ignore[arg-type]
