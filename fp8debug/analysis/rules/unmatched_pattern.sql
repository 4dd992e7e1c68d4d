-- A pattern for layers that matches none of them, so that what it was to spare was not spared.
/*
severity = "warning"
confidence = "certain"
priority = 32
only_if = ["exists (from stored.events where kind = 'unmatched_exclude')"]
sentence = "{message}"
advice = "Correct the pattern: names are told without prefixes such as module. or _orig_mod.; the nearest ones stand beside it."
symptom = "first and last layer run in FP8 although they were to be left out"
why = """
A filter that matches nothing is no filter. Layers that were to stay in BF16, as the first and the last one often are, then run in FP8, and \
nothing fails. Patterns are matched with the names that fp8debug tells, without what wrappers put before them. Where all patterns match \
nothing, the capture is refused; where some do, it is told here: as an error for layers that were to stay in high precision, and as a warning \
for those that were only not to be recorded.
"""
problems = ["unmatched_exclude"]
*/
select
    message, min(step) as first_step, 'pattern ' || message as cause,
    case when message like '--keep-bf16%' then 'error' end as severity
from events
where kind = 'unmatched_exclude'
group by message
