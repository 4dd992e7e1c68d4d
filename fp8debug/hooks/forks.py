"""A fork copies a session that is open; in the child it must fall silent."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Abandoned(Protocol):
    """What does something that a forked copy of it must not do."""

    def abandon(self) -> None: ...


def abandon_in_children(owner: Abandoned) -> None:
    """Call `owner.abandon()` in every process that is forked while `owner` lives."""
    reference = weakref.ref(owner)

    def abandon() -> None:
        live = reference()
        if live is not None:
            live.abandon()

    os.register_at_fork(after_in_child=abandon)
