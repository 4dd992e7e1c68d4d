"""A `Snapshot` from the newest files of a run: five questions about its last steps."""

from __future__ import annotations

import time
from datetime import datetime

from fp8debug.analysis.catalog import script_of
from fp8debug.analysis.live.records import LiveEvent, LiveOperand, LiveStep, NonFinite, Snapshot
from fp8debug.analysis.live.tail import Tail
from fp8debug.analysis.liveness import Liveness
from fp8debug.rundir import Manifest, flush_interval_s

LAST_STEPS = 240
"""Steps whose loss is read."""
NONFINITE_STEPS = 100
"""Steps that are searched for NaN and Inf."""
MOST_EVENTS = 8
_LEAST_LATE_S = 10.0

_NOW = """
select max(segment), max(step) filter (segment = (select max(segment) from stored.steps)) from stored.steps
"""

# A step that an earlier segment wrote too counts as the last one has it, as in the view `steps`.
_STEPS = """
select
    step, avg(loss), avg(grad_norm), any_value(lr), bool_or(sampled), coalesce(bool_or(skipped), false),
    max(duration_s), max(started_unix_s + duration_s)
from stored.steps
where step between $last - $most + 1 and $last
group by step, segment
qualify segment = max(segment) over (partition by step)
order by step
"""

_SAMPLED = "select max(step) from stored.errors where segment = $segment and step <= $last"

# The conditions of the view `sampled_evidence`, on what this rank recorded.
_OPERANDS = """
with at_step as (
    select * from stored.tensors where segment = $segment and step = $step and coalesce(row_class, 'all') = 'all'
),
scale as (select * from stored.scales where segment = $segment and step = $step),
measured as (
    select
        e.layer, e.tensor, e.recipe, e.fmt,
        ratio(e.n_underflow, e.n_nonzero) as underflow,
        ratio(e.n_overflow, e.n) as overflow,
        sqnr_db(e.sum_x2, e.sum_err2) as sqnr_all_db,
        sqnr_db(e.low_sum_x2, e.low_sum_err2) as sqnr_low_db,
        gain(e.sum_xq, e.sum_x2) as gain,
        case
            when coalesce(s.status, 'ok') = 'ok'
            then gap_bits(e.scale, kernel_amax(t.amax, t.n_posinf, t.n_neginf), e.fmt)
        end as scale_gap_bits
    from stored.errors as e
    join at_step as t using (segment, rank, seq)
    left join scale as s on (s.segment, s.rank, s.seq, s.recipe, s.fmt) = (e.segment, e.rank, e.seq, e.recipe, e.fmt)
    where e.segment = $segment and e.step = $step and e.source <> 'payload' and not e.alternate
      and is_judged_pass(e.pass)
      and baseline_db(e.fmt) is not null
      and e.n_nonzero >= getvariable('min_nonzero')
      and not coalesce(s.source = 'simulated' and s.n_rolls < getvariable('warmup_rolls'), false)
),
judged as (
    select
        *, least(sqnr_all_db, sqnr_low_db) as sqnr_db,
        case
            when is_sqnr_hit(sqnr_all_db, fmt) or is_gain_hit(gain, fmt) or is_gap_hit(scale_gap_bits)
                or is_underflow_hit(underflow, sqnr_low_db, null, fmt) then 2
            when sqnr_all_db < baseline_db(fmt) - getvariable('watch_sqnr_loss_db')
                or scale_gap_bits > getvariable('watch_gap_bits')
                or underflow > getvariable('watch_underflow') or overflow > getvariable('watch_overflow') then 1
            else 0
        end as level
    from measured
),
worst as (
    select
        layer, tensor, recipe, fmt, max(level) as level, max(underflow) as underflow, max(overflow) as overflow,
        min(sqnr_db) as sqnr_db, arg_max(gain, abs(gain - 1)) as gain, max(scale_gap_bits) as scale_gap_bits,
        baseline_db(fmt) - min(sqnr_db) as db_lost
    from judged
    group by layer, tensor, recipe, fmt
),
one_each as (
    select *
    from worst
    qualify row_number() over (
        partition by layer, tensor order by level desc, db_lost desc nulls last, underflow desc nulls last, recipe
    ) = 1
)
select
    layer, tensor, recipe, fmt, ['fine', 'watch', 'hit'][level + 1], underflow, overflow, sqnr_db, gain,
    scale_gap_bits, count(*) filter (level = 2) over (), count(*) over ()
from one_each
order by level desc, db_lost desc nulls last, underflow desc nulls last, layer, tensor
limit $top
"""

