"""`--max-bytes`: the more of it is used, the fewer steps are sampled; in the end health alone, then nothing."""

from __future__ import annotations

from collections.abc import Callable

from fp8debug.hooks.used_bytes import UsedBytes

LEVELS = ((0.5, 2), (0.75, 4), (0.875, 8), (0.95, 0))
"""From which share of the budget on which of the scheduled steps are sampled: every second ..., 0: none."""

Note = Callable[[str, str], None]
"""Takes kind and message of an event of the step under way."""


class Budget:
    """Follows how much of its share of a run's budget this rank has used."""

    def __init__(
        self, used: UsedBytes, world: int, *, thin: Callable[[int], None], note: Note, say: Callable[[str], None]
    ) -> None:
        """`thin` samples every Nth scheduled step from the next step on, none for 0."""
        self._used = used
        self._share = "" if world == 1 else f" (what each of {world} ranks has of --max-bytes)"
        self._thin = thin
        self._note = note
        self._say = say
        self._keep = 1
        self._told_refused = False

    @property
    def problems(self) -> list[str]:
        """For the end of the run: what the budget has cost."""
        if self._told_refused:
            return [f"--max-bytes was used up: {self._used.n_refused:,} rows were not written"]
        if self._keep != 1:
            return [f"--max-bytes: {self._percent()} used; {_words(self._keep)}"]
        return []

    def look(self) -> None:
        """A step is over: thin out when so much is used."""
        if self._used.most is None:
            return
        share = self._used.n_bytes / self._used.most
        keep = next((keep for least, keep in reversed(LEVELS) if share >= least), 1)
        if keep != self._keep and keep not in _before(self._keep):  # merging makes room, which is no reason to go back
            self._keep = keep
            self._thin(keep)
            self._tell(f"{self._percent()} used: from the next step on {_words(keep)}")
        self.look_refused()

    def look_refused(self) -> None:
        """Tell, once, that rows were refused."""
        if self._used.n_refused and not self._told_refused:
            self._told_refused = True
            self._tell(f"{self._percent()} used: from here on rows that do not fit are left out")

    def _tell(self, text: str) -> None:
        self._note("thinned", f"--max-bytes: {text}")
        self._say(f"fp8debug: --max-bytes: {text}")

    def _percent(self) -> str:
        assert self._used.most is not None
        return f"{self._used.n_bytes / self._used.most:.0%} of {size_text(self._used.most)}{self._share}"


def size_text(n_bytes: int) -> str:
    """`1.5 GB`, in powers of 1024."""
    size, unit = float(n_bytes), 0
    while size >= 1024 and unit < 4:
        size, unit = size / 1024, unit + 1
    return f"{size:.4g} {('bytes', 'kB', 'MB', 'GB', 'TB')[unit]}"


def _words(keep: int) -> str:
    return f"1 of {keep} scheduled steps is sampled" if keep else "health and scales are recorded alone"


def _before(keep: int) -> tuple[int, ...]:
    """Levels that come before this one."""
    order = [1, *(each for _, each in LEVELS)]
    return tuple(order[: order.index(keep)])
