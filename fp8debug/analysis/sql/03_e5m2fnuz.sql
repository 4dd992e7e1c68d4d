-- The E5M2FNUZ value nearest to x (FLOAT -> FLOAT): ties to even, saturating at 57344, NaN stays NaN.
create or replace macro e5m2fnuz(x) as
    round_to(x::float, 2097153::float, 0.000030517578125::float, 96::float, 57344::float);
