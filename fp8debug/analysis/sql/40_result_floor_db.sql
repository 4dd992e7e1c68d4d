-- SQNR against its products, dB, that the result of a GEMM has at worst when its operands are rounded independently.
-- Internal.
create or replace macro result_floor_db(fmt, other_fmt) as
    decibel(1, power(10, -0.1 * sqnr_floor_db(fmt)) + power(10, -0.1 * sqnr_floor_db(other_fmt)));
