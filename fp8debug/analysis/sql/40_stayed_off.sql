-- Whether one scale stayed over several steps, always far from the right one, while the tensor moved.
-- Internal.
create or replace macro stayed_off(n_steps, min_scale, max_scale, min_amax, max_amax, min_bits, max_bits) as
    n_steps > 1 and min_scale = max_scale and min_amax < max_amax
    and (min_bits > getvariable('gap_bits') or max_bits < -getvariable('gap_bits'));
