-- How often in a row a job was claimed without being given back or finished: its process died, or a fault in
-- the program ended its work. Such a job is claimed a bounded number of times.
ALTER TABLE jobs ADD COLUMN unsettled INTEGER NOT NULL DEFAULT 0;
