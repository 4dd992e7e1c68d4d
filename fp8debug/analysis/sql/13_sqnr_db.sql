-- Signal to quantisation noise, dB; NULL for an all-zero tensor and when there is no error at all (see is_exact).
create or replace macro sqnr_db(sum_x2, sum_err2) as decibel(sum_x2, sum_err2);