# The conditions of the view `scale_gaps` and of the rules that read it.
_GAPS = """
with gap as (
    select s.layer, s.tensor, s.recipe, s.fmt, gap_bits(s.scale, t.amax, s.fmt) as scale_gap_bits
    from stored.scales as s
    join stored.tensors as t using (segment, step, rank, seq)
    where segment = $segment and step = $step and coalesce(t.row_class, 'all') = 'all' and not s.alternate
      and s.status = 'ok' and is_judged_pass(s.pass) and coalesce(t.n_posinf, 0) + coalesce(t.n_neginf, 0) = 0
      and coalesce(t.n - t.n_zero, t.n) >= getvariable('min_nonzero')
      and not (s.source = 'simulated' and s.n_rolls < getvariable('warmup_rolls'))
)
select layer, tensor, arg_max(recipe, scale_gap_bits), arg_max(fmt, scale_gap_bits), max(scale_gap_bits)
from gap
where scale_gap_bits > 0
group by layer, tensor
order by max(scale_gap_bits) desc, layer, tensor
limit $top
"""

# The conditions of the view `nonfinite_records`.
_NONFINITE = """
select
    layer, tensor, min(step), max(step), sum(coalesce(n_nan, 0))::bigint,
    sum(coalesce(n_posinf, 0) + coalesce(n_neginf, 0))::bigint, count(*) over ()
from stored.tensors
where step > $last - $most and (n_nan > 0 or n_posinf > 0 or n_neginf > 0) and coalesce(row_class, 'all') = 'all'
  and segment = $segment and (pass <> 'eval' or is_judged_pass(pass))
  and not (tensor in ('dy', 'dx', 'dw') and (segment, step) in (select (segment, step) from stored.steps where skipped))
group by layer, tensor
order by min((step, seq)), layer, tensor
limit $top
"""

_EVENTS = """
select
    kind, message, min(step), max(step),
    case when count(distinct layer) = 1 then any_value(layer) end,
    case when count(distinct tensor) = 1 then any_value(tensor) end,
    count(*), max(unix_s)
from stored.events
group by kind, message
order by max(unix_s) desc, kind, message
limit $most
"""


def take_snapshot(tail: Tail, manifest: Manifest, alive: Liveness, top: int) -> Snapshot:
    """Read what is known now; call it inside `tail.look()`.

    Args:
        tail: the newest files of the run.
        manifest: what `run.json` says now.
        alive: whether somebody writes it.
        top: entries of each list.
    """
    now = time.time()
    segment, last = tail.sql(_NOW)[0]
    steps = _steps(tail, last)
    at = {"segment": segment or 0, "last": -1 if last is None else last}
    sampled = None if last is None else tail.sql(_SAMPLED, **at)[0][0]
    worst = tail.sql(_OPERANDS, segment=at["segment"], step=sampled, top=top) if sampled is not None else []
    gaps = tail.sql(_GAPS, segment=segment, step=last, top=top) if last is not None else []
    nonfinite = tail.sql(_NONFINITE, **at, most=NONFINITE_STEPS, top=top)
    return Snapshot(
        path=str(tail.run.path),
        script=script_of(manifest),
        created_at=manifest.created_at,
        status=alive.status,
        status_reason=manifest.status_reason,
        dead_ranks=alive.dead_ranks,
        n_segments=max(1, len(manifest.segments)),
        n_ranks=max(manifest.world_size, tail.n_ranks),
        n_ranks_read=tail.n_ranks_read,
        now_unix_s=now,
        late_after_s=_late_after_s(now - _began_unix_s(manifest, now), steps),
        holds_back=bool(manifest.options.get("trigger")),
        steps=steps,
        sampled_step=sampled,
        worst=tuple(LiveOperand(*row[:10]) for row in worst),
        n_hits=worst[0][10] if worst else 0,
        n_judged=worst[0][11] if worst else 0,
        gaps=tuple(
            LiveOperand(layer, tensor, recipe, fmt, "fine", None, None, None, None, gap)
            for layer, tensor, recipe, fmt, gap in gaps
        ),
        nonfinite=tuple(NonFinite(*row[:6]) for row in nonfinite),
        n_nonfinite=nonfinite[0][6] if nonfinite else 0,
        events=tuple(LiveEvent(*row) for row in reversed(tail.sql(_EVENTS, most=MOST_EVENTS))),
        problems=tail.problems,
    )


def _steps(tail: Tail, last: int | None) -> tuple[LiveStep, ...]:
    if last is None:
        return ()
    return tuple(LiveStep(*row) for row in tail.sql(_STEPS, last=last, most=LAST_STEPS))


def _late_after_s(elapsed_s: float, steps: tuple[LiveStep, ...]) -> float:
    """Three times what may pass between two flushes: one falls due at the end of a step."""
    longest_s = max((step.duration_s for step in steps if step.duration_s is not None), default=0.0)
    return max(_LEAST_LATE_S, 3 * (flush_interval_s(elapsed_s) + longest_s))


def _began_unix_s(manifest: Manifest, now: float) -> float:
    """When the process began that writes now."""
    started = manifest.segments[-1].get("started_at") if manifest.segments else None
    try:
        return datetime.fromisoformat(started or manifest.created_at).timestamp()
    except (ValueError, TypeError):
        return now
