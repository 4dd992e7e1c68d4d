-- A delayed scale that the framework left as it was, although the amaxes recorded since then give another one.
/*
severity = "error"
confidence = "certain"
priority = 12
only_if = ["exists (from stored.scales where source = 'framework')", "exists (from doubtful_scales)"]
sentence = "{what}"
advice = "Find out why this amax is not reduced: under activation checkpointing, a recompute outside the FP8 context leaves gradient amaxes out; update the framework, or use current scaling."
symptom = "training in FP8 is unstable with activation checkpointing; gradients seem to vanish"
why = """
Under delayed scaling the framework keeps the last amaxes of each operand and recomputes the scale from them. This rule recomputes it from the
amaxes that were recorded, as the recipe says (window, algorithm, margin), and compares. A scale is right if the largest or the last amax, of
micro-batches or of steps, on this rank or over ranks, gives it to 2 %. A scale that merely stays the same is healthy as long as the largest amax
of the window does; a frozen one stays while the window says otherwise. A gradient that seems to vanish under a frozen scale of 1 has not
vanished: it was never scaled. Steps whose window was not recorded whole prove nothing unless the scale is too large for what was seen.
"""
explains = ["clipping", "clipping_spike", "underflow", "sqnr_low", "gain_off", "gemm_error", "stale_scale", "format_choice"]
thresholds = ["min_steps", "min_steps_short", "short_run_steps", "min_share"]

[[evidence]]
column = "min_scale"
title = "scale in force"
healthy = "{expected:.4g}"

[[evidence]]
column = "worst_gap_bits"
title = "scale gap, bits"
healthy = "0"
format = "+.1f"

[[evidence]]
column = "underflow_percent"
title = "underflow, %"
healthy = "under 1"
format = ".3g"

[[evidence]]
column = "sqnr_db"
title = "SQNR, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".1f"
*/
with lost as (
    select
        layer, tensor, recipe, fmt, median(sqnr_db) as sqnr_db, 100 * max(underflow) as underflow_percent,
        median(db_lost) as db_lost, any_value(healthy_sqnr_db) as healthy_sqnr_db
    from sampled_evidence
    where source = 'framework' and not alternate and (layer, tensor) in (select (layer, tensor) from scale_checks)
    group by layer, tensor, recipe, fmt
)
select
    layer, tensor, recipe, rank, since_step as first_step, last_step, n_off_steps as n_steps,
    n_steps as n_observed_steps, min_scale, expected, worst_gap_bits, underflow_percent, sqnr_db, healthy_sqnr_db,
    coalesce(db_lost, case when underflow_percent >= 99.5 then healthy_sqnr_db end) as db_lost,
    format('{} scale frozen at {} since step {}', scale_word(tensor), number_text(min_scale), since_step)
    || case
        when history_is_zero
        then format('; the amax history holds nothing but zeros although amaxes up to {:.3g} were seen', max_amax)
        else ''
    end
    || format('; the recorded amaxes give {:.3g}', expected) as what,
    case when is_certain then 'certain' else 'likely' end as confidence,
    format('{} since {}', scale_word(tensor), since_step) as cause
from scale_checks
left join lost using (layer, tensor, recipe, fmt)
where is_frozen and is_persistent(n_off_steps, n_steps);
