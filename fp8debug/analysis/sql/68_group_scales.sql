-- One row a pass, delayed recipe and format of a run of several ranks: the scale that all ranks of the group share.
-- It is replayed from the largest amax over the ranks that recorded the layer and tensor, one replica a shard. With one
-- rank there is no group: see scale_gaps.
-- recipe: canonical recipe text, for example delayed:amax_history_len=16
-- fmt: element format, such as E4M3 or E5M2
-- alternate: true where fmt is recorded beside the recipe's own (dy in E4M3 under HYBRID)
-- n_shards: distinct pieces in the group
-- amax: largest magnitude over the group as scaling kernels see it; NULL where that of a piece is missing
-- amax_rank: the rank that has it
-- scale: delayed scale of the group; NULL when unknown
-- current_scale: scale that current scaling would give the whole group
-- scale_gap_bits: log2(scale / current_scale): > 0 clips, < 0 wastes range
-- amax_used: amax that determined the scale; NULL before the first
-- history_len: window length of the amax history
-- history_zeros: zeros in that window
-- n_rolls: amaxes the history has consumed so far
-- set_at_step: step whose roll set this scale; NULL for the initial scale
-- status: ok | warmup: before the first amax | history_incomplete: an amax of some rank is missing
create or replace view group_scales as
select
    segment, step, microbatch, call, pass, layer, tensor, recipe, fmt, alternate, n_shards, amax,
    p.rank as amax_rank, scale, current_scale(amax, fmt) as current_scale,
    case when status = 'ok' and amax > 0 and isfinite(amax) then gap_bits(scale, amax, fmt) end as scale_gap_bits,
    amax_used, history_len, history_zeros, n_rolls, set_at_step, status
from group_replay
join group_passes as p using (id)
semi join last_segments using (step, segment);
