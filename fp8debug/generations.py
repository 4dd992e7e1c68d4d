"""The small file `CURRENT`: which merged files of a run count in place of the parts that its ranks wrote.

Merging over ranks writes files that nobody looks at, then replaces `CURRENT`, which names them and says of each rank up
to which flush they hold its rows. So rows change their place in one moment, and old files may go at any time after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from fp8debug.errors import Fp8DebugError
from fp8debug.parts import live_parts, parse_part
from fp8debug.reading import known_fields, parse_json
from fp8debug.storage import Storage

CURRENT_NAME = "CURRENT"
READERS_LOCK = ".readers"
"""Shared by who reads the run, and held by who deletes files that do not count any more."""
COMPACTION_LOCK = ".compacting"
"""Held while the parts of all ranks are merged: writers then merge none of their own."""
_MOST_LISTINGS = 50
_FILE = re.compile(r"(?P<table>[^/]+)/generation=\d+/part-\d{6,}\.parquet")


@dataclass(frozen=True, slots=True)
class Generation:
    """What `CURRENT` says; without that file, nothing."""

    generation: int = 0
    """Counts from 1."""
    files: dict[str, list[str]] = field(default_factory=dict)
    """By table: names below the run directory of files that count, in order."""
    through: dict[str, dict[str, int]] = field(default_factory=dict)
    """By table and rank: the last flush that those files hold."""

    def last_flush(self, table: str, rank: int) -> int:
        """The last flush of a rank that is in `files`; -1: none."""
        return self.through.get(table, {}).get(str(rank), -1)

    def live(self, table: str, names: Iterable[str]) -> list[str]:
        """Of the files of a table, `names`, those that count: merged ones first, then parts of later flushes."""
        merged = self.files.get(table, [])
        parts = ((parse_part(name), name) for name in names)
        later = (name for part, name in parts if part and part.last > self.last_flush(table, part.rank))
        return [*merged, *live_parts(later)]


def file_name(table: str, generation: int, number: int) -> str:
    """Name of a file that holds rows of several parts, below the run directory."""
    return f"{table}/generation={generation}/part-{number:06d}.parquet"


def is_part(name: str) -> bool:
    """Whether a name below the run directory is one of a part or of a merged file, whether it counts or not."""
    return parse_part(name) is not None or _FILE.fullmatch(name) is not None


def read_generation(storage: Storage) -> Generation:
    """Read `CURRENT`.

    Raises:
        Fp8DebugError: it is there and cannot be read, or is not what it should be.
    """
    try:
        raw = parse_json(storage.read(CURRENT_NAME).decode("utf-8"))
        if not isinstance(raw, dict) or not isinstance(raw.get("generation"), int):
            raise ValueError("it does not say which generation it is")
        found = Generation(**known_fields(Generation, raw))
        _check(found)
    except (FileNotFoundError, NotADirectoryError):
        return Generation()
    except (OSError, ValueError, TypeError) as error:
        raise Fp8DebugError(
            f"{storage.address(CURRENT_NAME)} cannot be used ({error}); without it nobody knows which files count"
        ) from error
    return found


def write_generation(storage: Storage, generation: Generation) -> None:
    """Replace `CURRENT` in one moment; raises OSError."""
    with storage.writing(CURRENT_NAME, durable=True) as file:
        file.write((json.dumps(asdict(generation), indent=1) + "\n").encode())


def live_names(storage: Storage, table: str) -> list[str]:
    """Names of the files of a table that count, whatever is merged meanwhile.

    A listing takes time: one that is made while files are merged may miss both the old ones and the new. It holds
    when the next one still has all that it has, under the same `CURRENT`.

    Raises:
        Fp8DebugError: `CURRENT` cannot be used.
    """
    generation, names = read_generation(storage), storage.names(table)
    for _ in range(_MOST_LISTINGS):
        before, names_before = generation, names
        names = storage.names(table)
        generation = read_generation(storage)
        if generation == before and set(names_before) <= set(names):
            break
    return generation.live(table, names)


def _check(found: Generation) -> None:
    for table, names in found.files.items():
        for name in names:
            if not is_part(name) or name.split("/")[0] != table:
                raise ValueError(f"{name!r} is no file of the table {table!r}")
        if len(set(names)) < len(names):
            raise ValueError(f"a file of the table {table!r} is named twice")
    if not all(rank.isdecimal() for ranks in found.through.values() for rank in ranks):
        raise ValueError("a rank is no number")
