-- Every record, payloads and row classes included; tensors has those that stand for the whole operand.
-- Internal.
create or replace view records as
select * from stored.tensors semi join last_segments using (step, segment);
