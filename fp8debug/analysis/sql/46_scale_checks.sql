-- Each delayed scale of the framework against the one that follows from the amaxes recorded before it, by operand.
-- Internal.
-- A table: computed once, when it is first named.
-- A scale is right if any of these gives it to 2 %: the largest or the last amax, of as many micro-batches or steps as
-- the window holds, on the rank or over ranks. A window that reaches beyond what was recorded may hold a larger amax,
-- so that there only a scale too large is wrong.
-- n_steps: steps that could be judged
-- n_off_steps: steps in which no such amax gives the scale
-- n_lost_steps: steps whose scale follows from the last micro-batch of each step alone
-- n_kept_steps: steps whose scale follows from another micro-batch
-- off_ratio: median of recorded scale / recomputed scale over the steps that are off
-- is_one_ratio: whether all steps have that ratio
-- is_frozen: whether the scale is the same in all of them and should not be
-- since_step: first step under that scale
-- expected: median of the recomputed scale
-- history_is_zero: the history held nothing but zeros in all of them, although an amax had been taken before
-- is_certain: whether the whole window is known
create or replace temp table scale_checks as
with passes as (
    select
        id, group_id, step, microbatch, min(seq) as seq, max(amax) as amax, bool_or(amax is null) as is_unknown,
        arg_min(scale, seq) as scale, max(scale_gap_bits) as scale_gap_bits,
        arg_min(history_zeros, seq) as history_zeros, arg_min(s.history_len, seq) as history_len,
        arg_min(gap_status, seq) as gap_status, arg_min(n_rolls, seq) as n_rolls
    from framework_scales as s
    join framework_operands using (segment, rank, layer, tensor, recipe, fmt)
    where group_id in (select group_id from doubtful_scales)
    group by id, group_id, step, microbatch
),
over_ranks as (
    select group_id, step, microbatch, max(amax) as group_amax
    from passes
    where group_id in (select group_id from framework_operands group by group_id having count(*) > 1)
    group by group_id, step, microbatch
),
linked as (
    select
        passes.*, coalesce(group_amax, amax) as group_amax,
        coalesce(not (
            lag(is_unknown) over operand = false and (
                (step = lag(step) over operand and microbatch = lag(microbatch) over operand + 1)
                or (step = lag(step) over operand + 1 and microbatch = 0)
            )
        ), true) as starts
    from passes
    left join over_ranks using (group_id, step, microbatch)
    window operand as (partition by id order by step, microbatch)
),
pieces as (
    select
        linked.* exclude (starts, history_len), coalesce(linked.history_len, o.history_len)::bigint as window_len,
        linked.history_len, o.top, o.is_most_recent, o.segment,
        sum(starts::int) over (partition by id order by step, microbatch) as piece
    from linked
    join framework_operands as o using (id)
),
rolled as (
    select
        *, row_number() over in_order - 1 as n_before, min(step) over whole_piece as piece_step,
        max(microbatch) over whole_piece > 0 as has_microbatches,
        max(amax) over window_before as window_amax, lag(amax) over in_order as last_amax,
        max(group_amax) over window_before as group_window_amax, lag(group_amax) over in_order as group_last_amax
    from pieces
    where amax > 0
    window
        whole_piece as (
            partition by id, piece order by step, microbatch
            rows between unbounded preceding and unbounded following
        ),
        in_order as (partition by id, piece order by step, microbatch),
        window_before as (
            partition by id, piece order by step, microbatch rows between window_len preceding and 1 preceding
        )
),
whole_steps as (
    select
        id, piece, step, any_value(window_len) as window_len, max(group_amax) as this_amax,
        arg_max(group_amax, microbatch) as this_last_amax
    from rolled
    where has_microbatches
    group by id, piece, step
),
by_step as (
    select
        *, max(this_amax) over window_before as step_window_amax, lag(this_amax) over in_order as step_last_amax,
        max(this_last_amax) over window_before as lost_window_amax, lag(this_last_amax) over in_order as lost_last_amax,
        count(*) over (
            partition by id, piece order by step rows between unbounded preceding and unbounded following
        ) = 1 as is_only_step
    from whole_steps
    window
        in_order as (partition by id, piece order by step),
        window_before as (partition by id, piece order by step rows between window_len preceding and 1 preceding)
),
compared as (
    select
        r.*, s.lost_window_amax, r.top / r.scale as implied_amax,
        case when is_most_recent then coalesce(s.step_last_amax, r.group_last_amax)
        else greatest(r.group_window_amax, s.step_window_amax) end as expected_amax,
        n_before >= r.window_len or coalesce(n_rolls, history_len - history_zeros, r.window_len) <= n_before
        as is_whole,
        -- A scale of 1 is the one before the first amax; no amax is the format's maximum.
        scale = 1 as is_initial,
        coalesce(
            case when history_len > 1 then history_zeros >= history_len - (n_rolls = 0)::int end, gap_status = 'warmup'
        ) and step > piece_step as is_zero,
        is_near(implied_amax, window_amax, group_window_amax) as is_window,
        is_near(implied_amax, last_amax, group_last_amax) as is_last,
        is_near(implied_amax, step_window_amax, step_window_amax) as is_step_window,
        is_near(implied_amax, step_last_amax, step_last_amax) as is_step_last,
        is_near(implied_amax, lost_last_amax, lost_last_amax) as is_lost_last,
        is_near(implied_amax, lost_window_amax, lost_window_amax) as is_lost_window,
        is_window or is_last or is_step_window or is_step_last
        or (scale = power(2, floor(log2(scale))) and implied_amax between expected_amax and 2 * expected_amax)
        as follows,
        case when is_most_recent then is_lost_last and not is_last and not is_step_last
        else (is_lost_window or is_lost_last) and not is_window and not is_step_window end
        or (coalesce(is_only_step, false) and is_near(implied_amax, this_last_amax, this_last_amax)
            and 2 * implied_amax < this_amax) as is_lost
    from rolled as r
    left join by_step as s using (id, piece, step)
    where n_before > 0 and isfinite(group_window_amax) and scale > 0 and isfinite(scale)
),
judged as (
    select
        *,
        is_zero or (
            not follows and (is_whole or is_initial or is_most_recent or implied_amax < expected_amax)
        ) as is_off
    from compared
    where gap_status = 'ok' or is_zero
),
summed as (
    select
        id, count(distinct step) as n_steps, count(distinct step) filter (is_off) as n_off_steps,
        count(distinct step) filter (is_lost) as n_lost_steps,
        count(distinct step) filter (follows and not is_lost_window and not is_lost_last) as n_kept_steps,
        min(step) filter (is_off) as first_step, max(step) filter (is_off) as last_step,
        min(step) filter (is_lost) as first_lost_step, max(step) filter (is_lost) as last_lost_step,
        median(expected_amax / implied_amax) filter (is_off) as off_ratio,
        min(expected_amax / implied_amax) filter (is_off) as min_ratio,
        max(expected_amax / implied_amax) filter (is_off) as max_ratio,
        min(scale) filter (is_off) as min_scale, max(scale) filter (is_off) as max_scale,
        median(top / expected_amax) filter (is_off) as expected,
        min(amax) filter (is_off) as min_amax, max(amax) filter (is_off) as max_amax,
        coalesce(bool_and(is_zero) filter (is_off), false) as history_is_zero,
        bool_and(is_whole or is_zero or implied_amax < expected_amax) filter (is_off) as is_certain,
        arg_max(scale_gap_bits, abs(scale_gap_bits)) filter (is_off) as worst_gap_bits
    from judged
    where id in (select id from judged where is_off or is_lost)
    group by id
)
select
    o.* exclude (id, top, history_len), c.*, c.max_ratio <= 1.02 * c.min_ratio as is_one_ratio,
    c.min_scale = c.max_scale and c.n_off_steps > 1
    and (c.max_ratio > 1.02 * c.min_ratio or c.history_is_zero or c.min_scale = 1) as is_frozen,
    (select min(p.step) from passes as p where p.id = c.id and p.scale = c.min_scale) as since_step
from summed as c
join framework_operands as o using (id);
