-- A delayed scale of the framework that moves, but does not follow from the amaxes recorded before it.
/*
severity = "error"
confidence = "certain"
priority = 14
only_if = ["exists (from stored.scales where source = 'framework')", "exists (from doubtful_scales)"]
sentence = "{what}"
advice = "Compare how the framework computes the scale with the recipe in its configuration: format maximum, margin, window, and which ranks its amaxes are reduced over."
symptom = "FP8 loses more than it should in all layers alike"
why = """
The scale is recomputed from the recorded amaxes exactly as for `frozen_scale`. Here it moves, and is still none of those that the recipe
could give. One ratio everywhere is one cause: another format's maximum, a margin that is applied twice or not at all, an amax of
another tensor; it is told once, with the number of operands. A ratio that changes from step to step is a scale that belongs to other steps or
other tensors. A scale less than a factor of two off costs little and is a warning.
"""
explains = ["clipping", "clipping_spike", "underflow", "sqnr_low", "gain_off", "gemm_error", "format_choice"]
thresholds = ["min_steps", "min_steps_short", "short_run_steps", "min_share"]

[[evidence]]
column = "off_ratio"
title = "recorded scale / recomputed scale"
healthy = "1"
format = ".4g"

[[evidence]]
column = "worst_gap_bits"
title = "scale gap, bits"
healthy = "0"
format = "+.1f"

[parameters.harmful_bits]
default = 0.9
meaning = "a warning where the scale is off by less than this"
source = "a factor of two, less the tolerance of the comparison"
unit = "bits"
*/
select
    layer, tensor, recipe, rank, first_step, last_step, n_off_steps as n_steps, n_steps as n_observed_steps,
    off_ratio, worst_gap_bits,
    case
        when history_is_zero
        then format('{} scale is not that of its amaxes: the amax history holds nothing but zeros although amaxes up '
                    || 'to {:.3g} were seen', scale_word(tensor), max_amax)
        when is_one_ratio
        then format('{} scale is {:.3g} times the one that the recorded amaxes give, in {}',
                    scale_word(tensor), off_ratio,
                    case when n_off_steps = n_steps then 'every step'
                        else format('{} of {} steps', n_off_steps, n_steps) end)
        else format('{} scale does not follow from the recorded amaxes: {:.3g} to {:.3g} times the one that they give',
                    scale_word(tensor), min_ratio, max_ratio)
    end as what,
    case when is_certain then 'certain' else 'likely' end as confidence,
    case when greatest(abs(log2(min_ratio)), abs(log2(max_ratio))) < $harmful_bits then 'warning' end as severity,
    case when is_one_ratio then format('ratio {:.2g}', off_ratio) end as cause
from scale_checks
where not is_frozen and is_persistent(n_off_steps, n_steps);
