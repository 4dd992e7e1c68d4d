-- Whether a record is of codes as a GEMM in low precision read them, by its dtype.
-- Internal.
create or replace macro is_payload(dtype) as
    coalesce(dtype similar to 'float[468]_.+', false);
