"""What can be set for a capture, and how a person may write each value."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from fp8debug.errors import nearest

DEFAULT_RECIPES = ("current", "delayed")
KNOWN_TENSORS = ("x", "w", "dy", "y", "dx", "dw", "m", "v", "key", "value")
TENSOR_SYNONYMS = {
    "activation": "x",
    "input": "x",
    "weight": "w",
    "gradient": "dy",
    "grad_output": "dy",
    "output": "y",
    "dgrad": "dx",
    "grad_input": "dx",
    "wgrad": "dw",
    "grad_weight": "dw",
    "exp_avg": "m",
    "exp_avg_sq": "v",
}
ROLLS = ("microbatch", "step")
ENGINES = ("numba", "torch")
BACKENDS = ("auto", "modules", "dispatch")
DETAILS = ("channels", "blocks", "gemms")
ACCUMULATIONS = ("exact", "hopper-fast", "hopper-promoted")
ON_FULL = ("block", "drop")
GEMM_NAMES = ("fprop", "dgrad", "wgrad")
EMULATED_PARTS = ("x", "w", "dy", *GEMM_NAMES)

_RANGE = r"\s*[0-9]+\s*(-\s*([0-9]+\s*)?)?"
_STEPS = re.compile(f"{_RANGE}(,{_RANGE})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """Settings of one capture, after precedence was applied."""

    layers: tuple[str, ...] = ()
    """Regexes (re.search on the qualified name); a layer is taken when any matches, or when there is none."""
    exclude: tuple[str, ...] = ()
    """Regexes; a layer that matches any is left out."""
    exclude_must_match: bool = field(default=True, compare=False)
    """Refuse to start when no pattern of `exclude` matches; a configuration file may serve several models."""
    tensors: tuple[str, ...] = ("x", "w", "dy")
    every: int = 50
    """Sample (errors, histograms) each step divisible by this."""
    first: int = 0
    """Sample also the first this many steps."""
    steps: str | None = None
    """Ranges such as '0-9,100,200-'; when given, these steps are sampled instead of `every`."""
    raw_every: int = 0
    """Dump raw values each step divisible by this; 0: never."""
    recipes: tuple[str, ...] = DEFAULT_RECIPES
    rolls: str = "microbatch"
    """When a simulated delayed history advances: microbatch | step."""
    engine: str | None = None
    """What counts: numba | torch; None: numba where it is installed."""
    backend: str = "auto"
    """How operands are reached: auto | modules | dispatch; auto: by hooks, and by dispatch what those would miss."""
    attention: bool = False
    """Record the GEMMs inside attention too."""
    inference: bool = False
    """The run serves: evaluation passes are what is looked at, a step is one forward of the model."""
    trigger: tuple[str, ...] = ()
    """What makes the flight recorder write its last steps: of nan, spike, amax>16x; empty: no flight recorder."""
    flight_memory: int = 64
    """Memory of the flight recorder, in MB."""
    detail: tuple[str, ...] = DETAILS
    """What sampled steps take beside errors and histograms: of channels, blocks, gemms; empty: nothing."""
    accumulation: tuple[str, ...] = ("exact",)
    """How the GEMMs of the table gemms accumulate: of exact, hopper-fast, hopper-promoted."""
    probe_memory: int = 32
    """Most memory, in MB, of the operand samples that gemms keeps from forward to backward."""
    plan: str | None = None
    """File of a fallback plan for the emulation; its recipe is emulated unless `emulate` names another."""
    emulate: str | None = None
    """Recipe that the GEMMs of the taken layers compute with; None: the training is left as it is."""
    keep_bf16: tuple[str, ...] = ()
    """Regexes; layers that match any are not emulated."""
    emulate_only: tuple[str, ...] = ()
    """Operands (x, w, dy) and GEMMs (fprop, dgrad, wgrad) to emulate; empty: all."""
    on_full: str = "block"
    """When the disk is slower than the training: block (the training waits) | drop (details of sampled steps go)."""
    max_bytes: int | None = None
    """Most that the run may take on storage, in bytes; each rank has an equal share. None: no limit."""
    out: str | None = None
    name: str | None = None
    force: bool = False
    resume: str | None = None
    """Run directory that this run goes on in, as a new segment."""
    resume_step: int | None = None
    """Its first step there; None: what the optimizer has counted, else one more than the last recorded."""
    seed: int | None = None
    """Of torch, numpy and random, set before a watched script runs; None: they are left alone."""
    list_layers: bool = False
    quiet: bool = False


class BadValue(Exception):
    """What was expected of a value. Whoever knows where the value came from makes a UsageError of it."""


def parse_text(value: object) -> str:
    """A text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise BadValue("some text")
    return value


