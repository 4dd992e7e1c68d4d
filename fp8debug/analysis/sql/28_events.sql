-- Everything that went wrong or is missing, files that could not be read and ranks without records included.
create or replace view events as
select * from stored.events
union all by name
select rank, step, 'rank_missing' as kind, message from stored.rank_notes
union all by name
select 'bad_file' as kind, message from stored.bad_files;
