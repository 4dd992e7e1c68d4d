"""The rules, one `.sql` file each: what is looked for, what is said of it, and with which numbers.

Data only: `fp8debug.analysis.diagnosis` reads them. A file is named after its rule and holds

    -- One line that says what the rule finds.
    /*
    severity = "error"          # error | warning | watch | note
    sentence = "the scale is {scale_gap_bits:.1f} bits too large"
    …                           # TOML; every key is explained in `fp8debug.analysis.diagnosis.rule.Rule`
    */
    select …                    # one row for each place that the rule finds; `$name` is a parameter

The columns of the query are explained in `fp8debug.analysis.diagnosis.hits`.
"""
