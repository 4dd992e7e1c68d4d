"""What is said about a tensor that differs from its reference."""

from __future__ import annotations

from fp8debug.analysis.checkpoint.facts import CodeFacts
from fp8debug.analysis.checkpoint.records import Misfit, Quantised
from fp8debug.analysis.checkpoint.reference.compared import ComparedTensor
from fp8debug.analysis.checkpoint.reference.judging import MOST_NEAREST
from fp8debug.errors import escape
from fp8debug.formats import FORMATS

UNEXPLAINED = ("unexplained", "different_weights", "other_values", "all_zero")
"""Names of hypotheses that say that there is none."""
_NO_FACTOR = ("one_added", "element_order")
_LEAST_COSINE = 0.9


def sentence(
    tensor: ComparedTensor,
    ours: Quantised | None,
    codes: CodeFacts | None = None,
    odd_rows: str = "",
    misfit: Misfit | None = None,
) -> str:
    """What is known of a tensor that differs: its gain, how far it is from what rounding leaves, and the best cause."""
    parts = []
    if tensor.n_nonfinite:
        where = f"here{odd_rows}" if odd_rows else "here or in the reference"
        which = "1 value that is" if tensor.n_nonfinite == 1 else f"{tensor.n_nonfinite:,} values that are"
        parts.append(f"{which} not finite {where}")
    if tensor.gain is None:
        parts.append("the reference is all zero, this tensor is not" if tensor.n else "no value is finite in both")
    else:
        parts.append(f"gain {tensor.gain:.4g} (1 is right){_in_blocks(tensor)}")
    if tensor.sqnr_db is not None:
        healthy = tensor.healthy_sqnr_db
        keeps = "" if healthy is None else f", where {_kept_by(ours)} about {healthy:.1f} dB"
        parts.append(f"SQNR {tensor.sqnr_db:.1f} dB{keeps}")
    text = f"{tensor.name}: {'; '.join(parts)}."
    if ours is not None and not ours.scales and not _is_as_large(tensor):
        return f"{text} {_without_scale(tensor, misfit)}"
    best = tensor.hypotheses[0] if tensor.hypotheses else None
    if best is not None and has_cause(tensor):
        return f"{text} Best explanation: {best.message}."
    if is_unfit(tensor):
        nearest = f"{tensor.nearest:.1%} of the codes are the nearest ones that the stored scale allows"
        if is_flushed(tensor, ours, codes):
            return f"{text} {nearest}: it is too large for these values, which are among the few smallest codes."
        return f"{text} {nearest}: it is too small, and values are cut off at the largest code."
    return text if best is None else f"{text} {best.message[:1].upper()}{best.message[1:]}."


def _without_scale(tensor: ComparedTensor, misfit: Misfit | None) -> str:
    """That codes have no scale, or which one does not fit them, and what they need."""
    text = "No scale is applied to its codes"
    if misfit is not None:
        text += f": {escape(misfit.scale)} {list(misfit.shape)} does not fit them"
    needed = [one.message for one in tensor.hypotheses[:1] if one.name == "no_scale"]
    return f"{text}. By the reference, {needed[0]}." if needed else f"{text}."


def is_unfit(tensor: ComparedTensor) -> bool:
    """Whether a tensor differs although it was rounded rightly: its scale does not suit its values."""
    return tensor.verdict == "different" and tensor.nearest is not None and tensor.nearest >= MOST_NEAREST


def is_flushed(tensor: ComparedTensor, ours: Quantised | None, codes: CodeFacts | None) -> bool:
    """Whether that scale is too large: its codes are among the smallest, and nothing is cut off."""
    if ours is None or codes is None or not is_unfit(tensor):
        return False
    return codes.rms_codes < FORMATS[ours.fmt].min_normal


def _is_as_large(tensor: ComparedTensor) -> bool:
    return tensor.gain is not None and 0.5 < tensor.gain < 2


def has_cause(tensor: ComparedTensor) -> bool:
    """Whether something is known that explains the difference."""
    return bool(tensor.hypotheses) and tensor.hypotheses[0].name not in UNEXPLAINED


def _kept_by(ours: Quantised | None) -> str:
    return "a copy keeps" if ours is None else f"right {ours.fmt} codes and scales keep"


def _in_blocks(tensor: ComparedTensor) -> str:
    low, high = tensor.block_gain_min, tensor.block_gain_max
    if tensor.n_blocks < 2 or low is None or high is None or tensor.block is None:
        return ""
    rows, columns = tensor.block
    what = "rows" if rows == 1 and tensor.n_blocks * columns >= tensor.n else f"blocks of {rows} x {columns}"
    return f", {low:.3g} to {high:.3g} in its {what}"


def factor_of(tensor: ComparedTensor) -> float | None:
    """By how much the values are too large, where that is one number."""
    if tensor.hypotheses and tensor.hypotheses[0].factor is not None:
        return tensor.hypotheses[0].factor
    if tensor.hypotheses and tensor.hypotheses[0].name in _NO_FACTOR:
        return None
    low, high = tensor.block_gain_min, tensor.block_gain_max
    if tensor.gain is None or low is None or high is None or low <= 0 or high / low > 1.2 or _is_unlike(tensor):
        return None
    return tensor.gain


def _is_unlike(tensor: ComparedTensor) -> bool:
    """Whether its values are no multiple of the reference's, not even about."""
    return tensor.cosine is not None and abs(tensor.cosine) < _LEAST_COSINE


def numbers_of(tensor: ComparedTensor) -> dict[str, float | int | str | None]:
    """The numbers of a tensor for programs."""
    best = tensor.hypotheses[0] if tensor.hypotheses else None
    return {
        "gain": tensor.gain,
        "sqnr_db": tensor.sqnr_db,
        "rel_l2": tensor.rel_l2,
        "cosine": tensor.cosine,
        "healthy_sqnr_db": tensor.healthy_sqnr_db,
        "block_gain_min": tensor.block_gain_min,
        "block_gain_max": tensor.block_gain_max,
        "n_nonfinite": tensor.n_nonfinite,
        "hypothesis": None if best is None else best.name,
        "explains": None if best is None else best.explains,
    }


def brief(tensor: ComparedTensor) -> str:
    """The same in a few words, for a list below one that is told in full."""
    low, high, parts = tensor.block_gain_min, tensor.block_gain_max, []
    if tensor.n_nonfinite:
        parts.append(f"{tensor.n_nonfinite:,} not finite")
    if tensor.gain is not None:
        spread = f" ({low:.3g} to {high:.3g})" if low is not None and high is not None and low != high else ""
        parts.append(f"gain {tensor.gain:.4g}{spread}")
    if tensor.sqnr_db is not None:
        parts.append(f"SQNR {tensor.sqnr_db:.1f} dB")
    if tensor.hypotheses:
        parts.append(tensor.hypotheses[0].name.replace("_", " "))
    return "; ".join(parts)
