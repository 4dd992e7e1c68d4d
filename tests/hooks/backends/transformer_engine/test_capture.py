"""Trainings with Transformer Engine's modules: what is recorded, when the debug API is on, and by whose steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from fp8debug.hooks.backends.transformer_engine import FEATURE_DIR, debug_config, early, inspection

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded, Row

LAYERS = ("first", "norm", "mlp.fc1", "mlp.fc2", "experts.gemm_0", "experts.gemm_1")
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


class Model(nn.Module):
    """One of each module."""

    def __init__(self, te: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = te.Linear(64, 96)
        self.norm = te.LayerNormLinear(96, 64)
        self.mlp = te.LayerNormMLP(64, 128)
        self.experts = te.GroupedLinear(2, 64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.experts(self.mlp(self.norm(self.first(x))), [24, 8])
        return y


def train(te: Any, model: nn.Module, n_steps: int, n_microbatches: int = 1, recipe: Any = None) -> None:
    """Steps of SGD on noise; `recipe` None: in high precision."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    for _ in range(n_steps):
        for _ in range(n_microbatches):
            with te.autocast(enabled=recipe is not None, recipe=recipe):
                y = model(torch.randn(32, 64, generator=generator))
            y.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class Raw:
    """Raw values of records, read once."""

    def __init__(self, recorded: Recorded) -> None:
        table = pa.concat_tables([pq.ParquetFile(part).read(["seq", "values"]) for part in recorded.parts("values")])
        self._seqs, self._rows = table["seq"].to_numpy(), table["values"].combine_chunks()
        self._records = recorded.rows("tensors")

    def __call__(self, dtype: str, **cells: object) -> torch.Tensor:
        """Of one record, of codes or in high precision."""
        wanted = cells | {"dtype": dtype}
        (row,) = [r for r in self._records if all(r[name] == value for name, value in wanted.items())]
        found = self._rows.take(pa.array(np.flatnonzero(self._seqs == row["seq"])))
        return torch.from_numpy(found.flatten().to_numpy().reshape(len(found), -1).copy())


@pytest.mark.captures(
    case="Transformer Engine",
    how="its debug API (nvdlfw-inspect), on sampled steps",
    sees="x, w and dy of every GEMM of Linear, LayerNormLinear, LayerNormMLP and GroupedLinear in high precision, and "
    "the FP8 codes and scales that the GEMM reads; the framework's scale and amax history of each pass",
    limits="row-wise operands alone; nothing of attention and te.ops; tested against a stand-in, not yet on a GPU",
)
def test_every_gemm_with_its_payload(te: Any, attach: Attach, recorded: Recorded) -> None:
    """All operands of all GEMMs, once each; codes are torch's own cast, and dyᵀx of them is the weight's gradient."""
    model = Model(te)
    with attach(model, raw_every=1, recipes="current"):
        train(te, model, 2, recipe=te.DelayedScaling(amax_history_len=4))
        gradients: dict[str, torch.Tensor] = {}

        def keep(name: str, gradient: torch.Tensor) -> None:
            gradients[name] = gradient

        for name in ("first.weight", "mlp.fc1_weight", "experts.weight1"):
            model.get_parameter(name).register_hook(lambda g, name=name: keep(name, g))
        train(te, model, 1, recipe=te.DelayedScaling(amax_history_len=4))
    expected = {(layer, t, kind) for layer in LAYERS for t in ("x", "w", "dy") for kind in ("high", "low")}
    found = [
        (row["layer"], row["tensor"], "low" if row["dtype"] in (E4M3, E5M2) else "high")
        for row in recorded.rows("tensors", step=1)
    ]
    assert sorted(found) == sorted(expected)
    raw, scales = Raw(recorded), {row["seq"]: row for row in recorded.rows("scales", source="framework")}
    records = {(r["step"], r["layer"], r["tensor"], r["dtype"]): r for r in recorded.rows("tensors")}
    for layer in LAYERS:
        for tensor, word, dtype in (("x", E4M3, torch.float8_e4m3fn), ("w", E4M3, torch.float8_e4m3fn),
                                    ("dy", E5M2, torch.float8_e5m2)):  # fmt: skip
            at = {"step": 1, "layer": layer, "tensor": tensor}
            high = records[1, layer, tensor, "float32"]
            scale = scales[high["seq"]]["scale"]
            assert scale != 1
            largest = torch.finfo(dtype).max
            cast = (raw("float32", **at) * float(scale)).clamp(-largest, largest).to(dtype).float()
            assert raw(word, **at).equal(cast)
            assert high["precision_asked"] == word
    for layer, name in (
        ("first", "first.weight"),
        ("mlp.fc1", "mlp.fc1_weight"),
        ("experts.gemm_1", "experts.weight1"),
    ):
        read = {
            tensor: raw(word, step=2, layer=layer, tensor=tensor)
            * float(scales[records[2, layer, tensor, word]["seq"]]["scale_inv"])
            for tensor, word in (("x", E4M3), ("dy", E5M2))
        }
        assert torch.allclose(read["dy"].t() @ read["x"], gradients[name], rtol=1e-5, atol=1e-9)


