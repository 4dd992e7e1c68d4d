-- Records with a NaN or an Inf that the training used: not the gradients of a step that a scaler skipped.
-- Internal.
-- A table: computed once, when it is first named.
-- n_inf: infinite elements of either sign
-- is_codes: whether the record is of codes in low precision
create or replace temp table nonfinite_records as
select
    segment, step, microbatch, call, pass, rank, layer, tensor, seq, n, coalesce(n_nan, 0) as n_nan,
    coalesce(n_posinf, 0) + coalesce(n_neginf, 0) as n_inf, n_rows_nonfinite, first_nonfinite_row,
    is_payload(dtype) as is_codes
from records
where (n_nan > 0 or n_posinf > 0 or n_neginf > 0)
  and coalesce(row_class, 'all') = 'all'
  and (pass <> 'eval' or is_judged_pass(pass))
  and not (
      tensor in ('dy', 'dx', 'dw')
      and (segment, step) in (select (segment, step) from stored.steps where skipped)
  );
