"""What is emulated and what is not, that it goes away without a trace, and what is refused."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fp8debug
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.hooks.emulate.operands import Operand

ALL_READS = {
    "fprop": {"x", "w"},
    "dgrad": {"dy", "w"},
    "wgrad": {"dy", "x"},
}


class Model(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.a = nn.Linear(16, 32, **options)
        self.b = nn.Linear(32, 16, bias=False, **options)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(nn.functional.relu(self.a(x), inplace=True))
        return y


def seeded() -> Model:
    torch.manual_seed(0)
    return Model()


def outcome(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Result and all gradients."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


def same(a: list[Tensor], b: list[Tensor]) -> list[bool]:
    return [torch.equal(s, t) for s, t in zip(a, b, strict=True)]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(1))


def test_nothing_stays_behind(x: Tensor) -> None:
    model = seeded()
    modules, parts = dict(model.named_modules()), [dict(vars(m)) for m in model.modules()]
    plain = outcome(model, x)
    with fp8debug.emulate(model, "delayed", quiet=True) as emulation:
        assert dict(model.named_modules()) == modules
        assert list(model.state_dict()) == list(seeded().state_dict())
        assert not any(same(outcome(model, x), plain)[:2])
        assert emulation.layers == ["a", "b"]
    emulation.remove()
    assert [dict(vars(m)) for m in model.modules()] == parts
    assert all(same(outcome(model, x), plain))


def test_a_backward_after_removal_is_the_emulated_one(x: Tensor) -> None:
    """Its forward was; both ways of the same GEMM read the same operands."""
    model = seeded()
    with fp8debug.emulate(model, "current", quiet=True):
        expected = outcome(model, x)
        model.zero_grad()
        loss = model(x).square().sum()
    loss.backward()
    assert all(same([p.grad for p in model.parameters() if p.grad is not None], expected[2:]))


def test_hooks_of_others_fire(x: Tensor) -> None:
    model, seen = seeded(), []
    model.a.register_forward_pre_hook(lambda *_: seen.append("pre"))
    model.a.register_forward_hook(lambda *_: seen.append("forward"))
    model.b.register_full_backward_hook(lambda *_: seen.append("backward"))
    model.a.weight.register_hook(lambda _: seen.append("dw"))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with fp8debug.emulate(model, "nvfp4:stochastic_rounding=true", quiet=True):
        model(x).sum().backward()
    assert seen[:2] == ["pre", "forward"] and sorted(seen[2:]) == ["backward", "dw"]
    assert torch.equal(torch.get_rng_state(), state)


def test_copies_compute_in_high_precision(x: Tensor) -> None:
    model = seeded()
    plain = outcome(model, x)
    with fp8debug.emulate(model, "current", quiet=True):
        emulated = outcome(model, x)
        pickled = pickle.dumps(model)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        copies = [copy.deepcopy(model), pickle.loads(pickled), copy.deepcopy(copy.deepcopy(model))]
        buffer.seek(0)
        copies.append(torch.load(buffer, weights_only=False))
        for other in copies:
            assert all(same(outcome(other, x), plain))
            with torch.no_grad():
                other.a.weight.zero_()  # its own weight, not the original's
        assert all(same(outcome(model, x), emulated))
    assert b"fp8debug" not in pickled


def test_no_tensor_is_kept(x: Tensor) -> None:
    model = seeded()
    with fp8debug.emulate(model, "delayed", quiet=True):
        own = x.clone().requires_grad_()
        reference = weakref.ref(own)
        model(own).sum().backward()
        del own
        assert reference() is None
    assert gc.collect() >= 0
    module = weakref.ref(model.a)
    emulation = fp8debug.emulate(model, "delayed", quiet=True)
    del model
    assert module() is None  # without the collector's help
    emulation.remove()


def test_somebody_who_replaced_us_is_left_in_place(x: Tensor) -> None:
    model = seeded()
    plain = outcome(model, x)
    emulation = fp8debug.emulate(model, "current", quiet=True)
    ours, calls = model.a.forward, []

    def wrapper(input: Tensor) -> Tensor:
        calls.append(1)
        return ours(input)

    model.a.forward = wrapper  # type: ignore[method-assign]
    emulation.remove()
    assert model.a.forward is wrapper
    assert all(same(outcome(model, x), plain)) and calls == [1]


@pytest.mark.parametrize(
    "only", ["x", "w", "dy", "fprop", "dgrad", "wgrad", "x,dy", "fprop,dgrad", "dy,wgrad", "w,fprop", ""]
)
def test_only(only: str, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operand is read quantised where it and the GEMM are both named, or their kind is not named at all."""
    named = set(filter(None, only.split(",")))
    operands, gemms = named & {"x", "w", "dy"}, named & set(ALL_READS)
    expected = {
        (gemm, tensor)
        for gemm, tensors in ALL_READS.items()
        for tensor in tensors
        if (not gemms or gemm in gemms) and (not operands or tensor in operands)
    }
    reads: set[tuple[str, str]] = set()
    read = Operand.read

    def log(self: Operand, gemm: str, orientation: str, dtype: torch.dtype) -> Tensor:
        value = read(self, gemm, orientation, dtype)
        exact = self.value if orientation == "row" else self.value.T
        if not torch.equal(value, exact):
            reads.add((gemm, self._tensor))
        return value

    monkeypatch.setattr(Operand, "read", log)
    model = seeded()
    with fp8debug.emulate(model, "current", only=only, quiet=True):
        outcome(model, x)
    assert reads == expected