def test_high_precision_and_results(te: Any, attach: Attach, recorded: Recorded) -> None:
    """Without FP8 there are no payloads; y, dx and dw are shown too; dyᵀx is dw, and x wᵀ is y."""
    model = Model(te)
    with attach(model, raw_every=1, tensors="x,w,dy,y,dx,dw"):
        train(te, model, 1)
    raw = Raw(recorded)
    for layer in LAYERS:
        at = {t: raw("float32", layer=layer, tensor=t) for t in ("x", "w", "dy", "y", "dx", "dw")}
        assert torch.allclose(at["dy"].t() @ at["x"], at["dw"], rtol=1e-4, atol=1e-8)
        assert torch.allclose(at["x"] @ at["w"].t(), at["y"], rtol=1e-4, atol=1e-5)
        assert torch.allclose(at["dy"] @ at["w"], at["dx"], rtol=1e-4, atol=1e-8)
    assert {row["dtype"] for row in recorded.rows("tensors")} == {"float32"}
    assert {row["precision_asked"] for row in recorded.rows("tensors", tensor="x")} == {"float32"}


def test_only_sampled_steps_are_debugged(te: Any, attach: Attach, recorded: Recorded) -> None:
    """Steps and micro-batches are numbered as ever; between sampled ones hooks take amax, and the state is read."""
    model = Model(te)
    with attach(model, every=3, recipes="delayed:amax_history_len=8"):
        train(te, model, 5, 2, recipe=te.DelayedScaling(amax_history_len=4))
    assert [model.first.n_debugged, model.experts.n_debugged] == [4, 4], "steps 0 and 3, two micro-batches each"
    assert recorded.row("steps", step=4)["n_microbatches"] == 2
    places = [(step, microbatch) for step in range(5) for microbatch in range(2)]
    for layer in LAYERS:
        for tensor in ("x", "dy"):
            of = {"layer": layer, "tensor": tensor}
            own = [r for r in recorded.rows("scales", source="framework", **of) if r["history_len"] is not None]
            assert [(r["step"], r["microbatch"]) for r in own] == places
            assert [r["ran"] for r in own] == [None] + [True] * 9
            simulated = recorded.rows("scales", source="simulated", alternate=False, **of)
            assert [(r["step"], r["microbatch"]) for r in simulated] == places
            if (layer, tensor) != ("mlp.fc1", "dy"):
                assert [r["status"] for r in simulated] == ["warmup"] + ["ok"] * 9, "no amax is missing from a history"
                assert [r["scale"] for r in simulated[:4]] == [r["scale"] for r in own[:4]]
        assert [r["step"] for r in recorded.rows("tensors", layer=layer, tensor="w", dtype="float32")] == list(range(5))
    unsampled = recorded.rows("tensors", step=1)
    assert not any(row["sampled"] or row["dtype"] in (E4M3, E5M2) for row in unsampled)
    seen = {f"{row['layer']}.{row['tensor']}" for row in unsampled if row["tensor"] != "w"}
    assert seen == {
        *("first.x", "first.dy", "norm.dy", "mlp.fc2.dy"),
        *("experts.gemm_0.x", "experts.gemm_1.x", "experts.gemm_0.dy", "experts.gemm_1.dy"),
    }
    assert [(e["layer"], e["tensor"]) for e in recorded.rows("events", kind="history_absent")] == [("mlp.fc1", "dy")]


