"""Inputs that are wrong on purpose: real ones of every kind, then damaged; each with the commands that read it."""

from __future__ import annotations

import io
import json
import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

import fp8debug
from fp8debug.analysis.plans import TARGETS, export
from fp8debug.plans import Plan, PlanEntry
from fp8debug.rundir import LayerInfo, Manifest
from fp8debug.schema import TABLES, Column
from fp8debug.settings import SETTINGS, load_options

Command = Sequence[str] | Callable[[], object]
"""Arguments of `fp8debug`, or a call for what no verb reads without running a script."""
Files = dict[str, bytes]
"""The content of a folder, by paths relative to it."""

NASTY_TEXTS = (
    *("", " ", "\x00", "\n", "\r\n", "\x1b[2J\x1b[31m", "[red]x[/red]", "\x08\x08\x08", "\u202egnp.exe", "\x9b31m"),
    *("<script>alert(1)</script>", "'; drop table steps; --", '"', "\\", "*?[a-z]", "../../etc/passwd", "/etc/passwd"),
    *("a" * 10_000, "\U0001f4a9", "\u0301", "{}", "{step!r:>99999}", "{0.__class__}", "%s%n", "$x", "nan", "-inf"),
    *("1e999", "\ufeff", "日本語", "\u2028", "#", ":", "- -"),
)
NASTY_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**40, 10**400, 0.5, -0.0, 1e308, 5e-324),
    *(math.nan, math.inf, -math.inf, [], {}, [[]], [None], {"a": {}}, {"": None}, "2020-99-99", "x"),
)
_CASTS: tuple[pa.DataType, ...] = (
    pa.string(), pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(),
    pa.binary(), pa.timestamp("us"), pa.date32(), pa.decimal128(20, 3), pa.null(), pa.list_(pa.int64()),
    pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64()), pa.list_(pa.list_(pa.float32())),
)  # fmt: skip


@dataclass(frozen=True)
class Samples:
    """Real inputs that are damaged."""

    run: Files
    """A recorded run with every table."""
    texts: dict[str, dict[str, bytes]]
    """Kind of input → file name → content."""
    place: Path
    """The run as it lies on disk, for inputs that do not damage it; nothing may ever be written there."""

    def written(self) -> list[str]:
        """Files of the run that are not as they were."""
        found = {str(p.relative_to(self.place)): p.stat().st_size for p in self.place.rglob("*") if p.is_file()}
        return sorted(found.keys() ^ self.run.keys()) + [n for n in self.run if len(self.run[n]) != found.get(n)]


def make_samples(folder: Path) -> Samples:
    """Record a small training in `folder`, and write one of each other input."""
    run = _record(folder / "run")
    layers = [LayerInfo(f"layers.{i}.fc", f"layers.{i}.fc", "Linear", "model", 8, 8, True) for i in range(3)]
    entries = (
        PlanEntry("layers.0.fc", "bf16", reason="it suffers"),
        PlanEntry("layers.1.fc", "delayed:margin=1", "x", "fprop", "a gap"),
        PlanEntry("layers.2.fc", "mxfp8", "dy"),
    )
    plan = Plan("current", entries, "run", 0.5)
    plans = {f"plan.{target}": export(plan, target, layers, "te").text.encode() for target in TARGETS}
    names = "\n".join(layer.name for layer in layers)
    plans |= {"names.txt": names.encode(), "names.json": json.dumps(names.split()).encode()}
    curve = [{"step": i, "loss": 3 - i / 50, "grad_norm": 1.0, "lr": 0.1, "tokens": 64} for i in range(60)]
    curves = {
        "curve.csv": "\n".join(["step,loss,grad_norm,lr", *(f"{i},{3 - i / 50},1.0,0.1" for i in range(60))]).encode(),
        "curve.json": json.dumps(
            {"steps": curve, "manifest": {"seed": 1, "a": {"b": 2}}, "evals": {"t": 0.5}}
        ).encode(),
        "curve.jsonl": "\n".join(map(json.dumps, curve)).encode(),
        "columns.json": json.dumps({"step": list(range(60)), "loss": [3 - i / 50 for i in range(60)]}).encode(),
        "curve.csv.manifest.json": json.dumps({"seed": 1, "versions": {"torch": "2"}, "evals": {"t": 0.5}}).encode(),
    }
    config = {"fp8debug.toml": _CONFIG.encode(), "pyproject.toml": f"[tool.fp8debug]\n{_CAPTURE}".encode()}
    control = {"serial": 3, "written_unix_s": 1.8e9, "layers": ["0"], "every": 5, "raw-now": 2, "detail": ["gemms"]}
    texts = {"plan": plans, "curve": curves, "config": config, "rule": {"own.sql": _RULE.encode()}}
    return Samples(run, texts | {"control": {"control.json": json.dumps(control).encode()}}, folder / "run")