def test_only_fprop_leaves_the_backward_pass_exact(x: Tensor) -> None:
    """dx and dw are those of autograd, given the same operands: here of a single layer, whose dy is the same too."""
    layer = nn.Linear(16, 16, bias=False)
    gradients = []
    for recipe in (None, "current"):
        own = x.flatten(0, 1).clone().requires_grad_()
        layer.zero_grad()
        emulation = fp8debug.emulate(layer, recipe, only="fprop", quiet=True) if recipe else None
        layer(own).backward(torch.ones(15, 16))
        gradients.append([own.grad, layer.weight.grad])
        if emulation is not None:
            emulation.remove()
    assert all(torch.allclose(a, b, rtol=1e-6, atol=0) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("recipe", ["bf16", "mxfp8", "nvfp4", "block", "rowwise", "static:scale=4", "coat", "mxfp6"])
def test_every_recipe_trains(recipe: str, x: Tensor) -> None:
    model = seeded()
    plain = outcome(model, x)
    with fp8debug.emulate(model, recipe, quiet=True):
        emulated = outcome(model, x)
    for a, b in zip(emulated, plain, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        error = ((a - b).norm() / b.norm()).item()
        assert 0 < error < (0.4 if recipe == "nvfp4" else 0.15), recipe


def test_names_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.ModuleDict({"blocks": nn.ModuleList(Model() for _ in range(3)), "head": nn.Linear(4, 4)})
    emulation = fp8debug.emulate(
        model, "delayed:te", exclude=r"blocks\.2", keep_bf16=["head", r"blocks\.0\.b", "nosuch"], only="dy,w"
    )
    assert emulation.layers == ["blocks.0.a", "blocks.1.a", "blocks.1.b"]
    assert emulation.kept == ["blocks.0.b", "head"]
    line = "fp8debug: emulating delayed, only w,dy in 3 layers, 2 kept in high precision"
    assert capsys.readouterr() == ("", f"{line}; no layer to keep matches 'nosuch'\n")
    emulation.remove()
    assert capsys.readouterr().err == "fp8debug: 3 emulated layers never ran: blocks.0.a, blocks.1.a, blocks.1.b\n"


class Doubling(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_layers_that_cannot_be_emulated_are_left(capsys: pytest.CaptureFixture[str]) -> None:
    replaced = nn.Linear(4, 4)
    replaced.forward = lambda input: input  # type: ignore[method-assign]
    model = nn.ModuleDict(
        {
            "plain": nn.Linear(4, 4),
            "own": Doubling(4, 4),
            "replaced": replaced,
            "attention": nn.MultiheadAttention(4, 1),
        }
    )
    with fp8debug.emulate(model, "current") as emulation:
        assert emulation.layers == ["plain"]
        assert emulation.left == {
            "own": "Doubling has a forward of its own",
            "replaced": "its forward has been replaced",
            "attention.out_proj": "nn.MultiheadAttention reads its weight without calling it",
        }
        assert "own is left as it is: Doubling has a forward of its own; replaced is" in capsys.readouterr().err
        with pytest.raises(UsageError, match=r"left to emulate: 0 of 1 layers.*; Linear: it is emulated already"):
            fp8debug.emulate(model["plain"], "current")
        model["plain"](torch.ones(1, 4))
    assert "forward" in vars(replaced) and "forward" not in vars(model["plain"])


def test_many_layers_that_are_left_are_told_in_short(capsys: pytest.CaptureFixture[str]) -> None:
    odd = nn.ModuleList([Doubling(4, 4) for _ in range(5)])
    model = nn.ModuleDict({"odd": odd, "plain": nn.Linear(4, 4)})
    with fp8debug.emulate(model, "current"):
        said = capsys.readouterr().err
        assert "; odd.0, odd.1, odd.2 and 2 more are left as they are: Doubling has a forward of its own\n" in said
        model["plain"](torch.ones(1, 4))
    with pytest.raises(UsageError, match=r"0 of 5 layers.*; 0, 1, 2 and 2 more: Doubling has a forward of its own$"):
        fp8debug.emulate(odd, "current")


def test_two_recipes_side_by_side(x: Tensor) -> None:
    model = seeded()
    with (
        fp8debug.emulate(model, "current", layers="a", quiet=True),
        fp8debug.emulate(model, "mxfp8", layers="b", quiet=True),
    ):
        both = outcome(model, x)
    with fp8debug.emulate(model, "current", quiet=True):
        assert not torch.equal(outcome(model, x)[0], both[0])
    assert all("forward" not in vars(m) for m in model.modules())


def test_a_parametrized_weight_gets_its_gradient(x: Tensor) -> None:
    model = seeded()
    nn.utils.parametrizations.weight_norm(model.a)
    with fp8debug.emulate(model, "current", quiet=True) as emulation:
        assert emulation.layers == ["a", "b"]
        model(x).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # which the compiler asks for, of all tensors
def test_a_compiled_model_is_emulated_too(x: Tensor) -> None:
    """The graph ends before each layer: nothing of a scale is frozen into it."""
    model = seeded()
    compiled = torch.compile(model, backend="eager")
    plain = outcome(model, x)
    torch.testing.assert_close(outcome(compiled, x), plain)  # type: ignore[arg-type]
    with fp8debug.emulate(model, "delayed:amax_history_len=1", quiet=True):
        eager = [outcome(model, s * x) for s in (1.0, 8.0, 1.0)]
    with fp8debug.emulate(model, "delayed:amax_history_len=1", quiet=True):
        for scale, expected in zip((1.0, 8.0, 1.0), eager, strict=True):
            assert all(same(outcome(compiled, scale * x), expected))  # type: ignore[arg-type]
    assert all(same(outcome(compiled, x), plain))  # type: ignore[arg-type]


def test_errors_are_the_trainings_own(x: Tensor) -> None:
    model = seeded()
    with fp8debug.emulate(model, "current", quiet=True):
        with pytest.raises(RuntimeError, match="dtype"):
            model(x.bfloat16())
        with pytest.raises(RuntimeError, match="dtype"):
            model(torch.ones(2, 16, dtype=torch.int64))
        with pytest.raises(RuntimeError, match="shape"):
            model(x[..., :15])
        with pytest.raises(Fp8DebugError, match=r"cannot emulate a: it got a Tensor of torch.float64.*--keep-bf16"):
            model.double()(x.double())
        model.float()
        with pytest.raises(Fp8DebugError, match=r"cannot emulate a inside torch.func; .*--keep-bf16"):
            torch.func.vmap(model)(x)
        own = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(own).square().sum(), own, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "curent"}, r"unknown recipe 'curent'.*current"),
        ({"recipe": "delayed:margin=99"}, "margin is 99"),
        ({"recipe": "current", "layers": "nosuch"}, "matches none of the 2 GEMM layers"),
        ({"recipe": "current", "keep_bf16": "["}, "not a regular expression"),
        ({"recipe": "current", "keep_bf16": ""}, "nothing is left to emulate: 2 of 2 layers are kept"),
        (
            {"recipe": "current", "only": "x,dgrad"},
            "leaves nothing to emulate; fprop reads x and w; dgrad reads dy and w",
        ),
        ({"recipe": "current", "only": "x,y"}, "expected some of x, w, dy, fprop, dgrad, wgrad"),
    ],
)
def test_usage_errors(options: dict[str, Any], message: str) -> None:
    model = Model()
    with pytest.raises(UsageError, match=message):
        fp8debug.emulate(model, **options)
    assert "forward" not in vars(model.a)


def test_nothing_to_do_and_one_token(x: Tensor) -> None:
    model = seeded()
    with fp8debug.emulate(model, "current", quiet=True), torch.no_grad():
        assert model(x[0, 0]).shape == (16,)
        assert model(torch.empty(0, 16)).shape == (0, 16)
        assert torch.equal(model(x)[0, 0], model(x.flatten(0, 1))[0])
