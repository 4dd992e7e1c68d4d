-- SQNR against its products, dB, that the result of a GEMM has at worst when its operands are rounded independently.
-- Internal.
create or replace macro result_floor_db(fmt, other_fmt) as
    of_two_roundings_db(sqnr_floor_db(fmt), sqnr_floor_db(other_fmt));
