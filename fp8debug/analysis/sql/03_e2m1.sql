-- The E2M1 value nearest to x (FLOAT -> FLOAT): ties to even, saturating at 6, NaN stays NaN.
create or replace macro e2m1(x) as
    round_to(x::float, 4194305::float, 1::float, 6291456::float, 6::float);
