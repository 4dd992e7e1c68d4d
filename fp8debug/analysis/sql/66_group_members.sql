-- The records of each reduction group; those that are merged with nothing have no id; redundant replicas are in none.
-- Internal.
create or replace temp table group_members (segment integer, rank integer, seq bigint, id bigint);
