"""Names without wrappers, regexes that take layers, and what is said when nothing is taken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from fp8debug.errors import UsageError
from fp8debug.hooks.backends.finding import find_layers
from fp8debug.hooks.selection import Selection, canonical_name

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

NAMES = ["embed", "blocks.0.fc1", "blocks.0.fc2", "blocks.10.fc1", "head"]


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("fc", "fc"),
        ("module.fc", "fc"),
        ("_orig_mod.fc", "fc"),
        ("_fsdp_wrapped_module.fc", "fc"),
        ("blocks.0._checkpoint_wrapped_module.fc", "blocks.0.fc"),
        ("module._orig_mod._fsdp_wrapped_module.blocks.3._checkpoint_wrapped_module.mlp.fc", "blocks.3.mlp.fc"),
        ("_orig_mod.module.blocks.0._fsdp_wrapped_module._checkpoint_wrapped_module.fc", "blocks.0.fc"),
        ("fc._orig_mod", "fc"),
        ("submodule.fc", "submodule.fc"),
        ("module_list.0", "module_list.0"),
        ("module", ""),
        ("", ""),
    ],
)
def test_canonical_names(raw: str, name: str) -> None:
    assert canonical_name(raw) == name


class Wrapper(nn.Module):
    """Holds a module the way that DDP and torch.compile do."""

    def __init__(self, module: nn.Module, name: str = "module", **others: nn.Module) -> None:
        super().__init__()
        for child, other in {name: module, **others}.items():
            self.add_module(child, other)


def test_names_of_wrapped_layers() -> None:
    block = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    single = Wrapper(nn.Linear(2, 2), "_orig_mod")
    model = Wrapper(Wrapper(nn.Sequential(checkpoint_wrapper(block), single), "_orig_mod"))
    found = find_layers(model, "")
    assert [(layer.name, layer.raw_name) for layer in found] == [
        ("0.0", "module._orig_mod.0._checkpoint_wrapped_module.0"),
        ("0.2", "module._orig_mod.0._checkpoint_wrapped_module.2"),
        ("1", "module._orig_mod.1._orig_mod"),
    ]
    assert [(layer.in_features, layer.out_features) for layer in found] == [(2, 3), (3, 2), (2, 2)]
    assert {layer.root for layer in found} == {"Wrapper"}
    assert [layer.name for layer in find_layers(model, "Wrapper#1.")] == [
        "Wrapper#1.0.0",
        "Wrapper#1.0.2",
        "Wrapper#1.1",
    ]


def test_a_model_that_is_one_layer_and_layers_whose_names_collide() -> None:
    assert [layer.name for layer in find_layers(nn.Linear(2, 2), "")] == ["Linear"]
    assert [layer.name for layer in find_layers(Wrapper(nn.Linear(2, 2)), "")] == ["Linear"]
    model = Wrapper(nn.ModuleDict({"fc": nn.Linear(2, 2)}), fc=nn.Linear(2, 4))
    found = find_layers(model, "")
    assert [layer.name for layer in found] == ["module.fc", "fc"]


def test_a_module_with_two_names_is_one_layer() -> None:
    layer = nn.Linear(2, 2)
    assert [x.name for x in find_layers(nn.ModuleDict({"a": layer, "b": layer}), "")] == ["a"]


@pytest.mark.parametrize(
    ("layers", "exclude", "taken"),
    [
        ([], [], NAMES),
        (["fc1"], [], ["blocks.0.fc1", "blocks.10.fc1"]),
        ([r"blocks\.0\.", "head"], [], ["blocks.0.fc1", "blocks.0.fc2", "head"]),
        ([r"^blocks\.1"], [], ["blocks.10.fc1"]),
        ([], ["^(embed|head)$"], ["blocks.0.fc1", "blocks.0.fc2", "blocks.10.fc1"]),
        (["fc"], ["10", "fc2"], ["blocks.0.fc1"]),
        (["nothing"], [], []),
    ],
)
def test_takes(layers: list[str], exclude: list[str], taken: list[str]) -> None:
    selection = Selection.from_regexes(layers, exclude)
    assert [name for name in NAMES if selection.takes(name)] == taken


def test_patterns_that_match_nothing() -> None:
    assert Selection.from_regexes(["fc1", "fc9", "x$"], []).unmatched(NAMES) == ["fc9", "x$"]


@pytest.mark.parametrize("option", ["layers", "exclude"])
def test_a_regex_that_does_not_compile(option: str, attach: Attach, recorded: Recorded) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--{option} 'blocks.(0' is not a regular expression: missing )")):
        attach(nn.Linear(2, 2), **{option: ["ok", "blocks.(0"]})
    assert not recorded.path.exists()


def named(*names: str) -> nn.Module:
    model = nn.Module()
    for name in names:
        model.add_module(name, nn.Linear(2, 2))
    return model


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (named("attn_qkv", "mlp_up"), {"layers": "mlp_down"}, "--layers 'mlp_down' matches none of the 2 GEMM layers"),
        (named("attn_qkv", "mlp_up", "head"), {"layers": "mlp_down"}, "nearest names: mlp_up"),
        (named("attn_qkv", "mlp_up"), {"layers": "zzz"}, "nearest names: attn_qkv, mlp_up"),
        (named("a", "b"), {"layers": "a", "exclude": "a"}, "matches none of the 2 GEMM layers (exclude applied)"),
        (named("one", "two"), {"exclude": "."}, "--exclude leaves none of the 2 GEMM layers; loosen it (first"),
        (nn.Conv1d(1, 1, 1), {}, "no GEMM layer found: the model has no nn.Linear"),
    ],
)  # fmt: skip
def test_nothing_taken_is_refused_before_anything_is_made(
    model: nn.Module, options: dict[str, str], message: str, attach: Attach, recorded: Recorded
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as raised:
        attach(model, **options)
    assert raised.value.exit_code == 2
    assert not recorded.path.exists()
    assert not any(module._forward_hooks for module in model.modules())


def test_an_unknown_engine_is_refused_before_anything_is_moved(attach: Attach, recorded: Recorded) -> None:
    recorded.path.mkdir()
    (recorded.path / "mine").touch()
    with pytest.raises(UsageError, match=r"'cuda'.*numba, torch"):
        attach(nn.Linear(2, 2), engine="cuda", force=True)
    assert (recorded.path / "mine").exists()


def test_what_is_said_at_the_start(attach: Attach, recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    attach(named("a1", "a2", "b"), layers=["a", r"c\d"], quiet=False).close()
    assert capsys.readouterr().err.splitlines() == [
        f"fp8debug: recording to {recorded.path}",
        r"fp8debug: matched 2 of 3 GEMM layers; nothing matched 'c\d'",
    ]


def test_only_what_was_taken_is_hooked(attach: Attach, recorded: Recorded, tmp_path: Path) -> None:
    model = named("a1", "a2", "b")
    with attach(model, layers=["a"], exclude=["2"]):
        assert [name for name, module in model.named_children() if module._forward_hooks] == ["a1"]
    assert [(x["name"], x["matched"]) for x in recorded.manifest["layers"]] == [
        ("a1", True),
        ("a2", False),
        ("b", False),
    ]
