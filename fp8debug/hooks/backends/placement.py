"""Which part of a tensor this rank holds, and which other ranks hold the same; never by a collective.

The rules of DTensor, DistributedDataParallel and fully_shard, and those of Megatron's layers, are read off the objects
that they leave around the model. None of them is imported.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from fp8debug.hooks.observed import LOCAL, Placement

_PLAIN = (torch.Tensor, nn.Parameter)
_GROUPS = ("process_group", "dp_cp_group", "data_parallel_group")
"""What wrappers call the group that holds replicas: torch's, and those of Megatron's versions."""

_on_meshes: weakref.WeakKeyDictionary[Any, dict[tuple[Any, int, tuple[int, ...]], Placement]] = (
    weakref.WeakKeyDictionary()
)


def placement_of(value: torch.Tensor, otherwise: Placement = LOCAL) -> tuple[torch.Tensor, Placement]:
    """What this rank holds of a tensor, as a plain one, and which part that is.

    Args:
        value: any tensor; of a DTensor the local part is taken, a result that is still on its way is waited for.
        otherwise: placement of a tensor that is no DTensor.
    """
    if type(value) in _PLAIN:
        return value, otherwise
    mesh, placements = getattr(value, "device_mesh", None), getattr(value, "placements", None)
    if mesh is None or placements is None:
        return _arrived(value), otherwise
    with torch.no_grad():  # without it, to_local would be part of the graph
        local = _arrived(value.to_local())  # type: ignore[attr-defined]
    here = mesh.get_coordinate()
    if here is None:  # a mesh without this rank
        return local, Placement(",".join(_word(p, value.dim()) for p in placements))
    known = _on_meshes.setdefault(mesh, {})
    key = (placements, value.dim(), tuple(here))
    if key not in known:
        known[key] = _on_mesh(mesh, *key)
    return local, known[key]


def _arrived(value: torch.Tensor) -> torch.Tensor:
    wait: Callable[[], torch.Tensor] | None = getattr(value, "trigger_wait", None)
    return value if wait is None else wait()


def _on_mesh(mesh: Any, placements: Sequence[Any], n_dims: int, here: Sequence[int]) -> Placement:
    """Placement of a DTensor: pieces are counted from 1, in the order of the mesh dimensions that split it."""
    words = [_word(p, n_dims) for p in placements]
    same = tuple(slice(None) if word == "replicate" else at for word, at in zip(words, here, strict=True))
    piece, n_pieces = 0, 1
    for word, at, size in zip(words, here, mesh.mesh.shape, strict=True):
        if word.startswith("shard"):
            piece, n_pieces = piece * size + at, n_pieces * size
    return Placement(",".join(words), _piece(piece, n_pieces), int(mesh.mesh[same].min()))


def _word(placement: Any, n_dims: int) -> str:
    if placement.is_replicate():
        return "replicate"
    dim = getattr(placement, "dim", None)
    return "partial" if dim is None else f"shard({dim % n_dims})"


def _piece(index: int, count: int) -> str | None:
    return f"{index + 1}/{count}" if count > 1 else None


class WeightPlacements:
    """Where else the weights of one model are, by the wrappers around it; keeps neither alive."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self._step: int | None = None
        self._gathered: dict[tuple[int, str], weakref.ref[Any]] = {}
        self._replicated: dict[int, list[int]] = {}

    def of(self, module: nn.Module, name: str, weight: torch.Tensor, inner: Placement, step: int) -> Placement:
        """Where the weight is, which `module` has under `name` right now.

        Args:
            inner: placement of the weight by itself.
            step: wrappers are looked for once a step.
        """
        if not _is_distributed():
            return inner
        if step != self._step:
            self._look(step)
        reference = self._gathered.get((id(module), name))
        gathered = None if reference is None else reference()
        if gathered is not None:
            if getattr(gathered, "_unsharded_param", None) is not weight:
                return inner  # the shard, which says so itself
            mesh = gathered.mesh_info.mesh
            return _replicated(inner, int(mesh.mesh.min()), mesh.ndim)
        ranks = self._replicated.get(id(module))
        return inner if ranks is None else _replicated(inner, min(ranks), 1)

    def _look(self, step: int) -> None:
        self._step = step
        self._gathered.clear()
        self._replicated.clear()
        model = self._model()
        for module in () if model is None else _wrappers(model):
            if (state := getattr(module, "_get_fsdp_state", None)) is not None:
                for group in getattr(state(), "_fsdp_param_groups", ()):
                    for parameter in group.fsdp_params:
                        self._note_gathered(parameter)
            elif (ranks := _ranks_of(module)) is not None:
                self._replicated |= dict.fromkeys(map(id, module.modules()), ranks)

    def _note_gathered(self, parameter: Any) -> None:
        info = parameter._module_info
        owners = [(info.module, info.param_name), *zip(info.shared_modules, info.shared_param_names, strict=True)]
        self._gathered |= {(id(owner), name): weakref.ref(parameter) for owner, name in owners}


def _wrappers(model: nn.Module) -> Iterator[nn.Module]:
    """Modules that may be wrappers: those of the model, and the DDP that runs it from outside."""
    active = getattr(DistributedDataParallel, "_active_ddp_module", None)
    if active is not None:
        yield active
    yield from model.modules()


def _ranks_of(module: nn.Module) -> list[int] | None:
    """Global ranks that hold the same parameters below a wrapper; None for other modules."""
    if "module" not in module._modules and "_fsdp_wrapped_module" not in module._modules:
        return None
    group = next((found for name in _GROUPS if (found := module.__dict__.get(name)) is not None), None)
    return None if group is None else distributed.get_process_group_ranks(group)


def _replicated(inner: Placement, lowest: int, n_dims: int) -> Placement:
    """`inner`, in every rank of a group whose lowest is `lowest`."""
    words = ["replicate"] * n_dims
    if inner is LOCAL:
        return Placement(",".join(words), None, lowest)
    if inner.replica_of is not None:  # rows and columns of one grid of ranks: distances from the lowest add
        lowest += inner.replica_of - distributed.get_rank()
    return Placement(",".join([*words, inner.text]), inner.shard, lowest)


def megatron_placements(module: nn.Module, kind: str, n_dims: int) -> dict[str, Placement]:
    """Placement of each tensor of a Megatron-style layer within its tensor-parallel group; empty for other layers.

    Args:
        kind: name of the layer's kind.
        n_dims: of the activations, which are sequence first.
    """
    if kind not in ("ColumnParallelLinear", "RowParallelLinear") or not _is_distributed():
        return {}
    group = _tensor_parallel_group(module)
    ranks = [] if group is None else distributed.get_process_group_ranks(group)
    if len(ranks) < 2:
        return {}
    rank = distributed.get_rank()

    def split(dim: int | None) -> Placement:
        if dim is None:
            return Placement("replicate", None, min(ranks))
        return Placement(f"shard({dim})", _piece(ranks.index(rank), len(ranks)), rank)

    whole = 0 if getattr(module, "sequence_parallel", False) else None
    if kind == "ColumnParallelLinear":
        x, w, y = whole, 0, None if getattr(module, "gather_output", False) else n_dims - 1
    else:
        x, w, y = n_dims - 1 if getattr(module, "input_is_parallel", True) else whole, 1, whole
    return {"x": split(x), "dx": split(x), "w": split(w), "dw": split(w), "y": split(y), "dy": split(y)}


def _tensor_parallel_group(module: nn.Module) -> Any:
    group = getattr(module, "tp_group", None)
    state = sys.modules.get("megatron.core.parallel_state")
    return state.get_tensor_model_parallel_group() if group is None and state is not None else group


def _is_distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized()