def test_other_recipes_of_a_delayed_run(te: Any, attach: Attach, recorded: Recorded) -> None:
    """What block recipes would do to the same tensors, on any hardware, from a run under delayed scaling."""
    model = Model(te)
    with attach(model, recipes=["current", "mxfp8", "nvfp4"], detail="blocks"):
        train(te, model, 1, recipe=te.DelayedScaling())
    recipes = {row["recipe"] for row in recorded.rows("blocks", layer="mlp.fc1", tensor="x") if row["sum_x2"]}
    assert {"mxfp8", "nvfp4"} <= recipes
    errors = {row["recipe"]: row for row in recorded.rows("errors", layer="mlp.fc1", tensor="x")}
    assert {"current", "delayed"} <= set(errors)
    assert errors["current"]["sum_err2"] < errors["delayed"]["sum_err2"], "whose first scale is 1"


@pytest.mark.parametrize("name, expected", [("Float8CurrentScaling", "current"), ("MXFP8BlockScaling", "mxfp8")])
def test_recipes_without_a_history(te: Any, attach: Attach, recorded: Recorded, name: str, expected: str) -> None:
    """The payload's recipe is named; the histories that nobody can fill are said to be incomplete."""
    model = Model(te)
    with attach(model, every=2, recipes="delayed"):
        train(te, model, 3, recipe=getattr(te, name)())
    payload = recorded.row("errors", step=2, layer="mlp.fc1", tensor="x", source="payload")
    assert payload["recipe"] == expected
    assert 1e-5 < payload["sum_err2"] / payload["sum_x2"] < 2e-3
    statuses = [r["status"] for r in recorded.rows("scales", recipe="delayed", layer="norm", tensor="x")]
    assert statuses == ["warmup", "ok", "history_incomplete"], "the amax of step 1 is missing afterwards"
    absent = {(e["layer"], e["tensor"]) for e in recorded.rows("events", kind="history_absent")}
    assert absent == {("norm", "x"), ("mlp.fc1", "x"), ("mlp.fc2", "x"), ("mlp.fc1", "dy")}


@pytest.mark.captures(
    case="FP8-only parameters (no high-precision tensor)",
    how="Transformer Engine's debug API",
    sees="the codes and the scale of FP8 primary weights",
    limits="no errors, since there is nothing to compare with: status payload_only; nothing between sampled steps",
)
def test_weights_in_fp8_alone(te: Any, attach: Attach, recorded: Recorded) -> None:
    """Codes are recorded as what they are, and nothing is said about what they lost."""
    import transformer_engine.pytorch.tensor as tensors

    model = nn.Sequential(te.Linear(64, 64))
    linear: Any = model[0]
    linear.payload = tensors.Float8CurrentScalingQuantizer(tensors.DType.kFloat8E4M3)(linear.weight)
    with attach(model, raw_every=1):
        train(te, model, 1, recipe=te.Float8CurrentScaling())
    row = recorded.row("tensors", tensor="w")
    assert (row["status"], row["dtype"]) == ("payload_only", E4M3)
    codes = linear.payload._data.view(torch.float8_e4m3fn).float()
    assert Raw(recorded)(E4M3, tensor="w").equal(codes)
    assert recorded.row("scales", tensor="w")["scale_inv"] == float(linear.payload._scale_inv)
    assert not recorded.rows("errors", tensor="w")


