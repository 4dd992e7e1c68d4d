-- A record is whole in its partition, so its sums are too.
from partials
