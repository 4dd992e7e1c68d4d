-- Whether hitting in so many of the observed steps is more than an accident.
-- Internal.
create or replace macro is_persistent(n_hit_steps, n_observed_steps) as
    n_hit_steps >= case
        when n_observed_steps < getvariable('short_run_steps') then getvariable('min_steps_short')
        else getvariable('min_steps')
    end
    and n_hit_steps >= getvariable('min_share') * n_observed_steps;
