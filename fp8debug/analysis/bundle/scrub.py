"""Texts without what tells who and where: paths, addresses, names of users and hosts, and names of layers if asked."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PATH, USER, HOST, ADDRESS, REMOVED, PATTERN = "<path>", "<user>", "<host>", "<address>", "<removed>", "<pattern>"

_END = r"[^\s'\"`,;)\]}>]"
_ADDRESSES = re.compile(
    rf"\b[A-Za-z][\w+.-]*://{_END}+|[\w.+-]+@[\w-]+(?:\.[\w-]+)*(?::{_END}+)?|\b\d+(?:\.\d+){{3}}\b"
)
_QUOTED = re.compile(r"(?P<quote>['\"`])(?P<path>(?:~|/|\.{1,2}/|[A-Za-z]:[\\/]|\\\\)[^'\"`\n]+)(?P=quote)")
_PATHS = re.compile(
    rf"(?<![\w.<)\]/*])~?[\w-]*(?<!\w)/{_END}+"  # absolute, and below a home folder
    rf"|(?<!\w)(?:[A-Za-z]:[\\/]|\\\\){_END}+"  # of Windows
    rf"|(?<![\w/])\.{{1,2}}/{_END}+"
    r"|(?<![\w/])(?:[\w.-]+/)+[\w-]+\.[A-Za-z]\w{0,9}\b"  # relative, of a file with an ending
)
_SCRIPT = re.compile(r"[\w.-]+\.py(:\d+)?$")
_HOMES = re.compile(r"(?:/home/|/Users/|/users/|\\Users\\+)([\w.-]+)")
_SECRET = re.compile(r"key|token|secret|passw|auth|credential", re.IGNORECASE)
_PATTERN_OPTIONS = ("--layers", "--exclude", "--keep-bf16")
_COMMON = {"root", "user", "admin", "ubuntu", "runner", "home", "localhost", "localdomain", "none", "shared"}
_SHORTEST = 3
"""Shorter names are parts of too many words that say nothing about a person."""


class Scrubber:
    """Takes out of texts what is not to be told."""

    def __init__(self, users: Iterable[str], hosts: Iterable[str], layers: Mapping[str, str] | None = None) -> None:
        """
        Args:
            users, hosts: names to be replaced, in any case.
            layers: other names for the layers; None: they stay.
        """
        self.layers = layers or {}
        self._words = [(_as_word(word, re.IGNORECASE), USER) for word in _tellable(users)]
        self._words += [(_as_word(word, re.IGNORECASE), HOST) for word in _tellable(hosts)]
        # A number is the name of a layer in nn.Sequential, and of much else in a sentence.
        named = sorted((name for name in self.layers if not name.isdigit()), key=len, reverse=True)
        self._named = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, named))})(?![\w]|\.\w)") if named else None

    def layer(self, name: str) -> str:
        """The name that the layer goes by."""
        return self.layers.get(name, name)

    def text(self, text: str) -> str:
        """A sentence for others to read."""
        if self._named is not None:
            text = self._named.sub(lambda match: self.layers[match[0]], text)
        text = _ADDRESSES.sub(ADDRESS, text)
        text = _QUOTED.sub(lambda match: f"{match['quote']}{_shown(match['path'])}{match['quote']}", text)
        text = _PATHS.sub(lambda match: _shown(match[0]), text)
        for word, replacement in self._words:
            text = word.sub(replacement, text)
        return text

    def value(self, value: Any) -> Any:
        """Every text in something that JSON can hold; keys are kept."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.value(entry) for key, entry in value.items()}
        return [self.value(entry) for entry in value] if isinstance(value, (list, tuple)) else value

    def command(self, words: Sequence[str]) -> list[str]:
        """A command line: programs and options stay, paths and what is secret by its option's name do not."""
        shown: list[str] = []
        option = ""
        for word in words:
            name, equals, value = word.partition("=")
            if word.startswith("-"):
                option = name
                shown.append(self.text(name) + (f"={self._argument(option, value)}" if equals else ""))
            else:
                shown.append(self._argument(option, word))
                option = ""
        return shown

    def _argument(self, option: str, word: str) -> str:
        if _SECRET.search(option):
            return REMOVED
        if option in _PATTERN_OPTIONS and self.layers:
            return PATTERN
        if option not in _PATTERN_OPTIONS and (os.sep in word or "\\" in word or word.startswith("~")):
            return self.text(_shown(word))
        return self.text(word)


def users_of(texts: Iterable[str]) -> set[str]:
    """The person at this machine, and owners of home folders that the texts name."""
    names = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")} | {Path.home().name}
    with contextlib.suppress(OSError, KeyError, ImportError):  # a container without an entry for the user
        names.add(getpass.getuser())
    return names | {name for text in texts for name in _HOMES.findall(text)}


def hosts_of(named: Iterable[str]) -> set[str]:
    """This machine and the named ones, each with and without its domain."""
    hosts = {socket.gethostname(), platform.node(), os.environ.get("HOSTNAME", ""), *named}
    return hosts | {host.partition(".")[0] for host in hosts}


def _tellable(words: Iterable[str]) -> Iterator[str]:
    """Longest first, so that no part of a name is replaced before the whole."""
    for word in sorted({word.strip() for word in words}, key=lambda word: (-len(word), word)):
        if len(word) >= _SHORTEST and word.lower() not in _COMMON:
            yield word


def _as_word(word: str, flags: re.RegexFlag) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", flags)


def _shown(path: str) -> str:
    """A path as it may be told: the name of a Python file says where in a program something happened."""
    bare = path.rstrip(".:")  # of the sentence around it
    match = _SCRIPT.search(re.split(r"[\\/]", bare)[-1])
    return (match[0] if match else PATH) + path[len(bare) :]
