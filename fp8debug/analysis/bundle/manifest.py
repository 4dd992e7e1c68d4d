"""Manifest and ranks of a run, as they may be shown to others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fp8debug.analysis.bundle.scrub import PATTERN, Scrubber
from fp8debug.analysis.liveness import liveness
from fp8debug.rundir import LayerInfo, Manifest, RankInfo, RunDir
from fp8debug.schema import SCHEMA_VERSION

_PATH_OPTIONS = ("out", "resume", "plan", "config")
_PATTERN_OPTIONS = ("layers", "exclude", "keep_bf16")


def other_names(layers: Sequence[str]) -> dict[str, str]:
    """`layer_001` for the first layer, and so on; experts of one layer keep their numbers."""
    names: dict[str, str] = {}
    bases: dict[str, str] = {}
    width = max(3, len(str(len(layers))))
    for name in layers:
        base, bracket, rest = name.partition("[")
        anonymous = bases.setdefault(base, f"layer_{len(bases) + 1:0{width}d}")
        names[name] = anonymous + bracket + rest
    return names


def scrubbed_manifest(run_dir: RunDir, manifest: Manifest, scrubber: Scrubber) -> Manifest:
    """Without paths, user names and hosts; the status is what it is now."""
    options = {key: value for key, value in manifest.options.items() if key not in _PATH_OPTIONS}
    for key in _PATTERN_OPTIONS if scrubber.layers else ():
        options[key] = [PATTERN] * len(options.get(key) or ())
    return replace(
        manifest,
        schema_version=SCHEMA_VERSION,  # the tables are written anew
        run_id=scrubber.text(manifest.run_id),
        command=scrubber.command(manifest.command),
        name=None if manifest.name is None else scrubber.text(manifest.name),
        options=scrubber.value(options),
        roots=[_root(root, scrubber) for root in manifest.roots],
        layers=[_layer(layer, scrubber) for layer in manifest.layers],
        segments=[_segment(segment, scrubber) for segment in manifest.segments],
        status=liveness(run_dir, manifest).status,
        status_reason=None if manifest.status_reason is None else scrubber.text(manifest.status_reason),
    )


def scrubbed_rank(info: RankInfo, scrubber: Scrubber) -> RankInfo:
    """Without host and process."""
    return replace(
        info,
        host="",
        pid=0,
        roots=[_root(root, scrubber) for root in info.roots],
        layers=[_layer(layer, scrubber) for layer in info.layers],
        status_reason=None if info.status_reason is None else scrubber.text(info.status_reason),
        control={},
    )


def _layer(layer: LayerInfo, scrubber: Scrubber) -> LayerInfo:
    if not scrubber.layers:
        return layer
    name = scrubber.layer(layer.name)
    return replace(layer, name=name, raw_name=name, class_name=layer.kind, root=_root(layer.root, scrubber))


def _root(root: str, scrubber: Scrubber) -> str:
    return "model" if scrubber.layers else root


def _segment(segment: dict[str, object], scrubber: Scrubber) -> dict[str, object]:
    kept = {key: scrubber.value(value) for key, value in segment.items() if key not in ("launch", "command")}
    command = segment.get("command")
    return kept | {"command": scrubber.command(command) if isinstance(command, list) else []}
