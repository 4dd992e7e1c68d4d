-- Relative L2 error; NULL for an all-zero tensor.
create or replace macro rel_l2(sum_x2, sum_err2) as sqrt(ratio(sum_err2, sum_x2));
