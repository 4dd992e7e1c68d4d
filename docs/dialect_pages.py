"""The page of the dialects of checkpoints, from the files that describe them."""

from __future__ import annotations

from collections.abc import Iterator

from fp8debug.analysis.checkpoint.dialects import CodeSpelling, Dialect, ScaleSpelling, Sign, dialects

_HEAD = """# Dialects of checkpoints

{note}
How quantised weights are named and scaled differs from writer to writer. [`fp8debug checkpoint`](checkpoint.md)
recognises these dialects, by a configuration beside the file first, then by the header of the file, then by names;
`--as NAME` overrides that. The source is one file each in `fp8debug/analysis/checkpoint/dialects/`.

The value of a weight is that of its code, times each of its scales that multiplies, divided by each that divides. What
is not written down anywhere and had to be assumed is told with every audit. A checkpoint that two dialects read
differently is refused, with what would settle it. A block size is taken from the configuration; where none states it,
from the dialect; where that does not fit, from the shapes, if exactly one size in use goes with them. The last two are
told. Otherwise the scale is left out and reported: no size is made up. The last blocks of a matrix may be smaller.

`{{param}}` is the name of the parameter, `weight` as a rule: `{{param}}_scale` of `fc.weight` is `fc.weight_scale`,
and of `experts.gate_up_proj` it is `experts.gate_up_proj_scale`.

Shapes of a scale of N x K values: tensor `[]`, `[1]` or `[1, 1]`; line `[N]` or `[N, 1]`; column `[K]` or `[1, K]`;
block of b x c `[N / b, K / c]`, rounded up. Stacks of E matrices have `[E, ...]` of these. A grid stored columns first
is recognised where the matrix is not square, and told.

| `--as` | writer | scales of codes |
| --- | --- | --- |
{rows}
"""
_TABLE = ("| scale | is | does | shapes | blocks | stored as |", "| --- | --- | --- | --- | --- | --- |")
_KINDS = {
    "weight": "of the codes", "tensor": "of the codes, second level", "input": "of the layer's input",
    "output": "of the layer's output", "q": "of queries", "k": "of keys", "v": "of values",
    "reciprocal": "1 / another scale",
}  # fmt: skip


def pages(note: str) -> dict[str, str]:
    """File name below docs/ -> its whole text."""
    known = list(dialects().values())
    head = _HEAD.format(note=note, rows="\n".join(map(_row, known)))
    return {"checkpoint-dialects.md": "\n".join([head, *map(_section, known)])}


def _row(dialect: Dialect) -> str:
    of_codes = [one for one in dialect.scales if one.kind in ("weight", "tensor")]
    named = {one.tail: "divides" if one.divides else "multiplies" for one in of_codes}
    scales = ", ".join(f"`{tail}` {verb}" for tail, verb in named.items()) or "none"
    return f"| [{dialect.name}](#{dialect.name}) | {dialect.writers} | {scales} |"


def _section(dialect: Dialect) -> str:
    included = [one for name in dialect.includes for one in dialects()[name].scales]
    signs = "; ".join(dict.fromkeys(map(_sign, dialect.signs)))
    return f"## {dialect.name}\n\n**{dialect.title}.** {dialect.about}\n\n" + "\n".join(
        [
            f"* Written by: {dialect.writers}.",
            f"* Recognised by: {signs}.",
            *_codes(dialect),
            *_paths("Block size from", dialect.block_paths),
            *_paths("Left out, from", dialect.excluded_paths),
            *_paths("Powers of two promised by", tuple(one.config for one in dialect.promises)),
            "",
            *_TABLE[: 2 * (len(dialect.scales) > len(included))],
            *dict.fromkeys(_scale(one) for one in dialect.scales if one not in included),
            "",
            *(f"And all scales of [{name}](#{name}).\n" for name in dialect.includes),
        ]
    )


def _sign(sign: Sign) -> str:
    if sign.config:
        values = " or ".join(f"`{value}`" for value in sign.equals)
        return f"`{sign.config}`" + (f" is {values}" if values else "")
    if sign.metadata:
        return f"`{sign.metadata}` in the header of the file"
    dtypes = f" in {' or '.join(sign.dtypes)}" if sign.dtypes else ""
    return f"{'any tensor' if sign.tail == '{param}' else f'`{sign.tail}`'}{dtypes}"


def _codes(dialect: Dialect) -> Iterator[str]:
    if dialect.codes:
        yield "* Codes: " + "; ".join(map(_code, dialect.codes)) + "."
    if dialect.companions:
        yield "* Beside them, not looked at: " + ", ".join(f"`{tail}`" for tail in dialect.companions) + "."


def _code(spelling: CodeSpelling) -> str:
    formats = ", ".join(dtype if dtype.endswith(fmt) else f"{dtype} ({fmt})" for dtype, fmt in spelling.formats.items())
    shape = " as (..., K / 32, 16)" if spelling.has_blocks_apart else ""
    order = ", the first of two in the high half of a byte" if spelling.is_high_first else ""
    return f"`{spelling.tail}`{shape} in {formats}{order}"


def _paths(words: str, paths: tuple[str, ...]) -> Iterator[str]:
    if paths:
        yield f"* {words}: " + ", ".join(f"`{path}`" for path in dict.fromkeys(paths)) + "."


def _scale(one: ScaleSpelling) -> str:
    blocks = ", ".join(f"{lines} x {columns}" for lines, columns in one.blocks)
    order = "in the order of tensor cores" if one.is_swizzled else ""
    if one.is_swizzled_otherwise:
        order = "those of another shape in the order of tensor cores"
    cells = (
        f"`{one.tail}`", _KINDS[one.kind], "divides" if one.divides else "multiplies", ", ".join(one.layouts),
        ", ".join(filter(None, (blocks, order))), ", ".join(one.dtypes),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"
