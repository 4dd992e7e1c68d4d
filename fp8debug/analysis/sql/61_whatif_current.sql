-- What current scaling in format fmt would do to every histogram, with this margin in bits.
create or replace macro whatif_current(fmt, margin := 0) as table
from whatif(fmt, scale_of := current_scale(kernel_amax(amax, n_posinf, n_neginf), fmt) / power(2, margin)::float);
