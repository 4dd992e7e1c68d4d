-- Whether the result of a GEMM is farther off than rounding of its operands can make it, cancelling or adding up.
-- Internal.
-- Against the products a small result alone is no fault. But where many products are alike, as in the wgrad of an
-- output layer, so are their roundings: errors add up as the result does, and against the result they are as large as
-- both operands' relative errors together. Only what is below both bounds is more than rounding.
create or replace macro is_result_hit(product_sqnr_db, sqnr_db, fmt, other_fmt) as
    coalesce(
        product_sqnr_db < result_floor_db(fmt, other_fmt)
        and coalesce(
            sqnr_db < -20 * log10(power(10, -0.05 * sqnr_floor_db(fmt)) + power(10, -0.05 * sqnr_floor_db(other_fmt))),
            true
        ),
        false
    );
