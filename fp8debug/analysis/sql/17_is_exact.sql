-- Whether quantisation changed nothing: then the SQNR has no number.
create or replace macro is_exact(sum_err2) as sum_err2 = 0;
