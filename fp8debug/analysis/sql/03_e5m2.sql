-- The E5M2 value nearest to x (FLOAT -> FLOAT): ties to even, saturating at 57344, NaN stays NaN.
create or replace macro e5m2(x) as
    round_to(
        x::float::double, 1125899906842625.0::double, 0.00006103515625::double, 103079215104.0::double, 57344.0::double
    )::float;
