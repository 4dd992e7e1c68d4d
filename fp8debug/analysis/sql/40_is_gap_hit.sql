-- Whether a scale is more bits above that of current scaling than allowed.
-- Internal.
create or replace macro is_gap_hit(scale_gap_bits) as
    coalesce(scale_gap_bits > getvariable('gap_bits'), false);
