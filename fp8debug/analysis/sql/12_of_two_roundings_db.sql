-- SQNR, dB, of a product whose two factors have these SQNRs, when their roundings are independent.
-- Internal.
create or replace macro of_two_roundings_db(sqnr_db, other_sqnr_db) as
    decibel(1, power(10, -0.1 * sqnr_db) + power(10, -0.1 * other_sqnr_db));
