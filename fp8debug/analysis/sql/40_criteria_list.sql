-- Names of the criteria met, as a list.
-- Internal.
create or replace macro criteria_list(by_gap, by_underflow, by_overflow, by_gain, by_sqnr) as
    list_filter(
        [
            case when by_gap then 'gap' end, case when by_underflow then 'underflow' end,
            case when by_overflow then 'overflow' end, case when by_gain then 'gain' end,
            case when by_sqnr then 'sqnr' end
        ],
        lambda criterion: criterion is not null
    );
