-- amax as scaling kernels see it: infinite where the tensor has an infinity, NaN elements dropped.
create or replace macro kernel_amax(amax, n_posinf, n_neginf) as
    case when coalesce(n_posinf, 0) + coalesce(n_neginf, 0) > 0 then 'inf'::float else amax::float end;
