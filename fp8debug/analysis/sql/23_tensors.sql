-- One row a record: the health of one tensor at one pass, in high precision and over all its rows.
-- What the framework's GEMMs read in low precision is in payloads, valid and padding rows apart are in row_classes.
create or replace view tensors as
select * from records where coalesce(row_class, 'all') = 'all' and not is_payload(dtype);
