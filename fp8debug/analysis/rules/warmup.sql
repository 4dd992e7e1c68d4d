-- Simulated delayed scales that looked wrong while their history was still filling: labelled, not judged.
/*
severity = "note"
confidence = "not_enough_evidence"
priority = 80
only_if = ["exists (from stored.scales where source = 'simulated' and n_rolls < getvariable('warmup_rolls'))"]
sentence = "the first {n_steps} steps of {recipe} were off by up to {worst_bits:.1f} bits while the history was still filling; they are not judged"
advice = "Nothing to do: simulated delayed scaling starts with an empty history, as a new training does."
symptom = "the first steps under delayed scaling look bad"
why = """
Delayed scaling starts at scale 1 and with an empty history. Until a few amaxes are in it, the scale can be far off for a tensor that still settles,
in a healthy training too. Simulated scales are therefore not judged before their history has consumed as many amaxes as the threshold `warmup_rolls` says. It is noted where scales were
more than a bit too large in several of these steps; scales that the framework itself recorded are judged from their first amax on.
"""
thresholds = ["warmup_rolls", "gap_bits", "min_steps_short"]

[[evidence]]
column = "worst_bits"
title = "largest scale gap, bits"
healthy = "0"
format = "+.1f"
*/
with early as (
    select segment, rank, seq, step, layer, tensor, recipe, fmt, scale
    from scales
    where source = 'simulated' and status = 'ok' and not alternate and n_rolls < getvariable('warmup_rolls')
      and is_judged_pass(pass)
)
select
    layer, tensor, recipe, min(e.step) as first_step, max(e.step) as last_step, count(distinct e.step) as n_steps,
    max(gap_bits(e.scale, t.amax, e.fmt)) as worst_bits, 'more than ' || getvariable('warmup_rolls')::int
    || ' micro-batches a run' as needs, 'warmup' as cause
from early as e
join (select segment, rank, seq, amax, n - coalesce(n_zero, 0) as n_nonzero from tensors) as t using (segment, rank, seq)
where gap_bits(e.scale, t.amax, e.fmt) > getvariable('gap_bits') and t.n_nonzero >= getvariable('min_nonzero')
group by layer, tensor, recipe
having count(distinct e.step) >= getvariable('min_steps_short');
