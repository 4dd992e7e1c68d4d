-- A record is whole in its partition.
from partials
