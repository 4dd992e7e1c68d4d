-- Whether a scale and a cast to fmt are all that a recipe does to a value, so that its scale says everything.
-- Internal.
create or replace macro is_plain_cast(recipe, fmt) as
    fmt_max(fmt) is not null and split_part(recipe, ':', 1) not in ('bf16', 'coat');
