-- Lower edge of a bin of the table channels, in the measure's unit.
-- Internal.
create or replace macro bin_edge(measure, bin) as
    case measure when 'amax' then power(2, bin / 4) when 'sqnr_db' then bin when 'underflow' then bin / 100 end;
