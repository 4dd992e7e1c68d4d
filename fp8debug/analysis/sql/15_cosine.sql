-- Cosine between the tensor and what is left of it; NULL when either is all zero. Blind to a wrong scale: see gain.
create or replace macro cosine(sum_xq, sum_x2, sum_q2) as ratio(sum_xq, sqrt(sum_x2 * sum_q2));
