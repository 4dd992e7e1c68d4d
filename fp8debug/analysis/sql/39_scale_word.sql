-- What the scale of a tensor is called in a sentence.
-- Internal.
create or replace macro scale_word(tensor) as
    case when tensor in ('dy', 'dx', 'dw') then 'backward' when tensor = 'w' then 'weight' else 'forward' end;
