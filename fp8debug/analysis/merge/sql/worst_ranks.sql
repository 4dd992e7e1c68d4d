-- On which ranks an operand meets a criterion, in words: a fault of one rank is no fault of all.
create or replace view worst_ranks as
with by_rank as (
    select
        recipe, fmt, layer, tensor, rank, bool_or(hit_sqnr or hit_gain or hit_gap or hit_underflow) as is_hit,
        min(sqnr_db) as sqnr_db, max(db_lost) as db_lost, max(scale_gap_bits) as scale_gap_bits
    from evidence
    where not alternate and rank is not null
    group by recipe, fmt, layer, tensor, rank
),
operand as (
    select
        recipe, fmt, layer, tensor, count(*) as n_ranks, count(*) filter (is_hit) as n_hit,
        arg_max(rank, (is_hit, coalesce(db_lost, -1), coalesce(scale_gap_bits, -1e9), -rank)) as worst,
        min(sqnr_db) as worst_sqnr_db, max(sqnr_db) as best_sqnr_db
    from by_rank
    group by recipe, fmt, layer, tensor
)
select
    recipe, fmt, layer, tensor,
    concat(
        case
            when n_hit = 1 then format('on rank {} alone of {}', worst, n_ranks)
            when n_hit between 2 and n_ranks - 1
            then format('on {} of {} ranks, worst on rank {}', n_hit, n_ranks, worst)
            else format('worst on rank {} of {}', worst, n_ranks)
        end,
        case
            when best_sqnr_db - worst_sqnr_db > 1
            then format(' (SQNR down to {:.1f} dB, on another {:.1f})', worst_sqnr_db, best_sqnr_db)
        end
    ) as ranks
from operand
where n_ranks > 1;
