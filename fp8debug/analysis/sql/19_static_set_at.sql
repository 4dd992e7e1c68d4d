-- Step at which a static scale was determined, as its recipe says; NULL for other recipes.
-- Internal.
create or replace macro static_set_at(recipe) as
    case
        when split_part(recipe, ':', 1) = 'static'
        then coalesce(try_cast(nullif(regexp_extract(recipe, 'set_at_step=(\d+)', 1), '') as bigint), 0)
    end;
