"""What a run directory knows of its set-up, as names and texts that can be compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from fp8debug.rundir import Manifest

_SCRIPT = re.compile(r"\.(py|sh)$")


def facts_of_run(manifest: Manifest) -> dict[str, str]:
    """Facts by name: `versions.torch`, `argument --seed`, `emulate`, `world_size`, `layers` and so on."""
    facts = {f"versions.{package}": version for package, version in manifest.versions.items()}
    facts |= {"world_size": str(manifest.world_size)}
    if manifest.git_commit is not None:
        facts["git_commit"] = manifest.git_commit
    script, arguments = script_and_arguments(manifest.command)
    if script is not None:
        facts["script"] = PurePath(script).name
        facts |= arguments_by_name(arguments)
    for option in ("emulate", "keep_bf16", "emulate_only", "plan", "seed", "inference"):
        value = manifest.options.get(option)
        if value not in (None, [], (), "", False):
            facts[option] = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    if manifest.layers:
        shapes = sorted(f"{layer.name} {layer.in_features}x{layer.out_features}" for layer in manifest.layers)
        facts["layers"] = "\n".join(shapes)
    return facts


def script_and_arguments(command: Sequence[str]) -> tuple[str | None, list[str]]:
    """The training script and what it was given; options of `fp8debug attach` before it are left out."""
    words = list(command)
    if not words:
        return None, []
    if not (PurePath(words[0]).name.startswith("fp8debug") and words[1:2] and words[1] in ("attach", "run", "verify")):
        return words[0], words[1:]
    for place in range(2, len(words)):
        if words[place] == "-m" and place + 1 < len(words):
            return words[place + 1], words[place + 2 :]
        if _SCRIPT.search(words[place]):
            return words[place], words[place + 1 :]
    return None, []


def arguments_by_name(arguments: Sequence[str]) -> dict[str, str]:
    """`--steps 200 --fp8 out` as `argument --steps`: 200, `argument --fp8`: yes, `arguments`: out."""
    named: dict[str, str] = {}
    plain: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not word.startswith("-") or re.fullmatch(r"-[\d.]+.*", word):
            plain.append(word)
            continue
        name, sign, value = word.partition("=")
        if not sign:
            has_value = bool(words) and (not words[0].startswith("-") or re.fullmatch(r"-[\d.]+.*", words[0]))
            value = words.pop(0) if has_value else "yes"
        named[f"argument {name}"] = value
    if plain:
        named["arguments"] = " ".join(plain)
    return named
