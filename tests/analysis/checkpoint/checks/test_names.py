"""Names with numbers taken apart and put together, strange ones too."""

from __future__ import annotations

import pytest

from fp8debug.analysis.checkpoint.checks.names import place_words, ranges_of, starred, with_numbers, wrappers_of


@pytest.mark.parametrize(
    ("name", "pattern", "numbers", "words"),
    [
        ("model.layers.0.mlp.experts.2.w1", "model.layers.*.mlp.experts.*.w1", (0, 2), "layer 0 expert 2"),
        ("double_blocks.7.attn", "double_blocks.*.attn", (7,), "double block 7"),
        ("layer_3.q", "layer_*.q", (3,), "layer 3"),
        ("h.11", "h.*", (11,), "layer 11"),
        ("lm_head", "lm_head", (), ""),
        ("a.*.layers.4.x*", "a.**.layers.*.x**", (4,), "layer 4"),
        ("layers." + "9" * 5000, "layers." + "9" * 5000, (), ""),
        ("layers.٣", "layers.٣", (), ""),
        ("", "", (), ""),
        ("..", "..", (), ""),
    ],
)
def test_a_name_is_its_pattern_and_its_numbers(name: str, pattern: str, numbers: tuple[int, ...], words: str) -> None:
    assert starred(name) == (pattern, numbers)
    assert with_numbers(pattern, numbers) == name
    assert place_words(pattern, numbers) == words


def test_ranges_and_wrappers() -> None:
    assert ranges_of([3, 1, 2, 7]) == "1-3, 7"
    assert wrappers_of("model.language_model.layers.0.mlp") == ("model.language_model.", "layers.0.mlp")
    assert wrappers_of("model") == ("", "model")
