-- Why an operand is listed, in words, with the healthy value beside each number.
-- Internal.
create or replace macro reason(
    tensor, by_gap, by_underflow, by_gain, by_sqnr, scale_gap_bits, underflow, underflow_low, overflow, gain, sqnr_db,
    sqnr_low_db, healthy_sqnr_db, scale_is_frozen, min_scale
) as
    concat_ws(
        '; ',
        case
            when by_gap and scale_gap_bits > 0
            then format('the scale is {:.1f} bits too large (healthy 0)', scale_gap_bits)
                || coalesce(format(', so {} of the values are clipped', percent(overflow)), '')
            when by_underflow and sqnr_db - sqnr_low_db > 3
            then format('the largest 1 % of values set the scale; the other 99 % keep {:.1f} dB (healthy {:.1f}), '
                        || '{} of them become zero', sqnr_low_db, healthy_sqnr_db, percent(underflow_low))
            when scale_gap_bits < -getvariable('gap_bits') and underflow > getvariable('underflow')
            then format('the scale is {:.1f} bits too small (healthy 0), so {} of the values become zero',
                        -scale_gap_bits, percent(underflow))
            when underflow > getvariable('underflow')
            then format('{} of the non-zero values become zero (healthy: under 1 %)', percent(underflow))
        end,
        case
            when by_gain and abs(gain) > 0.005
            then format('values come back multiplied by {:.3g} (healthy 1)', gain)
        end,
        case
            when sqnr_db - sqnr_low_db > 3 and not by_sqnr
            then format('the whole tensor still shows SQNR {:.1f} dB', sqnr_db)
            when sqnr_db is not null then format('SQNR {:.1f} dB (healthy {:.1f})', sqnr_db, healthy_sqnr_db)
        end,
        case when scale_is_frozen then format('the scale stayed at {:.4g} while the tensor changed', min_scale) end,
        case
            when tensor = 'w' and abs(scale_gap_bits) > getvariable('gap_bits')
            then 'the amax history disagrees with the weight'
        end
    );