def parse_flag(value: object) -> bool:
    """A TOML boolean, or a word for one."""
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise BadValue("true or false")


def parse_count(least: int) -> Callable[[object], int]:
    """A parser of whole numbers from `least` on."""

    def parse(value: object) -> int:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"\s*[0-9]+\s*", value) else value
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise BadValue(f"a whole number of at least {least}")
        return number

    return parse


_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?)B?\s*", re.IGNORECASE)


def parse_size(value: object) -> int:
    """Bytes: a whole number of at least 1, or a text such as 500M or 1.5G, in powers of 1024."""
    if isinstance(value, int) and not isinstance(value, bool):
        n_bytes = value
    else:
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        n_bytes = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")) if match else 0
    if n_bytes < 1:
        raise BadValue("a size such as 500M or 20G, in bytes with k, M, G or T")
    return n_bytes


def parse_texts(value: object, separator: str | None = None) -> tuple[str, ...]:
    """A list of texts, or one text that is cut at `separator` (None: taken whole)."""
    texts: object = value
    if isinstance(value, str):
        texts = [value] if separator is None else re.split(separator, value.strip())
    if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(t, str) and t.strip() for t in texts):
        raise BadValue("a text or a list of texts, none of them empty")
    return tuple(text.strip() for text in texts)


def parse_regexes(value: object) -> tuple[str, ...]:
    """One regex or a list of them, in the syntax of `re`."""
    patterns = parse_texts(value)
    for pattern in patterns:
        _compile(pattern)
    return patterns


def _compile(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadValue(rf"a regular expression such as 'blocks\.[0-3]\.' ({pattern!r}: {error})") from error


def parse_tensors(value: object) -> tuple[str, ...]:
    """Tensors in our words and our order; upstream's words are understood."""
    asked = {_tensor(word) for word in parse_texts(value, r"\s*,\s*|\s+")}
    return tuple(tensor for tensor in KNOWN_TENSORS if tensor in asked)


def _tensor(word: str) -> str:
    tensor = TENSOR_SYNONYMS.get(word.lower(), word.lower())
    if tensor not in KNOWN_TENSORS:
        near = nearest(word.lower(), [*KNOWN_TENSORS, *TENSOR_SYNONYMS])
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise BadValue(f"some of {', '.join(KNOWN_TENSORS)} ({word!r} is none of them{hint})")
    return tensor


def parse_steps(value: object) -> str:
    """Steps and ranges such as 0-9,100,200-, kept as text; a single number is one step."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _STEPS.fullmatch(text):
        raise BadValue("steps and ranges such as 0-9,100,200-")
    return text


def parse_recipes(value: object) -> tuple[str, ...]:
    """One or more recipes: a list, or a text with white space between them. Their parameters are checked.

    Raises:
        UsageError: an unknown recipe or parameter.
    """
    texts = parse_texts(value, r"\s+")
    from fp8debug.recipes import parse_recipe  # needs numpy, which most commands do not

    for text in texts:
        parse_recipe(text)
    return texts


def parse_recipe_text(value: object) -> str:
    """One recipe, its parameters checked.

    Raises:
        UsageError: an unknown recipe or parameter.
    """
    text = parse_text(value)
    from fp8debug.recipes import parse_recipe  # as in parse_recipes

    parse_recipe(text)
    return text


def parse_some(*choices: str, none: str | None = None) -> Callable[[object], tuple[str, ...]]:
    """A parser of some words out of `choices`, returned in their order; the word `none` stands for no word at all."""

    def parse(value: object) -> tuple[str, ...]:
        if none is not None and (value == none or value in ([], ())):
            return ()
        words = {word.lower() for word in parse_texts(value, r"\s*,\s*|\s+")}
        if not words <= set(choices):
            unknown = ", ".join(sorted(words - set(choices)))
            raise BadValue(f"some of {', '.join(choices)}{f', or {none}' if none else ''} ({unknown} is none of them)")
        return tuple(word for word in choices if word in words)

    return parse


_TRIGGER = re.compile(r"nan|spike|amax>[0-9]+(\.[0-9]+)?x")


def parse_triggers(value: object) -> tuple[str, ...]:
    """Words for what the flight recorder waits for: nan, spike, amax>16x."""
    words = [word.lower() for word in parse_texts(value, r"\s*,\s*|\s+")]
    for word in words:
        if not _TRIGGER.fullmatch(word):
            raise BadValue(f"some of nan, spike, amax>16x ({word!r} is none of them)")
    return tuple(dict.fromkeys(words))


def parse_choice(*choices: str) -> Callable[[object], str]:
    """A parser of one word out of `choices`."""

    def parse(value: object) -> str:
        if value not in choices:
            raise BadValue(" or ".join(choices))
        return str(value)

    return parse
