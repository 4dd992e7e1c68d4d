-- The payloads of the run and the formats of their codes.
select segment, rank, seq, payload_fmt(dtype) as fmt
from records
where is_payload(dtype) and coalesce(row_class, 'all') = 'all'