def test_an_unknown_layout_is_said_once(te: Any, attach: Attach, recorded: Recorded) -> None:
    """The tensor is recorded in high precision; its payload is not, with one event."""
    import transformer_engine.pytorch.tensor as tensors

    class Strange(tensors.MXFP8Quantizer):  # type: ignore[misc]
        def __call__(self, x: torch.Tensor) -> Any:
            made = super().__call__(x)
            made._with_gemm_swizzled_scales = True
            return made

    model = nn.Sequential(te.Linear(64, 64))
    tensors.MXFP8Quantizer = Strange
    with attach(model):
        train(te, model, 2, recipe=te.MXFP8BlockScaling())
    said = recorded.rows("events", kind="not_captured")
    assert sorted((e["layer"], e["tensor"]) for e in said) == [("0", "dy"), ("0", "w"), ("0", "x")]
    assert "order of the GEMM kernel" in said[0]["message"]
    assert len(recorded.rows("tensors")) == 6


def test_beside_the_users_own_config(te: Any, attach: Attach, recorded: Recorded, tmp_path: Any) -> None:
    """The user's features go on being called; their count of steps is theirs, and ours is ours."""
    import nvdlfw_inspect.api as debug_api
    from transformer_engine import debug

    early.forget()
    theirs = {"enabled": True, "tensors": ["activation", "weight"]}
    section = {"layers": {"layer_name_regex_pattern": "Layer_"}, "transformer_engine": {"CountCalls": theirs}}
    features = str(next(iter(debug.__path__))) + "/features"
    debug_api.initialize(
        {"mine": {"enabled": True, **section}}, [features], log_dir=str(tmp_path), init_training_step=7
    )
    model = Model(te)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with attach(model, every=2):
        for _ in range(4):
            with te.autocast():
                y = model(torch.randn(32, 64))
            y.sum().backward()
            optimizer.step()
            debug_api.step()
    shown = debug_api.DEBUG_MANAGER._features_explainer["transformer_engine.CountCalls"].shown
    assert shown["Layer_1.activation"] == shown["Layer_3.fc1.weight"] == 4
    assert debug_api.DEBUG_MANAGER._trainer_iteration_count == 11
    payloads = recorded.rows("tensors", layer="mlp.fc1", tensor="x", dtype=E4M3)
    assert [row["step"] for row in payloads] == [0, 2]
    assert {event["kind"] for event in recorded.rows("events")} == {"history_absent"}


def test_a_layer_that_two_sections_of_the_user_match(
    te: Any, attach: Attach, recorded: Recorded, tmp_path: Any
) -> None:
    """`nvdlfw_inspect` is about to refuse the layer to its user; we say so, and are not the first to stop."""
    import nvdlfw_inspect.api as debug_api
    from transformer_engine import debug

    early.forget()
    features = [str(next(iter(debug.__path__))) + "/features", str(FEATURE_DIR)]
    both = {"one": debug_config(["Layer_1$"])["fp8debug"], "two": debug_config()["fp8debug"]}
    debug_api.initialize(both, features, log_dir=str(tmp_path))
    model = nn.Sequential(te.Linear(64, 64))
    with pytest.raises(ValueError, match="multiple debug configs"), attach(model):
        train(te, model, 1)
    assert "multiple debug configs" in recorded.row("events", kind="not_captured")["message"]
    assert recorded.manifest["status"] == "failed"


