-- The E5M2 value nearest to x (FLOAT -> FLOAT): ties to even, saturating at 57344, NaN stays NaN.
create or replace macro e5m2(x) as
    round_to(x::float, 2097153::float, 0.00006103515625::float, 192::float, 57344::float);
