"""Pickles read as data: nothing is looked up by name and nothing is called, whatever a file asks for.

A pickle is a program for a small stack machine. Unpickling runs it; here its opcodes (`pickletools.genops`) build
records instead: a name stays a `Global`, a call a `Call` with its arguments. Who reads the result takes from it what
is known and leaves the rest.
"""

from __future__ import annotations

import pickletools
from io import BytesIO
from typing import IO

from fp8debug.analysis.checkpoint.store.pickle_machine import ACTIONS, Machine, refuse
from fp8debug.analysis.checkpoint.store.pickle_records import Call, Global, OddKey, Persistent
from fp8debug.errors import Fp8DebugError

__all__ = ["Call", "Global", "OddKey", "Persistent", "interpret", "interpret_from"]

MOST_OPCODES = 60_000_000
"""Of one pickle; the metadata of 100,000 tensors in 16 pieces each has 50 millions."""


def interpret(data: bytes, what: str) -> object:
    """What the pickle at the beginning of some bytes describes.

    Args:
        data: the bytes; what follows the pickle is not looked at.
        what: for errors, `FILE: data.pkl`.

    Returns:
        Plain values, lists, tuples, dicts and sets of them, and the records of this module. Containers may contain
        themselves, as in any pickle.

    Raises:
        Fp8DebugError: it is damaged, or too large.
    """
    return interpret_from(BytesIO(data), what)


def interpret_from(stream: IO[bytes], what: str) -> object:
    """The same for a stream, which is left behind the pickle."""
    machine = Machine()
    at, n = 0, 0
    try:
        for opcode, argument, position in pickletools.genops(stream):
            at, n = position or 0, n + 1
            if n > MOST_OPCODES:
                refuse(f"it has more than {MOST_OPCODES:,} operations")
            act = ACTIONS.get(opcode.name)
            if act is None:
                refuse(f"operation {opcode.name} is not part of a checkpoint")
            act(machine, argument)
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError, RecursionError) as error:
        reason = "its operations do not fit together" if isinstance(error, IndexError | KeyError) else str(error)
        raise Fp8DebugError(
            f"{what} is a damaged pickle: at or after byte {at:,}, {reason}; expected a whole pickle as torch.save "
            f"writes it; fetch or write the file again"
        ) from error
    return machine.result
