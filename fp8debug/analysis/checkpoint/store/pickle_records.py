"""What a pickle would do, as records: names that stay names, calls that nobody makes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Global:
    """A name that unpickling would import."""

    module: str
    name: str

    @property
    def path(self) -> str:
        """`module.name`."""
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Call:
    """A call that unpickling would make, and what it would do to the result."""

    function: object
    arguments: object
    """Nearly always a tuple."""
    state: object = None
    """What the result would be given as its state."""
    items: list[object] | None = None
    """What would be appended or added to it."""
    entries: dict[object, object] | None = None
    """What would be set in it by keys; named arguments too."""

    @property
    def path(self) -> str:
        """Name of the function, `?` where it is no name."""
        return self.function.path if isinstance(self.function, Global) else "?"

    @property
    def given(self) -> tuple[object, ...]:
        """The arguments; none where they are no tuple."""
        return self.arguments if isinstance(self.arguments, tuple) else ()


@dataclass(frozen=True, slots=True, eq=False)
class Persistent:
    """Something that lies outside of the pickle; of torch, a storage."""

    id: object


@dataclass(frozen=True, slots=True, eq=False)
class OddKey:
    """A key of a dict that is no text, number or small tuple."""

    value: object
