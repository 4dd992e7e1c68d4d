-- Factor by which the values come back: 1 is right, 0.5 or 8 names a scale bug; NULL for an all-zero tensor.
create or replace macro gain(sum_xq, sum_x2) as ratio(sum_xq, sum_x2);
