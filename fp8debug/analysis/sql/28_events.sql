-- Everything that went wrong or is missing, files that could not be read included.
create or replace view events as
select * from stored.events
union all by name
select 'bad_file' as kind, message from stored.bad_files;
