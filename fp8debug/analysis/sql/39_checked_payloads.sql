-- payload_checks of the passes that are judged.
-- Internal.
-- A table: computed once, when it is first named.
create or replace temp table checked_payloads as
select * from payload_checks where is_judged_pass(pass);
