-- Whether a pass counts in rules and summaries: training passes once; in a run that serves, evaluation passes too.
-- Internal.
create or replace macro is_judged_pass(pass) as
    pass in ('forward', 'backward') or (pass = 'eval' and coalesce(getvariable('is_inference'), false));
