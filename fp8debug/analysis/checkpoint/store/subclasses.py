"""Quantised tensors that Python classes hold: Transformer Engine's and torchao's, taken apart into codes and scales.

The codes keep the name of the tensor, everything else is called `#<what>`: `#scale_inv`, `#scale`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from fp8debug.analysis.checkpoint.store.pickled import Call, Global
from fp8debug.analysis.checkpoint.store.rebuilt import NoTensor, View, numbers_of, unwrapped, view_of

CODES = ""
"""Name of the codes among the parts of a tensor."""
_FROM_TYPE, _WRAPPER = "torch._tensor._rebuild_from_type_v2", "torch._utils._rebuild_wrapper_subclass"
_LOCAL = "_local_tensor"
_NAMES_OF_CODES = ("qdata", "_data", "float8_data", "int_data", _LOCAL)
"""What torchao and DTensor call the tensor that the others are about."""
_DEEPEST, _MOST_ATTRIBUTES = 2, 64


def parts_of(value: object) -> dict[str, View] | None:
    """The tensors that a value is made of; None: it is no tensor.

    Raises:
        NoTensor: it is one of a kind that is not read.
    """
    value = unwrapped(value)
    plain = view_of(value)
    if plain is not None:
        return {CODES: plain}
    if not isinstance(value, Call):
        return None
    rebuild = _REBUILT.get(_function_name(value))
    if rebuild is not None:
        return rebuild(value.given)
    if value.path == _FROM_TYPE:
        return _of_wrapper(value)
    if value.path.startswith("torch._utils._rebuild_"):
        raise NoTensor(f"it is rebuilt by {value.path[:100]}, which is not read")
    return None


def class_of(value: object) -> str:
    """Name of the class that a value would be an instance of, for sentences."""
    value = unwrapped(value)
    if not isinstance(value, Call):
        return type(value).__name__
    if value.path == _FROM_TYPE and len(value.given) > 1 and isinstance(value.given[1], Global):
        return value.given[1].path
    return value.path


def _of_wrapper(value: Call) -> dict[str, View]:
    """A subclass that torch takes apart by the names of its attributes: the state is a dict of these."""
    given = value.given
    function = given[0] if given else None
    if len(given) < 4 or not isinstance(function, Global) or function.path != _WRAPPER:
        raise NoTensor(f"it is a {class_of(value)[:100]}, which is not read")
    found = list(_tensors_in(given[3], _DEEPEST))
    names = [name for name, _ in found]
    if not found or len(set(names)) < len(names):
        raise NoTensor(f"it is a {class_of(value)[:100]} whose tensors cannot be told apart")
    if names == [_LOCAL]:
        _check_local(given[2], found[0][1])
    codes = [name for name in names if name in _NAMES_OF_CODES]
    return {CODES if codes == [name] else name: view for name, view in found}


def _check_local(arguments: object, part: View) -> None:
    """A DTensor that is split over ranks is not whole in the file of one of them."""
    whole = numbers_of(arguments[2]) if isinstance(arguments, tuple) and len(arguments) > 2 else None
    if whole != part.shape:
        raise NoTensor(
            f"it is one rank's part {list(part.shape)} of a DTensor {list(whole or ())}; save it with "
            f"torch.distributed.checkpoint, or whole"
        )


def _tensors_in(state: object, depth: int) -> Iterator[tuple[str, View]]:
    """Tensors by the names of their attributes; subclasses within subclasses are looked into."""
    groups = state if isinstance(state, tuple) else (state,)  # a class with slots has these in a second dict
    entries = (entry for group in groups if isinstance(group, dict) for entry in group.items())
    for name, value in islice(entries, _MOST_ATTRIBUTES):
        plain = view_of(value) if isinstance(name, str) else None
        if plain is not None:
            yield name, plain
        elif depth and isinstance(value, Call) and value.path == _FROM_TYPE and len(value.given) > 3:
            yield from _tensors_in(value.given[3], depth - 1)


def _function_name(call: Call) -> str:
    """`Class.method` or `function` of Transformer Engine; old protocols look methods up by getattr."""
    function = call.function
    if isinstance(function, Call) and function.path in ("__builtin__.getattr", "builtins.getattr"):
        owner, name = function.given if len(function.given) == 2 else (None, None)
        if isinstance(owner, Global) and owner.module.startswith("transformer_engine"):
            return f"{owner.name}.{name}"
    if isinstance(function, Global) and function.module.startswith("transformer_engine"):
        return function.name
    return ""


def _float8(given: tuple[object, ...]) -> dict[str, View]:
    """data, fp8_dtype, scale_inv, dtype, shape (since 2.0), transposed data (since 2026)."""
    codes, scale_inv = _tensor(given, 0), _tensor(given, 2)
    return {CODES: replace(codes, dtype=_fp8_dtype(given, 1)), "scale_inv": scale_inv}


def _mxfp8(given: tuple[object, ...]) -> dict[str, View]:
    """Codes and scales by rows, both by columns, fp8_dtype, dtype, shape, quantizer, whether scales are swizzled."""
    if len(given) > 8 and given[8] is not False:
        raise NoTensor("its scales are in the order of a GEMM (swizzled), which is not read")
    codes = _tensor(given, 0)
    scale_inv = _cut(replace(_tensor(given, 1), dtype="F8_E8M0"), codes, 32)
    return {CODES: replace(codes, dtype=_fp8_dtype(given, 4)), "scale_inv": scale_inv}


def _blockwise(given: tuple[object, ...]) -> dict[str, View]:
    """Shape, codes and scales by rows, the same by columns, fp8_dtype, dtype, quantizer, whether blocks are squares."""
    codes, scale_inv = _tensor(given, 1), _tensor(given, 2)
    is_square = _argument(given, 8)
    if is_square is True:
        scale_inv = _cut(scale_inv, codes, 128, 128)
    elif is_square is False and len(scale_inv.shape) == 2:
        # Blocks of 1 x 128 are stored columns first: (K / 128, lines).
        turned = replace(scale_inv, shape=scale_inv.shape[::-1], strides=scale_inv.strides[::-1])
        scale_inv = _cut(turned, codes, 128)
    else:
        raise NoTensor("it does not say what its blocks are")
    return {CODES: replace(codes, dtype=_fp8_dtype(given, 5)), "scale_inv": scale_inv}


def _nvfp4(given: tuple[object, ...]) -> dict[str, View]:
    raise NoTensor("it is an NVFP4Tensor of Transformer Engine, which is not read; export it to a published format")


_REBUILT: Mapping[str, Callable[[tuple[object, ...]], dict[str, View]]] = {
    "_make_float8_tensor_in_reduce_ex": _float8,
    "Float8Tensor._make_in_reduce_ex": _float8,
    "_make_mxfp8_tensor_in_reduce_ex": _mxfp8,
    "MXFP8Tensor._make_in_reduce_ex": _mxfp8,
    "_make_float8_blockwise_tensor_in_reduce_ex": _blockwise,
    "Float8BlockwiseQTensor._make_in_reduce_ex": _blockwise,
    "_make_nvfp4_tensor_in_reduce_ex": _nvfp4,
    "NVFP4Tensor._make_in_reduce_ex": _nvfp4,
}
"""What rebuilds the tensors of Transformer Engine, 1.0 to 2.16."""


def _argument(given: tuple[object, ...], at: int) -> object:
    if at >= len(given):
        raise NoTensor("its call has too few arguments")
    return given[at]


def _tensor(given: tuple[object, ...], at: int) -> View:
    view = view_of(_argument(given, at))
    if view is None:
        raise NoTensor("its codes by rows are not in the file, or in a place that is not known")
    return view


def _fp8_dtype(given: tuple[object, ...], at: int) -> str:
    """The format that Transformer Engine's DType names.

    E4M3 and E5M2 were 6 and 7 until 2.3 and are 7 and 8 since; a call with four arguments is older than that, one with
    five or more can be either. Parameters are cast to E4M3 in all recipes that train, so there 7 is taken for it.
    """
    value = _argument(given, at)
    number: object = value
    if isinstance(value, Call):
        number = value.state if value.state is not None else value.given[0] if value.given else None
        if isinstance(number, Global):
            number = value.given[-1]
    if isinstance(number, str):
        number = {"kFloat8E4M3": 6, "kFloat8E5M2": 8}.get(number)
    if number == 7 and not isinstance(number, bool):
        return "F8_E5M2" if at == 1 and len(given) == 4 else "F8_E4M3"
    if number in (6, 8) and not isinstance(number, bool):
        return "F8_E4M3" if number == 6 else "F8_E5M2"
    raise NoTensor("its fp8_dtype is not known")


def _cut(scale: View, codes: View, columns: int, lines: int = 1) -> View:
    """Scales without the padding that GEMMs want: one for `lines` x `columns` codes."""
    n_lines = 1
    for size in codes.shape[:-1]:
        n_lines *= size
    length = codes.shape[-1] if codes.shape else 1
    wanted = (-(-n_lines // lines), -(-length // columns))
    if len(scale.shape) != 2 or scale.shape[0] < wanted[0] or scale.shape[1] < wanted[1]:
        raise NoTensor(f"it has {scale.shape} scales, and {wanted} are needed at least")
    return replace(scale, shape=wanted)
