-- Every record that meets a criterion of the candidate rule, and which: sqnr, gain, gap, underflow.
-- criteria: the criteria met
-- series: sampled: error sums were taken | gap: only the scale gap is known
create or replace view hits as
with hitting as (
    select * from evidence where hit_sqnr or hit_gain or hit_gap or hit_underflow
)
select
    segment, step, microbatch, call, pass, rank, layer, tensor, seq, recipe, fmt, alternate, source, series,
    criteria_list(hit_gap, hit_underflow, false, hit_gain, hit_sqnr) as criteria,
    sqnr_db, sqnr_low_db, gain, underflow, underflow_low, overflow, scale_gap_bits, scale, amax,
    healthy_sqnr_db, db_lost
from hitting
where series = 'sampled'
   or (segment, rank, seq, recipe, fmt) not in (select (segment, rank, seq, recipe, fmt) from stored.errors);
