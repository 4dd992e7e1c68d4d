-- The scales that the framework itself recorded, beside the amax of their tensor, in training passes.
-- Internal.
-- amax: as scaling kernels see it: infinite where the tensor has an infinity, 0 for an empty one
create or replace view framework_scales as
select
    * replace (
        case
            when gap_status = 'amax_nonfinite' then 'inf'::float
            when coalesce(n_nonzero, 0) = 0 then 0::float
            else amax
        end as amax
    )
from scale_gaps
where source = 'framework' and not alternate and is_judged_pass(pass);
