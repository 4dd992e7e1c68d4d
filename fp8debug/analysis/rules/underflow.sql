-- Many values become zero, and the small values together keep less than rounding would leave them.
/*
severity = "error"
priority = 25
only_if = ["exists (from operands where level = 'hit' and is_persistent)"]
sentence = "under {recipe} {what}"
advice = "Scale too small: a shorter amax history or current scaling. Outliers set the scale: block scaling or MXFP8. Format too narrow: E5M2, or BF16 for this operand's GEMMs."
symptom = "the loss stalls above that of BF16; gradients or activations seem sparse"
why = """
Values below half of the format's smallest subnormal, after scaling, are read as zero. That happens when the scale is far too small for the
whole tensor (a stale amax, a frozen scale), or when a few outliers set the scale and everything else lies far below them; then the SQNR of
the whole tensor still looks perfect, since it is the SQNR of the outliers. So underflow is read together with the SQNR of the smallest 99 %
of the values, and with the median channel and token where channels were recorded: a tensor whose median channel and median token are intact
is not flagged, however much of it underflows. In a healthy tensor under 1 % of the non-zero values become zero; ten unused bits of scale
cost nothing in E4M3. True zeros (ReLU, padding) never count.
"""
explains = ["sqnr_low", "gain_off", "gemm_error"]
thresholds = ["underflow", "gap_bits", "sqnr_floor_e4m3", "sqnr_floor_e5m2", "min_steps", "min_steps_short", "short_run_steps", "min_share",
              "warmup_rolls", "min_nonzero"]

[[evidence]]
column = "underflow_percent"
title = "underflow, %"
healthy = "under 1"
format = ".3g"

[[evidence]]
column = "sqnr_low_db"
title = "SQNR of the smallest 99 %, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".1f"

[[evidence]]
column = "sqnr_db"
title = "SQNR, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".1f"

[[evidence]]
column = "scale_gap_bits"
title = "scale gap, bits"
healthy = "0"
format = "+.1f"

[[evidence]]
column = "median_channel_db"
title = "SQNR of the median channel, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".0f"

[parameters.outlier_db]
default = 3
meaning = "outliers set the scale when the SQNR of the smallest 99 % is more than this below that of the whole tensor"
source = "half of the signal"
unit = "dB"

[parameters.wasted_bits]
default = 6
meaning = "a scale is named as the cause when it is more bits below that of current scaling"
source = "fewer are free for bell shapes in E4M3, which has ten to spare"
unit = "bits"
*/
with typical as (
    select
        layer, tensor, recipe, fmt, min(sqnr_db) filter (axis = 'channel') as median_channel_db,
        count(*) filter (
            coalesce(sqnr_db >= sqnr_floor_db(fmt), true)
            and coalesce(underflow <= getvariable('underflow'), true)
        ) = case when tensor = 'w' then 1 else 2 end as is_intact  -- a weight has no tokens
    from typical_channels
    group by layer, tensor, recipe, fmt
)
select
    layer, tensor, recipe, first_step, last_step, n_hit_steps as n_steps, n_observed_steps, db_lost,
    100 * underflow as underflow_percent, sqnr_low_db, sqnr_db, healthy_sqnr_db, scale_gap_bits, median_channel_db,
    case
        when sqnr_db - sqnr_low_db > $outlier_db
        then format('outliers set the scale: the smallest 99 % of the values keep {:.1f} dB while the whole tensor '
                    || 'shows {:.1f}, and {} of them become zero', sqnr_low_db, sqnr_db, percent(underflow_low))
        when scale_gap_bits < -$wasted_bits
        then format('the scale is {:.1f} bits too small, so {} of the values become zero', -scale_gap_bits,
                    percent(underflow))
        else case
                when underflow > getvariable('underflow') or coalesce(worst_underflow, 0) <= underflow
                then format('{} of the non-zero values become zero', percent(underflow))
                else format('up to {} of the non-zero values become zero', percent(worst_underflow))
             end
             || coalesce(
                 case
                     when median_channel_db < sqnr_low_db
                     then format(', and the median channel keeps {:.0f} dB while the whole tensor shows {:.1f}',
                                 median_channel_db, sqnr_db)
                 end,
                 format(', and the smallest 99 % keep {:.1f} dB', sqnr_low_db),
                 ''
             )
    end as what
from told_candidates
left join typical using (layer, tensor, recipe, fmt)
where (list_contains(criteria, 'underflow')
       or (underflow > getvariable('underflow') and (list_contains(criteria, 'sqnr') or list_contains(criteria, 'gain'))
           and coalesce(scale_gap_bits < 0, true)))
  and not coalesce(is_intact, false);