_CAPTURE = 'layers = ["fc"]\nevery = 5\nrecipe = ["current", "delayed:margin=1"]\nsteps = "0-9,20-"\ntrigger = "nan"\n'
_CONFIG = _CAPTURE + 'detail = "gemms"\n[thresholds]\nunderflow = 0.1\n[rules.loss-nonfinite]\nseverity = "warning"\n'
_RULE = """-- A loss above a limit.
/*
severity = "warning"
sentence = "the loss is {loss:.2f} at step {step}"
advice = "look at it"
only_if = ["exists (from steps)"]

[parameters.limit]
default = 1.0
meaning = "a loss"
source = "taste"

[[evidence]]
column = "loss"
title = "loss"
healthy = "below 1"
*/
select null as layer, null as tensor, step as first_step, step as last_step, loss, step from steps where loss > $limit
"""


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.relu(self.first(x)))
        return y


def _record(path: Path) -> Files:
    torch.manual_seed(0)
    net = _Net().to(torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    options: dict[str, Any] = {"every": 2, "raw_every": 3, "recipes": ["current", "delayed", "mxfp8"]}
    with fp8debug.attach(net, run_dir=path, quiet=True, engine="torch", **options) as session:
        for step in range(4):
            loss = net(torch.randn(32, 32).to(torch.bfloat16)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            session.log(loss=float(loss.detach()), eval={"task": step / 4})
    files = {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
    for table in TABLES.values():
        if not any(name.startswith(f"{table.name}/") for name in files):
            files[f"{table.name}/rank=0/part-000000.parquet"] = _one_row(table.columns)
    write_files(path, files)
    return files


def _one_row(columns: Sequence[Column]) -> bytes:
    kinds = {"bool": pa.bool_(), "int32": pa.int32(), "int64": pa.int64(), "uint64": pa.uint64(), "string": pa.string(),
             "float32": pa.float32(), "float64": pa.float64()}  # fmt: skip
    zero = {"rank": 0, "segment": 0, "step": 0, "seq": 0, "layer": "first", "tensor": "w"}
    types = [pa.list_(kinds[c.type[5:-1]]) if c.type.startswith("list<") else kinds[c.type] for c in columns]
    cells = [pa.array([zero.get(c.name)], type=kind) for c, kind in zip(columns, types, strict=True)]
    return parquet_bytes(pa.table(cells, names=[c.name for c in columns]))


def parquet_bytes(table: pa.Table) -> bytes:
    """A Parquet file of the table, as the writer makes them."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


# Damage ---------------------------------------------------------------------------------------------------------------


def damaged_bytes(rng: random.Random, content: bytes) -> bytes:
    """Bits flipped, cut, doubled, zeroed, replaced."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at, size = rng.randrange(len(data) + 1), rng.choice((1, 2, 8, 100))
        kind = rng.randrange(9)
        if kind == 0 and data:
            for _ in range(rng.choice((1, 1, 3, 20))):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            del data[at : at + size]
        elif kind == 3:
            data[at:at] = data[at : at + size]
        elif kind == 4:
            data[at : at + size] = bytes(size)
        elif kind == 5:
            data[at : at + size] = rng.randbytes(size)
        elif kind == 6:
            data[at:at] = rng.choice(NASTY_TEXTS).encode("utf-8", "surrogatepass")
        elif kind == 7:
            data[at:at] = rng.choice(
                (b"\xff\xfe", b"\xed\xa0\x80", b"\x00" * 9, b"\xef\xbb\xbf", b"[" * 5000, b"{" * 5000)
            )
        else:
            data = bytearray(rng.choice((b"", b"\x00", b"null", b"[]", b"{}", b"PAR1", b"PAR1" * 3, rng.randbytes(50))))
    return bytes(data)


def damaged_value(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """The document with something in it replaced, added, removed or nested."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        value = dict(value)
        key = rng.choice(list(value))
        kind = rng.randrange(8)
        if kind == 0:
            del value[key]
        elif kind == 1:
            value[rng.choice(NASTY_TEXTS)] = nasty(rng)
        elif kind == 2:
            value[key.upper() if rng.random() < 0.5 else key[:-1]] = value[key]
        else:
            value[key] = damaged_value(rng, value[key], depth + 1)
        return value
    if isinstance(value, list) and value and rng.random() < 0.9:
        value = list(value)
        at = rng.randrange(len(value))
        kind = rng.randrange(6)
        if kind == 0:
            del value[at]
        elif kind == 1:
            value.insert(at, nasty(rng))
        elif kind == 2:
            value = value * 3
        else:
            value[at] = damaged_value(rng, value[at], depth + 1)
        return value
    return nasty(rng)


def nasty(rng: random.Random) -> Any:
    """A value that is hardly expected anywhere."""
    kind = rng.randrange(10)
    if kind < 4:
        return rng.choice(NASTY_TEXTS)
    if kind < 9:
        return rng.choice(NASTY_VALUES)
    value: Any = rng.choice(NASTY_VALUES)
    for _ in range(rng.choice((3, 100, 3000))):
        value = [value] if kind % 2 else {"a": value}
    return value


def json_bytes(rng: random.Random, document: Any) -> bytes:
    """As a program with other habits may write it."""
    try:
        text = json.dumps(document, ensure_ascii=rng.random() < 0.5)
    except (RecursionError, ValueError):  # deeper, or longer, than Python's own writer goes
        text = "[" * 100_000 + "]" * 100_000
    return text.replace("10" + "0" * 30, "1" + "0" * 5000).encode("utf-8", "surrogatepass")


def damaged_table(rng: random.Random, table: pa.Table) -> pa.Table:
    """Columns dropped, doubled, renamed, of another type or full of extremes; rows gone or repeated."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        names = table.column_names
        if not names:
            return table
        at = rng.randrange(len(names))
        kind = rng.randrange(10)
        if kind == 0:
            table = table.remove_column(at)
        elif kind == 1:
            table = table.append_column(rng.choice((names[at], names[at].upper(), *NASTY_TEXTS)), table.column(at))
        elif kind == 2:
            table = table.rename_columns([*names[:at], rng.choice(NASTY_TEXTS), *names[at + 1 :]])
        elif kind in (3, 4):
            table = table.set_column(at, names[at], _other_type(rng, table.column(at)))
        elif kind in (5, 6, 7):
            table = table.set_column(at, names[at], _extremes(rng, table.column(at)))
        elif kind == 8:
            table = table.slice(0, rng.choice((0, 1))) if rng.random() < 0.5 else pa.concat_tables([table] * 3)
        else:
            order = list(range(len(names)))
            rng.shuffle(order)
            table = table.select(order) if len(set(names)) == len(names) else table
    return table


def _other_type(rng: random.Random, column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = rng.choice(_CASTS)
    try:
        return column.cast(kind, safe=False)
    except pa.ArrowException:
        return pa.nulls(len(column), kind)


def _extremes(rng: random.Random, column: pa.ChunkedArray) -> pa.Array:
    kind = column.type
    if pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type):
        return pa.array([rng.choice(([], None, [0] * 5000, [None])) for _ in range(len(column))], type=kind)
    if pa.types.is_integer(kind):
        bits = kind.bit_width - (0 if pa.types.is_unsigned_integer(kind) else 1)
        pool: tuple[Any, ...] = (2**bits - 1, 0, 1, None, *(() if bits == kind.bit_width else (-(2**bits), -1)))
    elif pa.types.is_floating(kind):
        pool = (math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, 0.0, -0.0, -1.0, None)
    elif pa.types.is_string(kind):
        pool = (*NASTY_TEXTS, None)
    else:
        pool = (None,)
    one = rng.choice(pool)
    values = [one if rng.random() < 0.5 else rng.choice(pool) for _ in range(len(column))]
    try:
        return pa.array(values, type=kind)
    except pa.ArrowException:
        return pa.nulls(len(column), kind)


def odd_file(rng: random.Random, path: Path) -> None:
    """Something at `path` that is no file: a folder, a pipe nobody writes to, a link to itself or to nothing."""
    path.unlink(missing_ok=True)
    kind = rng.randrange(5)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.symlink_to(path.name)
    elif kind == 3:
        path.symlink_to("nothing-there")
    else:
        path.symlink_to(".")


# Kinds ----------------------------------------------------------------------------------------------------------------


def write_files(folder: Path, files: Files) -> None:
    """Write all of them below `folder`."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def parquet_case(rng: random.Random, samples: Samples, folder: Path) -> list[Command]:
    """One part of a run is damaged: its bytes, its columns, or it is no file at all."""
    run = folder / "run"
    write_files(run, samples.run)
    part = rng.choice([name for name in samples.run if name.endswith(".parquet")])
    kind = rng.random()
    if kind < 0.08:
        odd_file(rng, run / part)
    elif kind < 0.5:
        (run / part).write_bytes(damaged_bytes(rng, samples.run[part]))
    else:
        table = damaged_table(rng, pq.read_table(io.BytesIO(samples.run[part])))
        (run / part).write_bytes(parquet_bytes(table))
    name = part.partition("/")[0]
    reads = ["sql", str(run), f"from {name}", "--format", "csv"]
    return [reads if rng.random() < 0.7 else _reader(rng, run, folder)]


def _reader(rng: random.Random, run: Path, folder: Path) -> list[str]:
    return rng.choice(
        [
            ["report", str(run)],
            ["report", str(run), "--json", "--remedies"],
            ["report", str(run), "--fail-on", "findings,underflow>0.5", "--steps", "0-2", "--layer", "first"],
            ["whatif", str(run)],
            ["plan", str(run), "--for", rng.choice(list(TARGETS))],
            ["compare", str(run), str(run)],
            ["bundle", str(run), "-o", str(folder / "bundle.zip")],
            ["sql", str(run), "from tensor_errors"],
            ["sql", str(run), "from events", "--format", "json"],
        ]
    )


def manifest_case(rng: random.Random, samples: Samples, folder: Path) -> list[Command]:
    """run.json, rank=0.json or the control file of a run is damaged."""
    run = folder / "runs" / "run"
    files = samples.run | samples.texts["control"]
    write_files(run, files)
    name = rng.choice(("run.json", "run.json", "rank=0.json", "control.json"))
    damage_text(rng, run / name, files[name])
    if name == "control.json":
        asks = [["control", str(run)], ["control", str(run), "--every", "7", "--raw-now"]]
        return [rng.choice(asks), lambda: _read_control(run / name)]
    asks = [
        ["sql", str(run), "select * from layers"],
        ["runs", str(run.parent)],
        ["runs", str(run.parent), "--json"],
        ["control", str(run)],
        ["plan", "--check", str(folder / "none.toml"), str(run)],
        _reader(rng, run, folder),
    ]
    return [rng.choice(asks)]


def _read_control(path: Path) -> object:
    from fp8debug.control import next_control, read_control

    next_control(path, Manifest("run", [], datetime.now().isoformat()), {"every": 3}, raw_now=False)
    return read_control(path)


def damage_text(rng: random.Random, path: Path, content: bytes) -> None:
    """Damage a text file as bytes, or, where it is JSON, as a document; or put no file there."""
    kind = rng.random()
    if kind < 0.06:
        odd_file(rng, path)
    elif kind < 0.55 and path.suffix in (".json", ".jsonl"):
        lines = content.decode().splitlines() if path.suffix == ".jsonl" else [content.decode()]
        at = rng.randrange(len(lines))
        document = json.loads(lines[at])
        for _ in range(rng.choice((1, 1, 3))):
            document = damaged_value(rng, document)
        path.write_bytes(
            b"\n".join([*map(str.encode, lines[:at]), json_bytes(rng, document), *map(str.encode, lines[at + 1 :])])
        )
    elif kind < 0.6:
        path.write_bytes(damaged_bytes(rng, content))
    else:
        path.write_bytes(damaged_words(rng, content))


def damaged_words(rng: random.Random, content: bytes) -> bytes:
    """A word or a line of the text is replaced, doubled, moved or gone: most of it still parses."""
    lines = content.decode().split("\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        words = lines[at].split(" ")
        kind = rng.randrange(7)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        elif kind == 2:
            lines.insert(at, rng.choice(NASTY_TEXTS))
        else:
            word = rng.randrange(len(words))
            new: str = rng.choice(
                (*_WORDS, *NASTY_TEXTS, *map(repr, NASTY_VALUES), json.dumps(rng.choice(NASTY_TEXTS)))
            )
            words[word] = new if rng.random() < 0.7 else words[word][:-1]
            lines[at] = " ".join(words)
        lines = lines or [""]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


_WORDS = (
    *(
        "true",
        "[]",
        "{}",
        "[[entry]]",
        "[rules]",
        "inf",
        "1979-05-27",
        "0x7f",
        "(",
        "[",
        "{",
        "-",
        "&a",
        "*a",
        "|",
        "~",
    ),
    *("*", "null", "enabled:", "layers:", "[[:alpha:]", "(?P<a>", "-0", "0-99999999999"),
    *("!!python/object:os.system", "!!binary x", "? x", "a: &a [*a]", '"""', "a{9999999999}", "(" * 300, "x" * 3000),
)


def config_case(rng: random.Random, samples: Samples, folder: Path) -> list[Command]:
    """A configuration file or a variable of the environment is damaged."""
    if rng.random() < 0.25:
        variable = rng.choice([s.environment for s in SETTINGS.values()] + ["FP8DEBUG_CONFIG", "FP8DEBUG_NONE"])
        texts = (*NASTY_TEXTS, *_WORDS, *map(str, NASTY_VALUES[:20]), '["a", 1]', "[" * 3000)
        environment = {variable: rng.choice(texts)}
        return [lambda: load_options({}, environment=environment, folder=folder)]
    name, content = rng.choice(list(samples.texts["config"].items()))
    damage_text(rng, folder / name, content)
    file = str(folder / name)
    return [["rules", "--config", file], lambda: load_options({}, config_file=file, environment={})]


def rule_case(rng: random.Random, samples: Samples, folder: Path) -> list[Command]:
    """A rule of the user's own is damaged."""
    damage_text(rng, folder / "own.sql", samples.texts["rule"]["own.sql"])
    (folder / "fp8debug.toml").write_text('rule-files = ["own.sql"]\n')
    config = ["--config", str(folder / "fp8debug.toml")]
    if rng.random() < 0.6:
        return [["rules", *config]]
    return [["report", str(samples.place), *config]]


def plan_case(rng: random.Random, samples: Samples, folder: Path) -> list[Command]:
    """A plan file of some target, or a list of layer names, is damaged."""
    plans = samples.texts["plan"]
    write_files(folder, plans)
    name = rng.choice(list(plans))
    damage_text(rng, folder / name, plans[name])
    plan = name if name.startswith("plan.") else "plan.te"
    names = "names.txt" if name != "names.json" else name
    options = rng.choice(([], ["--json"], ["--names", "model"]))
    return [["plan", "--check", str(folder / plan), str(folder / names), *options]]


def curve_case(rng: random.Random, samples: Samples, folder: Path) -> list[Command]:
    """A loss curve or the facts beside it are damaged."""
    curves = samples.texts["curve"]
    write_files(folder, curves)
    name = rng.choice(list(curves))
    damage_text(rng, folder / name, curves[name])
    curve = name if ".manifest" not in name else "curve.csv"
    options = rng.choice(([], ["--json"], ["--gate", "0.01"], ["--gate", "1%"]))
    pair = [str(folder / "curve.csv"), str(folder / curve)]
    return [["compare", *(pair if rng.random() < 0.7 else reversed(pair)), *options]]


def sql_case(rng: random.Random, samples: Samples, folder: Path) -> list[Command]:
    """A query: made of random pieces, or one that wants what it must not have."""
    run = samples.place
    query = _wanted(rng, run) if rng.random() < 0.5 else _pieces(rng)
    if rng.random() < 0.3:
        query = damaged_words(rng, query.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
    if rng.random() < 0.2:
        (folder / "q.sql").write_bytes(damaged_bytes(rng, query.encode("utf-8", "surrogatepass")))
        return [["sql", str(run), "-f", str(folder / "q.sql")]]
    form = rng.choice(("table", "csv", "json", "jsonl", "parquet"))
    return [["sql", str(run), query.replace("\x00", "\\0"), "--format", form]]


_READS = tuple(
    """
/etc/passwd
/etc/*
{run}/../secret.csv
{run}/../*
file:///etc/passwd
http://127.0.0.1:9/x
s3://b/x
/proc/self/environ
/dev/stdin
{run}/run.json
{run}/steps/rank=0/part-000000.parquet
""".strip().splitlines()
)
_WRITES = tuple(
    """
copy (select 1) to '{run}/x.csv'
copy steps to '{run}/steps/rank=0/part-000009.parquet'
attach '{run}/x.db'
attach ':memory:' as m
install httpfs
load httpfs
load '/tmp/x.so'
pragma database_size
set memory_limit = '1GB'
call pragma_version()
create table t as from steps
create macro m() as 1
insert into steps values (1)
update steps set loss = 0
delete from steps
drop view steps
truncate steps
alter table steps add column a int
export database '{run}/x'
import database '/tmp/x'
checkpoint
vacuum
analyze
prepare p as select 1
execute p(1)
deallocate p
begin
commit
rollback
use memory
detach memory
reset all
set variable x = 1
create secret (type s3)
comment on view steps is 'x'
merge into steps using steps on true when matched then delete
create type t as enum ('a')
set allowed_directories = ['/']
pragma enable_external_access
copy steps from '/etc/passwd'
""".strip().splitlines()
)


_READERS = (
    *("read_csv", "read_text", "read_blob", "read_json", "read_parquet", "parquet_schema", "parquet_metadata", "glob"),
    *("sniff_csv", "read_csv_auto", "parquet_kv_metadata", "read_json_objects", "read_ndjson"),
)
_WANTS = """
from {read}('{place}')
from '{place}'
select * from {read}(['{place}'])
{write}
select 1; {write}
{write}; select 1
explain {write}
explain analyze {write}
explain (analyze) {write}
with t as ({write}) select * from t
select * from ({write})
from query('{quoted}')
/* x */ {write} -- y
describe {write}
summarize from '{place}'
from query_table('{place}')
select getenv('PATH'), current_setting('secret_directory')
with recursive t as (select 1 as i union all select i + 1 from t where i < 50) select *, ('{place}') from t
""".strip().splitlines()


def _wanted(rng: random.Random, run: Path) -> str:
    write = rng.choice(_WRITES).format(run=run)
    write = rng.choice((write, write, write.upper()))
    place, quoted = rng.choice(_READS).format(run=run), write.replace("'", "''")
    return rng.choice(_WANTS).format(read=rng.choice(_READERS), place=place, write=write, quoted=quoted)


_NAMES = ("step", "loss", "layer", "tensor", "segment", "nope", '"x y"', "*", "$1", "?", "null", "steps")
_LITERALS = """
1e400
-170141183460469231731687303715884105728
'inf'::double
'nan'::float
date '2026-01-01'
interval 1 month
[1, null]
{'a': [1]}
map {'k': 1}
'x'::blob
uuid()
'1'::bit
time '10:00'
timestamptz '2026-01-01'
1.5::decimal(38,10)
array_value(1,2)
'-infinity'::date
union_value(a := 1)
""".strip().splitlines()
_OPERATORS = ("+", "-", "/", "//", "%", "||", "=", "and", "like", "is distinct from", "in", "::int", "->")
_FUNCTIONS = (
    *("sum", "max", "list", "sqrt", "ln", "regexp_matches", "error", "repeat", "unnest", "struct_pack", "range", "try"),
    *("to_json", "sqnr_db", "gain", "power_of_two_below", "cast", "row", "format", "printf", "strftime", "chr"),
)
_SOURCES = (
    *TABLES,
    *("layers", "tensor_errors", "candidates", "scale_gaps", "watch", "whatif('E4M3', 1)", "whatif_current('E5M2')"),
    *("range(5)", "nope", "steps, steps", "duckdb_settings()", "duckdb_functions()", "information_schema.tables"),
)
_HEADS = ("select {}, {} from", "from", "describe from", "summarize", "explain from", "pivot", "select distinct * from")
_TAILS = ("", "", "where {}", "group by {}", "order by {} limit 3", "limit 1", "qualify {}", "using sample 3")


def _pieces(rng: random.Random) -> str:
    head, tail = rng.choice(_HEADS), rng.choice(_TAILS)
    text = f"{head} {rng.choice(_SOURCES)} {tail}"
    return "".join(piece + value for piece, value in _filled(rng, text.split("{}")))


def _filled(rng: random.Random, pieces: list[str]) -> Iterator[tuple[str, str]]:
    for place, piece in enumerate(pieces):
        yield piece, _expression(rng, 0) if place < len(pieces) - 1 else ""


def _expression(rng: random.Random, depth: int) -> str:
    kind = rng.randrange(9 if depth < 4 else 4)
    if kind == 0:
        return rng.choice(_NAMES)
    if kind == 1:
        return repr(rng.choice(NASTY_VALUES[:17]))
    if kind == 2:
        return "'" + rng.choice(NASTY_TEXTS).replace("'", "''").replace("\x00", "") + "'"
    if kind == 3:
        return rng.choice(_LITERALS)
    if kind < 7:
        return f"{_expression(rng, depth + 1)} {rng.choice(_OPERATORS)} {_expression(rng, depth + 1)}"
    arguments = [_expression(rng, depth + 1) for _ in range(rng.randrange(3))]
    return f"{rng.choice(_FUNCTIONS)}({', '.join(arguments)})"


KINDS: dict[str, tuple[Callable[[random.Random, Samples, Path], list[Command]], float]] = {
    "Parquet parts": (parquet_case, 0.2),
    "manifests and control files": (manifest_case, 0.15),
    "configuration": (config_case, 0.15),
    "own rules": (rule_case, 0.05),
    "plans": (plan_case, 0.15),
    "loss curves": (curve_case, 0.1),
    "SQL": (sql_case, 0.2),
}
"""Kind → what makes one input of it, and its share of all inputs."""
