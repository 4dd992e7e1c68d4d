-- One row a record under recipes that scale each record, one a group under those with one scale for the group.
create or replace view layer_records as
select
    recipe, fmt, alternate, layer, tensor, source, step, sqnr_db, sqnr_low_db, rel_l2, cosine, gain, underflow,
    overflow, scale_gap_bits, amin, amax, scale, current_scale, exact, db_lost, healthy_sqnr_db
from error_ratios
where is_judged_pass(pass) and scale_scope <> 'group'
union all by name
select
    recipe, fmt, alternate, layer, tensor, source, step, sqnr_db, sqnr_low_db, rel_l2, cosine, gain, underflow,
    overflow, scale_gap_bits, amin, amax, scale, current_scale, exact, db_lost, healthy_sqnr_db
from merged_error_ratios
where is_judged_pass(pass) and scale_scope = 'group';
