"""Room for a few layers: who gets it, and that it is never more than there is."""

from __future__ import annotations

import random
from collections import Counter

from fp8debug.hooks.probe.turns import Shortage, Turns


def step(turns: Turns, sizes: dict[str, int]) -> tuple[list[str], Shortage | None]:
    taken = [layer for layer, size in sizes.items() if turns.ask(layer) and turns.take(layer, size)]
    return taken, turns.end_step()


def test_all_fit() -> None:
    turns = Turns(30)
    for _ in range(3):
        assert step(turns, {"a": 10, "b": 10, "c": 10}) == (["a", "b", "c"], None)


def test_round_robin() -> None:
    turns = Turns(25)
    sizes = dict.fromkeys("abcde", 10)
    short = Shortage(n_layers=5, n_taken=2, n_bytes=50)
    assert [step(turns, sizes) for _ in range(6)] == [
        (list(layers), short) for layers in ("ab", "cd", "ae", "bc", "de", "ab")
    ]


def test_a_layer_that_never_fits() -> None:
    turns = Turns(10)
    for _ in range(2):
        assert step(turns, {"a": 11, "b": 10}) == (["b"], Shortage(2, 1, 21))
    assert step(Turns(0), {"a": 1}) == ([], Shortage(1, 0, 1))


def test_refused_layers_need_not_prepare() -> None:
    turns = Turns(10)
    step(turns, {"a": 10, "b": 10})
    assert not turns.ask("a"), "it is the turn of b"
    assert turns.ask("b")
    assert turns.ask("new")


def test_layers_come_and_go_and_grow() -> None:
    """Whatever happens the budget holds, and everybody who fits has a turn now and then."""
    turns, rng = Turns(100), random.Random(3)
    n_turns: Counter[str] = Counter()
    for _ in range(200):
        sizes = {f"l{i}": rng.randint(5, 60) for i in range(12) if rng.random() < 0.8}
        taken, shortage = step(turns, sizes)
        assert sum(sizes[layer] for layer in taken) <= 100
        assert (shortage is None) == (len(taken) == len(sizes))
        n_turns.update(taken)
    assert len(n_turns) == 12
    assert min(n_turns.values()) > max(n_turns.values()) / 2


def test_layers_that_do_not_run_are_not_missed() -> None:
    turns = Turns(10)
    step(turns, {"a": 10, "b": 10})
    assert step(turns, {"b": 10}) == (["b"], None)
    assert step(turns, {}) == ([], None)
    turns = Turns(10)
    step(turns, {"a": 10, "gone": 10, "b": 10})
    assert [step(turns, {"a": 10, "b": 10})[0] for _ in range(6)] == [[], ["b"], ["a"], [], ["b"], ["a"]]
