"""The only definition of what a run directory's Parquet files hold: tables, columns, types, meanings.

Types are plain words (`int64`, `float32`, `string`, `list<float32>` …), so that this module needs neither
pyarrow nor duckdb. The writer and the reader each translate them once.
"""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type, and one line that says what it means."""

    name: str
    type: str
    meaning: str
    unit: str = ""
    since: int = 1
    """Schema version that brought it: in older files it is missing, and NULL."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the run directory, stored as `<name>/rank=<R>/part-<NNNNNN>.parquet`."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names in storage order."""
        return tuple(column.name for column in self.columns)


RECORD_KEY = (
    Column("segment", "int32", "resume counter: 0 for the first start of the run"),
    Column("step", "int64", "optimizer step, from 0"),
    Column("microbatch", "int32", "micro-batch inside the step, from 0"),
    Column("call", "int32", "use of this layer inside the micro-batch, from 0"),
    Column("pass", "string", "forward | recompute | backward | eval"),
    Column("rank", "int32", "global rank of the process that observed it"),
    Column("layer", "string", "qualified module name without wrapper prefixes"),
    Column("tensor", "string", "x | w | dy | y | dx | dw; m | v: optimizer states of w; key | value: of an attention"),
    Column("seq", "int64", "order of observation on that rank; (segment, rank, seq) names one record"),
)

STEPS = Table(
    "steps",
    "one row a step and rank: what the training itself reported",
    (
        Column("segment", "int32", "resume counter"),
        Column("step", "int64", "optimizer step, from 0"),
        Column("rank", "int32", "global rank"),
        Column(
            "loss",
            "float64",
            "mean over the step's micro-batches (sum of a trainer's shares), loss scale divided out",
        ),
        Column("losses", "list<float64>", "the loss of each micro-batch, loss scale divided out"),
        Column("loss_source", "string", "backward: the tensor backward() was called on | log: given by session.log"),
        Column("grad_norm", "float64", "gradient norm before clipping, as the source saw it"),
        Column("grad_norm_source", "string", "clip_grad_norm_ | gradients: computed before optimizer.step | log"),
        Column("lr", "float64", "learning rate of the first parameter group"),
        Column("tokens", "int64", "tokens of the step, given by session.log"),
        Column("skipped", "bool", "true when the GradScaler skipped the optimizer step"),
        Column("n_microbatches", "int32", "micro-batches seen in the step"),
        Column("sampled", "bool", "true when errors and histograms were taken in this step"),
        Column("started_unix_s", "float64", "wall-clock start of the step", "s"),
        Column("duration_s", "float64", "time from this step's start to the next one's", "s"),
    ),
)

TENSORS = Table(
    "tensors",
    "one row a record: the health of one tensor at one pass",
    (
        *RECORD_KEY,
        Column("shape", "list<int64>", "shape as the GEMM's operand, local to the rank"),
        Column("dtype", "string", "dtype the hook saw; float8_*, float6_*, float4_*: codes that a GEMM read"),
        Column("gemm_dtype", "string", "dtype the GEMM consumed (differs under autocast)"),
        Column("placement", "string", "local | replicate | shard(dim) | partial; one a mesh dimension, comma between"),
        Column("shard", "string", "piece of the whole tensor that this rank holds, such as 1/4; NULL: all", since=2),
        Column("replica_of", "int32", "lowest rank with the same data; this rank where nobody else has them", since=2),
        Column("row_class", "string", "all | valid | padding: rows of tokens or of none, by session.mask"),
        Column("precision_asked", "string", "dtype that the GEMM was asked to run in; NULL when unknown", since=2),
        Column("sampled", "bool", "true when errors and a histogram were taken of this record"),
        Column(
            "status",
            "string",
            "ok | no_tokens | empty_shard | empty | payload_only | imported | why nothing could be measured",
        ),
        Column("n", "int64", "elements"),
        Column("n_zero", "int64", "elements equal to zero, of either sign"),
        Column("n_neg_zero", "int64", "those of n_zero with the sign bit set"),
        Column("n_nan", "int64", "NaN elements"),
        Column("n_posinf", "int64", "+Inf elements"),
        Column("n_neginf", "int64", "-Inf elements"),
        Column("n_rows_nonfinite", "int64", "rows (tokens, or output features of w) with any NaN or Inf"),
        Column("first_nonfinite_row", "int64", "index of the first such row, NULL when there is none"),
        Column("amin", "float32", "smallest non-zero magnitude of the finite elements"),
        Column("amax", "float32", "largest magnitude of the finite elements; 0: none is finite, NULL: no elements"),
        Column("approx", "string", "'bf16' when the histogram is of BF16-rounded FP32 values, else NULL"),
        Column("checksum", "uint64", "Fletcher-64 of the raw bytes before any rounding; sampled records only"),
        Column("rows", "string", "rows of the class, such as 100-127; NULL: all, or more than a few ranges", since=2),
    ),
)

SCALES = Table(
    "scales",
    "one row a record and stateful recipe: the scale in force when the record was taken",
    (
        *RECORD_KEY,
        Column("recipe", "string", "canonical recipe text, for example delayed:amax_history_len=16"),
        Column("fmt", "string", "element format, such as E4M3 or E5M2"),
        Column("alternate", "bool", "true where fmt is recorded beside the recipe's own (dy in E4M3 under HYBRID)"),
        Column("source", "string", "framework | simulated"),
        Column("scope", "string", "rank: the amax is this rank's alone | group"),
        Column("scale", "float32", "factor the tensor is multiplied with before the cast; NULL when unknown"),
        Column("scale_inv", "float32", "factor the codes are multiplied with after it"),
        Column("amax_used", "float32", "amax that determined the scale; NULL before the first"),
        Column("history_len", "int32", "window length of the amax history"),
        Column("history_zeros", "int32", "zeros in that window"),
        Column("n_rolls", "int64", "amaxes the history has consumed so far"),
        Column("ran", "bool", "whether the module ran between the last two rolls; NULL when simulated"),
        Column("set_at_step", "int64", "step whose roll set this scale; NULL for the initial scale"),
        Column("status", "string", "ok | warmup: before the first amax | history_incomplete | per_block: one a block"),
    ),
)

ERRORS = Table(
    "errors",
    "sampled: one row a record, recipe and format: sums over the finite elements, x original, q dequantised",
    (
        *RECORD_KEY,
        Column("recipe", "string", "canonical recipe text"),
        Column("fmt", "string", "element format, such as E4M3 or E5M2"),
        Column("alternate", "bool", "true where fmt is recorded beside the recipe's own (dy in E4M3 under HYBRID)"),
        Column("source", "string", "framework | simulated: whose scale | payload: q is what the framework's GEMM read"),
        Column("scale_scope", "string", "record | rank | group: whose amax the scale comes from"),
        Column("scale", "float32", "scale the sums belong to"),
        Column("n", "int64", "finite elements"),
        Column("n_nonzero", "int64", "finite elements other than zero"),
        Column("n_underflow", "int64", "x != 0 and q = 0"),
        Column("n_overflow", "int64", "x*scale rounds beyond the format's largest finite value"),
        Column("sum_x2", "float64", "sum of x^2"),
        Column("sum_q2", "float64", "sum of q^2"),
        Column("sum_xq", "float64", "sum of x*q"),
        Column("sum_err2", "float64", "sum of (x-q)^2"),
        Column("n_low", "int64", "number of the smallest 99 % of the non-zero values, floor(0.99*n_nonzero)"),
        Column("low_sum_x2", "float64", "sum of x^2 over those"),
        Column("low_sum_err2", "float64", "sum of (x-q)^2 over those"),
        Column("approx", "string", "'bf16' when the low_ sums come from BF16-rounded FP32 values, else NULL"),
    ),
)

HISTOGRAMS = Table(
    "histograms",
    "sampled: the distinct finite values of a record and how often each occurs; an exact summary of the tensor",
    (
        Column("segment", "int32", "resume counter; with rank and seq the record"),
        Column("rank", "int32", "global rank"),
        Column("seq", "int64", "record on that rank"),
        Column("counted", "string", "high: high-precision values | payload: values of codes, before scale_inv"),
        Column("value", "float32", "a distinct finite value (zeros included, -0 apart from +0)"),
        Column("count", "int64", "how many elements have it"),
    ),
)

BLOCKS = Table(
    "blocks",
    "sampled: one row a record, block recipe, format and GEMM: what the operand loses, sums as in errors; of a record "
    "of codes only the scales are known",
    (
        *RECORD_KEY,
        Column("recipe", "string", "canonical recipe text, for example mxfp8:scale_rule=floor"),
        Column("fmt", "string", "element format"),
        Column("alternate", "bool", "true where fmt is recorded beside the recipe's own"),
        Column("orientation", "string", "row: blocks along the last axis of the tensor | column: along the first"),
        Column("gemm", "string", "GEMM that reads the operand this way: fprop | dgrad | wgrad"),
        Column("sample", "string", "all | lines a:b,c:d: rows that were measured, or columns, as orientation says"),
        Column("n_total", "int64", "elements of the whole tensor; n of them are finite and were measured"),
        Column("n", "int64", "finite elements measured"),
        Column("n_nonzero", "int64", "those other than zero"),
        Column("n_underflow", "int64", "x != 0 and q = 0"),
        Column("n_overflow", "int64", "x*scale rounds beyond the format's largest finite value"),
        Column("sum_x2", "float64", "sum of x^2"),
        Column("sum_q2", "float64", "sum of q^2"),
        Column("sum_xq", "float64", "sum of x*q"),
        Column("sum_err2", "float64", "sum of (x-q)^2"),
        Column("n_blocks", "int64", "blocks measured"),
        Column("n_zero_blocks", "int64", "blocks that hold zeros alone"),
        Column("n_nonfinite_blocks", "int64", "blocks with a NaN or Inf: in no sum and no scale statistic"),
        Column("n_saturated_blocks", "int64", "blocks in which at least one element overflows"),
        Column("scale_min", "float32", "smallest scale of a block that is not all zero: the factor before the cast"),
        Column("scale_median", "float32", "median scale of those blocks"),
        Column("scale_max", "float32", "largest scale of those blocks"),
        Column("worst_block", "int64", "row-major index of the block with the lowest SQNR; NULL: no error anywhere"),
        Column("worst_block_sqnr_db", "float64", "its SQNR", "dB"),
        Column("approx", "string", "'bf16' when FP32 values were rounded first, else NULL"),
    ),
)

CHANNELS = Table(
    "channels",
    "sampled: one row a record, axis and measure: how channels are spread, counted in fixed bins that add up",
    (
        *RECORD_KEY,
        Column("axis", "string", "token | K | N: a channel is one index along it"),
        Column("measure", "string", "amax | sqnr_db | underflow"),
        Column("recipe", "string", "per-tensor recipe that sqnr_db and underflow belong to; NULL for amax"),
        Column("fmt", "string", "element format; NULL for amax"),
        Column("alternate", "bool", "true where fmt is recorded beside the recipe's own"),
        Column("scale", "float32", "the record's scale under that recipe; NULL for amax"),
        Column("sample", "string", "all | lines a:b,c:d of the tensor's first axis"),
        Column("n_channels", "int64", "channels seen"),
        Column("n_zero", "int64", "those that are all zero: in no bin"),
        Column("n_exact", "int64", "sqnr_db: channels without any error: in no bin"),
        Column("bins", "list<int32>", "amax: floor(4 log2 amax) | sqnr_db: floor(dB) | underflow: floor(percent)"),
        Column("counts", "list<int64>", "channels in each bin"),
        Column("worst_channel", "int64", "index: largest amax, lowest SQNR, highest underflow; NULL when no bin"),
        Column("worst_value", "float64", "its value, in the measure's unit (underflow: a share)"),
    ),
)

GEMMS = Table(
    "gemms",
    "sampled: one row a GEMM, recipe and accumulation: error of the result on a stated sample of rows and columns",
    (
        *RECORD_KEY,
        Column("gemm", "string", "fprop: y = x w | dgrad: dx = dy w | wgrad: dw = dy x"),
        Column("recipe", "string", "canonical recipe text"),
        Column("fmt", "string", "element format of the first operand: x in fprop, else dy"),
        Column("other_fmt", "string", "element format of the second: w in fprop and dgrad, x in wgrad"),
        Column("alternate", "bool", "true where fmt is recorded beside the recipe's own"),
        Column("accumulation", "string", "exact | hopper-fast | hopper-promoted"),
        Column("sample", "string", "rows a:b,c:d of M, columns e:f:g of N: what was computed of a result of M x N"),
        Column("n_rows", "int64", "rows of the result computed"),
        Column("n_columns", "int64", "columns of the result computed"),
        Column("depth", "int64", "length of the contraction"),
        Column("n", "int64", "results that are finite both ways"),
        Column("n_nonfinite", "int64", "results that are not: in no sum"),
        Column("sum_y2", "float64", "sum of y^2, y from the high-precision operands in float64"),
        Column("sum_q2", "float64", "sum of q^2, q from the quantised operands"),
        Column("sum_yq", "float64", "sum of y*q"),
        Column("sum_err2", "float64", "sum of (y-q)^2"),
        Column("sum_x2w2", "float64", "sum of (a*b)^2 over depth and results: a small y alone is no fault"),
    ),
)

WSAMPLE = Table(
    "wsample",
    "sampled: one row a weight that a GEMM read in low precision: the same fixed positions at every step",
    (
        *RECORD_KEY,
        Column("fmt", "string", "element format of the codes"),
        Column("stride", "int64", "positions 0, stride, 2*stride, ... of the flattened weight, local to the rank"),
        Column("values", "list<float32>", "the weight there, in high precision; NULL where there is only the payload"),
        Column(
            "codes",
            "list<float32>",
            "the values of the codes there, before scale_inv; with one scale a block, after it",
        ),
        Column("scale_inv", "float32", "factor that these are multiplied with: 1 with one scale a block"),
    ),
)

VALUES = Table(
    "values",
    "opt-in: raw tensors, one row a tensor row",
    (
        *RECORD_KEY,
        Column("row", "int64", "row of the tensor seen as (rows, last dimension)"),
        Column("values", "list<float32>", "the row's elements; every BF16, FP16 and FP8 value is exact in FP32"),
    ),
)

STATISTICS = Table(
    "statistics",
    "imported: one row a number that another tool has logged of a tensor, as it gave it; nothing is computed from it",
    (
        *RECORD_KEY,
        Column("recipe", "string", "kind of recipe in the number's name, such as delayed; NULL: it names none"),
        Column("fmt", "string", "element format, where the name leaves one alone; else NULL"),
        Column(
            "statistic",
            "string",
            "amax | min | max | mean | std | l1_norm | l2_norm | dynamic_range | max_blockwise_dynamic_range | "
            "underflow_all | overflow | mse | scale_inv_min | scale_inv_max | a word of the other tool's own",
        ),
        Column("value", "float64", "the number; underflow_all and overflow are shares, dynamic ranges are bits"),
        Column("at_floor", "bool", "true: printed as 0.0000, so known only to be closer to 0 than half a last digit"),
        Column("columnwise", "bool", "true: of the tensor as quantised for its use along columns"),
        Column("given_name", "string", "what the other tool calls the number"),
    ),
)

EVALS = Table(
    "evals",
    "one row a benchmark score that was given by session.log(eval={...})",
    (
        Column("segment", "int32", "resume counter"),
        Column("step", "int64", "optimizer step under way when it was given"),
        Column("rank", "int32", "global rank"),
        Column("unix_s", "float64", "wall-clock time", "s"),
        Column("task", "string", "name of the benchmark"),
        Column("score", "float64", "its score, in its own unit; higher is better"),
    ),
)

EVENTS = Table(
    "events",
    "everything that went wrong or is missing",
    (
        Column("segment", "int32", "resume counter"),
        Column("step", "int64", "step at which it was noticed; NULL outside the training"),
        Column("rank", "int32", "global rank"),
        Column("unix_s", "float64", "wall-clock time", "s"),
        Column("kind", "string", "one word: disabled | never_fired | unsupported | assumption | …"),
        Column("layer", "string", "layer it is about, or NULL"),
        Column("tensor", "string", "tensor it is about, or NULL"),
        Column("message", "string", "one sentence for a person"),
    ),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        *(STEPS, TENSORS, SCALES, ERRORS, HISTOGRAMS, WSAMPLE, BLOCKS, CHANNELS, GEMMS, VALUES),
        *(STATISTICS, EVALS, EVENTS),
    )
}
