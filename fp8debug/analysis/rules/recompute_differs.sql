-- Activation checkpointing computed a forward again, and got another one.
/*
severity = "warning"
confidence = "certain"
priority = 31
only_if = ["exists (from stored.events where kind = 'recompute_differs')"]
sentence = "{message}"
advice = "Keep the random state in checkpointing (preserve_rng_state=True), and look for state that the first forward changes: caches, statistics, FP8 scales."
symptom = "gradients are noisy or wrong with activation checkpointing, and right without it"
why = """
Activation checkpointing throws activations away and computes them once more in the backward. The gradients are only those of the loss if the \
second forward is the first one, bit for bit. Dropout with another random state, a layer that updates something on each call, or an FP8 scale \
that has moved in between make it another one. The raw bytes of x are compared by checksum in sampled steps.
"""
problems = ["recompute_differs"]
*/
select layer, any_value(tensor) as tensor, min(step) as first_step, max(step) as last_step, arg_min(message, step) as message,
    'recompute' as cause
from events
where kind = 'recompute_differs'
group by layer
