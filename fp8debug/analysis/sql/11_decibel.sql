-- 10 log10(signal/noise) in dB; NULL when either is 0 or not finite.
create or replace macro decibel(signal, noise) as
    case when noise > 0 and signal / noise > 0 and isfinite(signal / noise) then 10 * log10(signal / noise) end;
