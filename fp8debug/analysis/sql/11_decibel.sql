-- 10 log10(signal/noise) in dB; NULL when either is 0 or not finite.
create or replace macro decibel(signal, noise) as
    case when ratio(signal, noise) > 0 then 10 * log10(ratio(signal, noise)) end;
