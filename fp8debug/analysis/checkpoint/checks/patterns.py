"""Lists of layers in configurations, matched against modules the ways that readers do it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import Literal

from fp8debug.analysis.checkpoint.checks.matching_regex import Regex

How = Literal["whole", "part"]
"""whole: the pattern names the module, or something that holds it | part: it ends within a word of it
(`mlp.gate` in `mlp.gate_up_proj`), so that readers that compare texts take it for a match, and others do not."""

_EXACT = frozenset({"compressed-tensors"})
"""Dialects whose names are compared as a whole: vllm, compressed_tensors/utils.py `should_ignore_layer`; all others
take a name for all that is below it: transformers 5, quantizers_utils.py `should_convert_module`."""
_WILDCARDS = frozenset({"modelopt", "quark"})
"""Dialects whose entries are those of fnmatch and no regular expressions: vllm, modelopt.py `is_layer_excluded`."""
_CLASS = re.compile(r"[A-Z][A-Za-z0-9]*")
_IS_REGEX = re.compile(r"[\^$()|+\\{}]|\.\*")


class Pattern:
    """One entry of a list.

    Attributes:
        text: as it is written.
        shown: the same for messages.
        is_name: whether it is a name, with no wildcard in it.
        is_class: whether it is the name of a class of layers (`Linear`): what that is no file tells.
        is_broken: whether it is a regular expression that does not compile.
        is_endless: whether it is one that may take for ever, so that it is not tried.
    """

    def __init__(self, text: str, dialect: str | None) -> None:
        self.text = text
        self.is_class = _CLASS.fullmatch(text) is not None
        self.is_broken = self.is_endless = False
        self._is_exact = dialect in _EXACT
        self._regex: Regex | None = None
        self._before_star = ""
        takes_regex = not self._is_exact and dialect not in _WILDCARDS
        if text.startswith("re:") or (takes_regex and _IS_REGEX.search(text)):
            self._regex = self._compiled(text.removeprefix("re:"))
        elif any(sign in text for sign in "*?[") and not self._is_exact:
            self._regex = Regex(translate(text), is_quick=True)
            self._before_star = text[:-1] if text.endswith("*") and not set("*?[") & set(text[:-1]) else ""
        self.shown = f"`{text}`" if len(text) <= _LONGEST_SHOWN else f"`{text[:_LONGEST_SHOWN]} ...`"
        self.is_name = self._regex is None and not (self.is_class or self.is_broken or self.is_endless)

    def _compiled(self, text: str) -> Regex | None:
        self.is_endless = len(text) > _LONGEST
        if self.is_endless:
            return None
        try:
            regex = Regex(text, may_be_endless=may_be_endless(text))
        except (re.error, RecursionError, OverflowError):
            self.is_broken = True
            return None
        self.is_endless = regex.is_endless
        return None if self.is_endless else regex

    def prepare(self, modules: Iterable[str]) -> None:
        """Match many modules at once, which `how` is asked for later."""
        if self._regex is not None:
            self._regex.prepare(modules)

    def how(self, module: str) -> How | None:
        """Whether it matches a module."""
        if self._regex is not None:
            found = self._regex.end(module)
            end = len(self._before_star) if self._before_star else found or 0
            return None if found is None else "whole" if _is_border(module, end) else "part"
        if not self.is_name or not self.text.strip("."):
            return None
        if self._is_exact:
            return "whole" if module == self.text else None
        return "whole" if self.names(module) else "part" if self.text in module else None

    def names(self, module: str) -> bool:
        """Whether its words stand in the name of a module, one after another."""
        return f".{self.text}." in f".{module}."


def _is_border(module: str, end: int) -> bool:
    return end == len(module) or module[end] == "." or (end > 0 and module[end - 1] == ".")


def may_be_endless(regex: str) -> bool:
    """Whether matching may take exponential time: a group that repeats and holds repetitions or choices.

    Also those with many wildcards. The list comes with a stranger's file.
    """
    if len(_REPEATS.findall(regex)) > _MOST_REPEATS:
        return True
    opened: list[bool] = []
    text = re.sub(r"\\.|\[[^\]]*\]", "x", regex)
    for at, sign in enumerate(text):
        if sign == "(":
            opened.append(False)
        elif sign == ")" and opened:
            varies = opened.pop()
            repeats = text[at + 1 : at + 2] in ("+", "*", "{")
            if varies and repeats:
                return True
            if opened:
                opened[-1] |= varies or repeats
        elif sign in "+*{|" and opened:
            opened[-1] = True
    return False


_LONGEST = 4000
_LONGEST_SHOWN = 120
_REPEATS = re.compile(r"[*+{]")
_MOST_REPEATS = 12


class PatternList:
    """Entries of a list, ready for many modules: names are looked up, all else is tried."""

    def __init__(self, texts: Iterable[str], dialect: str | None) -> None:
        self.all = tuple(Pattern(text, dialect) for text in dict.fromkeys(texts))
        self._names = {one.text: one for one in self.all if one.is_name}
        self._others = tuple(one for one in self.all if not one.is_name)
        lengths = {text.count(".") + 1 for text in self._names}
        self._lengths = () if dialect in _EXACT else tuple(sorted(lengths))

    def __bool__(self) -> bool:
        return bool(self.all)

    def prepare(self, modules: Iterable[str]) -> None:
        """Match many modules at once, which are asked for later."""
        modules = list(modules)
        for one in self._others:
            one.prepare(modules)

    def whole(self, module: str) -> Pattern | None:
        """The first entry that matches the module as a whole."""
        if (exact := self._names.get(module)) is not None:
            return exact
        words = module.split(".")
        for length in self._lengths:
            for first in range(len(words) - length + 1):
                if (named := self._names.get(".".join(words[first : first + length]))) is not None:
                    return named
        return next((one for one in self._others if one.how(module) == "whole"), None)
