"""The layers that a plan is held against: of a run, of a model, or a list of names."""

from __future__ import annotations

from pathlib import Path

from fp8debug.errors import UsageError
from fp8debug.reading import parse_json, read_text
from fp8debug.rundir import LayerInfo, find_run


def layers_of(source: str | None) -> tuple[str, list[LayerInfo]]:
    """A title for the source, and its GEMM layers.

    Args:
        source: a run directory, a model as `hooks.model_source.load_model` takes it, or a file of names; None: the
            latest run.

    Raises:
        UsageError: it is none of these, or has no layers.
        Fp8DebugError: no such run.
    """
    if source is not None and _is_model(source):
        return source, _of_model(source)
    if source is not None and Path(source).is_file():
        return source, _of_names(Path(source))
    from fp8debug.analysis.merge.layers import merged_layers
    from fp8debug.cli.render.wording import shown_path

    run = find_run(source)
    manifest = run.read_manifest()
    layers = [layer.info for layer in merged_layers(manifest, run.read_ranks())]
    if not layers:
        raise UsageError(f"{run.path} names no layers; expected a run, file.py:name, or a file of layer names")
    return source or shown_path(run.path), layers


def _is_model(source: str) -> bool:
    file, _, name = source.rpartition(":")
    return source.endswith(".py") or bool(name and file.endswith(".py")) or (Path(source) / "config.json").is_file()


def _of_model(source: str) -> list[LayerInfo]:
    from fp8debug.hooks.backends.finding import find_layers
    from fp8debug.hooks.model_source import load_model
    from fp8debug.hooks.roster import layer_info

    found = [layer_info(layer, matched=True) for layer in find_layers(load_model(source, weights=False))]
    if not found:
        raise UsageError(f"{source} has no GEMM layer")
    return found


def _of_names(path: Path) -> list[LayerInfo]:
    """Names one a line, or a JSON list of them; each is taken for an nn.Linear."""
    try:
        text = read_text(path)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"cannot read the layer names in {path}: {error}") from error
    try:
        names = parse_json(text)
    except ValueError:
        names = [line.strip() for line in text.splitlines() if line.strip()]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{path}: expected layer names, one a line or as a JSON list")
    return [LayerInfo(name, name, "Linear", "", 0, 0, True) for name in names]
