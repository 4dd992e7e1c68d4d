"""Pickles read as data, against what pickle itself makes of harmless ones."""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import random
from pathlib import Path

import pytest

from fp8debug.analysis.checkpoint.store import pickled
from fp8debug.analysis.checkpoint.store.pickled import Call, OddKey, Persistent, interpret
from fp8debug.errors import Fp8DebugError

PLAIN = {
    "text": "ä", "bytes": b"\x00\xff", "numbers": [1, -1, 1 << 70, 0.5, True, None], ("a", 1): (1, 2, 3, 4),
    "sets": [{1, 2}, frozenset({"x"})], 3: {}, "empty": ((), [], set()),
}  # fmt: skip


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_values_are_what_pickle_reads(protocol: int) -> None:
    left_out = ("bytes", "sets", "empty") if protocol < 4 else ()  # written as calls then
    value = {key: one for key, one in PLAIN.items() if key not in left_out}
    assert interpret(pickle.dumps(value, protocol), "x") == value


@pytest.mark.parametrize("protocol", [0, 1])
def test_old_protocols_are_read(protocol: int) -> None:
    value = {"a": [1, 2.5, "b"], "c": (1, 2)}
    assert interpret(pickle.dumps(value, protocol), "x") == value


def test_nothing_of_a_pickle_runs(tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Harmful:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch {marker}",)

    data = pickle.dumps({"weights": [Harmful()]})
    read = interpret(data, "x")
    assert isinstance(read, dict)
    (call,) = read["weights"]
    assert call.path == f"{os.system.__module__}.system" and call.given == (f"touch {marker}",)
    assert not marker.exists()
    pickle.loads(data)  # the same bytes, unpickled
    assert marker.exists()


def test_objects_become_their_class_and_state() -> None:
    read = interpret(pickle.dumps(argparse.Namespace(lr=0.5)), "x")
    assert isinstance(read, Call)
    assert (read.path, read.given) == ("argparse.Namespace", ())
    assert read.state == {"lr": 0.5}
    ordered = interpret(pickle.dumps(collections.OrderedDict(a=1)), "x")
    assert isinstance(ordered, Call)
    assert ordered.path == "collections.OrderedDict" and ordered.entries == {"a": 1}


def test_persistent_ids_and_odd_keys_are_records() -> None:
    assert isinstance(interpret(b"\x80\x02K\x01Q.", "x"), Persistent)
    read = interpret(b"\x80\x04}(](K\x01eK\x02u.", "x")  # {[1]: 2}
    assert isinstance(read, dict)
    ((key, value),) = read.items()
    assert isinstance(key, OddKey) and key.value == [1] and value == 2


def test_a_key_that_takes_for_ever_to_hash_is_a_record() -> None:
    nested = b"\x80\x04N"
    for n in range(60):  # t(n+1) = (t(n), t(n)): 2^60 parts
        nested += b"q" + bytes([n]) + b"h" + bytes([n]) + b"\x86"
    read = interpret(nested + b"q\xc8}h\xc8K\x01s.", "x")
    assert isinstance(read, dict) and isinstance(next(iter(read)), OddKey)
    deep = b"\x80\x04N" + b"\x85" * 60_000 + b"q\x01}h\x01K\x01s."
    assert isinstance(interpret(deep, "x"), dict)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "after byte 0"),
        (b"\x80\x04", "exhausted before seeing STOP"),
        (b"\x80\x09N.", "protocol 9"),
        (b"\x80\x04a.", "do not fit together"),
        (b"\x80\x04h\x05.", "do not fit together"),
        (b"\x80\x04N\x85\x85\x87.", "do not fit together"),
        (b"\x80\x04}K\x01a.", "appended to what is no list"),
        (b"\x80\x04](K\x01K\x02u.", "set in what is no dict"),
        (b"\x80\x04}(K\x01u.", "a key has no value"),
        (b"\x80\x04K\x01K\x02\x93.", "no text"),
        (b"\x80\x04NNb.", "given to something that has none"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.", "9223372036854775807 bytes"),
    ],
)
def test_damaged_pickles_say_where(data: bytes, words: str) -> None:
    with pytest.raises(Fp8DebugError, match=words) as raised:
        interpret(data, "f.pt: data.pkl")
    assert str(raised.value).startswith("f.pt: data.pkl is a damaged pickle: at or after byte ")


def test_the_number_of_operations_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MOST_OPCODES", 5)
    with pytest.raises(Fp8DebugError, match="more than 5 operations"):
        interpret(pickle.dumps(list(range(10))), "x")


def test_mutated_pickles_give_records_or_errors() -> None:
    generator = random.Random(7)
    whole = pickle.dumps([PLAIN, argparse.Namespace(a=1), collections.OrderedDict(b=2)])
    n_errors = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(generator.randint(1, 6)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        try:
            interpret(bytes(data[: generator.randint(1, len(data))]), "x")
        except Fp8DebugError:
            n_errors += 1
    assert 200 < n_errors <= 400