def test_started_too_late(te: Any, attach: Attach, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module was made with `nvdlfw_inspect` imported and not started: hooks see what they can, the rest is said."""
    import nvdlfw_inspect.api as debug_api

    early.forget()
    model = Model(te)
    with attach(model, raw_every=1):
        train(te, model, 2, recipe=te.DelayedScaling())
    assert debug_api.DEBUG_MANAGER is None
    assert model.first.n_debugged == 0
    keys = {f"{row['layer']}.{row['tensor']}" for row in recorded.rows("tensors", step=1)}
    assert {"first.x", "first.w", "first.dy", "norm.dy", "mlp.fc2.dy", "experts.gemm_1.x"} <= keys
    assert not {"norm.x", "mlp.fc1.x", "mlp.fc1.dy"} & keys
    said = recorded.rows("events", kind="not_captured")
    assert [e["message"] for e in said if "before its first module" in e["message"]]
    missing = {f"{e['layer']}.{e['tensor']}" for e in said if e["tensor"]}
    assert missing == {"norm.x", "mlp.fc1.x", "mlp.fc2.x", "mlp.fc1.dy"}


def test_started_late_where_that_is_still_allowed(te: Any, attach: Attach, recorded: Recorded) -> None:
    """No module has ruled it out: `fp8debug.attach` alone is enough."""
    import transformer_engine.debug.pytorch.debug_state as debug_state

    early.forget()
    model = Model(te)
    debug_state.TEDebugState.debug_enabled = None  # as it is where nvdlfw_inspect has not been imported
    with attach(model):
        train(te, model, 1, recipe=te.DelayedScaling())
    assert inspection.is_own()
    assert model.first.n_debugged == 1
    assert recorded.row("tensors", layer="mlp.fc1", tensor="x", dtype=E4M3)["status"] == "ok"


def test_names_given_late_and_twice(te: Any, attach: Attach, recorded: Recorded) -> None:
    """Two modules of one name, and renamed ones, stay apart: the one that runs is meant."""
    model = nn.Sequential(te.Linear(64, 64, name="same"), te.Linear(64, 64, name="same"))
    with attach(model, raw_every=1):
        train(te, model, 1)
        renamed: list[Any] = list(model)
        for module in renamed:
            module.name = f"other.{id(module)}"
        train(te, model, 1)
    rows: list[Row] = recorded.rows("tensors")
    assert recorded.keys()[:6] == [
        *("0/0/0 forward 0.x", "0/0/0 forward 0.w", "0/0/0 forward 1.x", "0/0/0 forward 1.w"),
        *("0/0/0 backward 1.dy", "0/0/0 backward 0.dy"),
    ]
    assert len(rows) == 12
    raw = Raw(recorded)
    x, w, y = (
        raw("float32", step=0, layer=layer, tensor=tensor) for layer, tensor in (("0", "x"), ("0", "w"), ("1", "x"))
    )
    assert torch.allclose(x @ w.t(), y, atol=1e-5)


def test_a_model_that_serves(te: Any, attach: Attach, recorded: Recorded) -> None:
    """Evaluation passes are shown by the debug API where they are what is recorded, and only there."""
    model = Model(te).eval()
    with attach(model, every=2, inference=True), torch.no_grad(), te.autocast(recipe=te.Float8CurrentScaling()):
        for _ in range(3):
            model(torch.randn(32, 64))
    rows = recorded.rows("tensors", layer="mlp.fc1", tensor="x", dtype=E4M3)
    assert [(row["step"], row["pass"]) for row in rows] == [(0, "eval"), (2, "eval")]


def test_an_evaluation_between_steps_is_not_debugged(te: Any, attach: Attach, recorded: Recorded) -> None:
    """Only training passes of sampled steps are; an evaluation before the first of them does not prevent that."""
    model = Model(te)
    with attach(model):
        model.eval()
        with torch.no_grad():
            model(torch.randn(32, 64))
        model.train()
        train(te, model, 1, recipe=te.DelayedScaling())
    assert model.first.n_debugged == 1
    assert {row["pass"] for row in recorded.rows("tensors", dtype=E4M3)} == {"forward"}
    assert recorded.rows("tensors", layer="first", tensor="x", pass_="eval")


def test_captured_in_a_cuda_graph(te: Any, attach: Attach, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The debug API cannot be in a graph, nor is a hook called in its replays: said, and left alone."""
    model = nn.Sequential(te.Linear(64, 64))
    with attach(model):
        train(te, model, 1)
        for asked in ("is_initialized", "is_current_stream_capturing"):
            monkeypatch.setattr(torch.cuda, asked, lambda: True)
        train(te, model, 1)
    assert [event["layer"] for event in recorded.rows("events", kind="not_captured")] == ["0"]
    assert {row["step"] for row in recorded.rows("tensors")} == {0}
    assert model[0].n_debugged == 1
