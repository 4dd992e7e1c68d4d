"""Lines of logs and the names in them."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from fp8debug.analysis.importing.names import split_name
from fp8debug.analysis.importing.te_log import Number, Unread, parse_line, read_log
from fp8debug.errors import UsageError

WriteLog = Callable[..., Path]


@pytest.mark.parametrize(
    ("text", "layer", "tensor", "statistic", "recipe", "columnwise"),
    [
        ("decoder.layers.0.mlp.fc1_activation_cur_amax", "decoder.layers.0.mlp.fc1", "x", "amax", None, False),
        ("fc1_gradient_underflows%", "fc1", "dy", "underflow_all", None, False),
        ("fc1_weight_scale_inv_min", "fc1", "w", "scale_inv_min", None, False),
        ("fc1_activation_min", "fc1", "x", "min", None, False),
        ("fc1_activation_fp8_delayed_scaling_overflows%", "fc1", "x", "overflow", "delayed", False),
        ("fc1_activation_fp8_current_scaling_mse", "fc1", "x", "mse", "current", False),
        ("a.b_c_weight_fp8_block_scaling_scale_inv_max_columnwise", "a.b_c", "w", "scale_inv_max", "block", True),
        ("fc1_gradient_mxfp8_underflows%_columnwise", "fc1", "dy", "underflow_all", "mxfp8", True),
        ("fc1_activation_nvfp4_mse", "fc1", "x", "mse", "nvfp4", False),
        ("fc1_output_l2_norm", "fc1", "y", "l2_norm", None, False),
        ("fc1_wgrad_std", "fc1", "dw", "std", None, False),
        ("fc1_dgrad_dynamic_range", "fc1", "dx", "dynamic_range", None, False),
        ("lm_output_weight_mse", "lm_output", "w", "mse", None, False),
        ("weight_activation_proj_gradient_mean", "weight_activation_proj", "dy", "mean", None, False),
        ("x_activation_max_blockwise_dynamic_range_block_size_32_dims_1_max_over_orientations",
         "x", "x", "max_blockwise_dynamic_range", None, False),
        ("fc1_activation_share_above_0.5", "fc1", "x", "share_above_0.5", None, False),
        ("fc1_activation_mxfp8_scale_inv_std", "fc1", "x", "scale_inv_std", "mxfp8", False),
    ],
)  # fmt: skip
def test_names(text: str, layer: str, tensor: str, statistic: str, recipe: str | None, columnwise: bool) -> None:
    name = split_name(text)
    assert name is not None
    assert (name.layer, name.tensor, name.statistic, name.recipe) == (layer, tensor, statistic, recipe)
    assert name.columnwise is columnwise
    assert text.endswith(f"_{name.given_name}")
    assert name.fmt == ("E2M1" if recipe == "nvfp4" else None)


@pytest.mark.parametrize("text", ["", "fc1_mean", "_activation_mean", "fc1_activation_", "fc1_tensor1_min"])
def test_no_names(text: str) -> None:
    assert split_name(text) is None


def test_a_real_log(write_log: WriteLog) -> None:
    values = [0.0, 1.0, -4.3386, 1e-9, 130799.6953, 3.4028234663852886e38, math.inf, -math.inf, math.nan]
    path = write_log([("fc1_activation_mean", 7 * i, v) for i, v in enumerate(values)])
    lines = list(read_log(path))
    assert all(isinstance(line, Number) and line.time and line.name.layer == "fc1" for line in lines)
    assert [line.step for line in lines if isinstance(line, Number)] == [7 * i for i in range(len(values))]
    got = [float(line.text) for line in lines if isinstance(line, Number)]
    assert got[:-1] == [round(v, 4) for v in values[:-1]]
    assert math.isnan(got[-1])


def test_a_line_that_is_cut_anywhere_gives_no_number(write_log: WriteLog) -> None:
    (line,) = write_log([("blocks.0.fc1_gradient_mxfp8_mse_columnwise", 123, 45.6789)]).read_text().splitlines()
    assert isinstance(parse_line(1, line), Number)
    assert not [cut for cut in range(len(line)) if isinstance(parse_line(1, line[:cut]), Number)]


@pytest.mark.parametrize(
    "line",
    [
        "INFO - fc1_activation_max                 iteration=000002                  value=4.3188",
        "2025-01-01 00:00:00.123 - WARNING - fc1_activation_max \t iteration=2 \t value=4.3188",
        "[rank0]: 2025-01-01 00:00:00,123 - INFO - fc1_activation_max \t\t\t\t iteration=000002 \t\t\t\t value=4.3188",
        "fc1_activation_max iteration=000002 value=4.3188",
    ],
)
def test_heads_and_blanks_of_other_kinds(line: str) -> None:
    number = parse_line(3, line)
    assert isinstance(number, Number)
    assert (number.line, number.name.layer, number.name.statistic, number.step) == (3, "fc1", "max", 2)
    assert number.text == "4.3188"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2025-01-01 00:00:00,123 - INFO - Feature=LogTensorStats, API=inspect_tensor: activation", "no number"),
        ("INFO - fc1_activation_max iteration=000002 value=4.31", "cut short"),
        ("INFO - fc1_activation_max iteration=00000x value=4.3188", "iteration is no number"),
        (f"INFO - fc1_activation_max iteration={'9' * 19} value=4.3188", "iteration is no number"),
        ("INFO - fc1_tensor1_max iteration=000002 value=4.3188", "no tensor of Transformer Engine"),
    ],
)
def test_reasons(line: str, reason: str) -> None:
    unread = parse_line(1, line)
    assert isinstance(unread, Unread) and reason in unread.reason


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    good = b"INFO - fc\xff\x1b[2J_activation_max iteration=000001 value=1.0000"
    path.write_bytes(b"\n".join([b"", b"\x00" * 70000, b"x" * 200_000 + good, good, b"\xff\xfe"]))
    lines = list(read_log(path))
    assert [type(line).__name__ for line in lines] == ["Unread", "Unread", "Number", "Unread"]
    assert isinstance(lines[1], Unread) and "64 KiB" in lines[1].reason
    assert isinstance(lines[2], Number) and lines[2].name.layer == "fc\\xff\x1b[2J"


def test_gzip(write_log: WriteLog, tmp_path: Path) -> None:
    path = write_log([(f"fc{i}_activation_max", i, i / 7) for i in range(3000)])
    packed = tmp_path / "packed.log"  # told by what is in it
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_log(packed)) == list(read_log(path))
    packed.write_bytes(packed.read_bytes()[:-2000])
    *numbers, last = read_log(packed)
    assert numbers == list(read_log(path))[: len(numbers)] and len(numbers) > 1000
    assert isinstance(last, Unread) and "cut short or damaged" in last.reason


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.log"):
        with pytest.raises(UsageError, match="cannot read the log"):
            list(read_log(path))
