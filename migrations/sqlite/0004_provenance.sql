-- What a part keeps of what it was written from, and from where each of its lines comes.
--
-- `origins` is a JSON array, one entry for each line of `text`: [first message, last message], or null
-- where a line says nothing. `retention` is a JSON object, kind -> [kept, total]. Parts that are older
-- have neither: empty. `asked` marks a reflection that somebody asked for: it is used with the next
-- request, whatever the size of the log.
ALTER TABLE parts ADD COLUMN origins TEXT NOT NULL DEFAULT '[]';
ALTER TABLE parts ADD COLUMN retention TEXT NOT NULL DEFAULT '{}';
ALTER TABLE parts ADD COLUMN asked INTEGER NOT NULL DEFAULT 0;

-- Whether somebody asked that everything confirmed be observed with the next request.
ALTER TABLE lineages ADD COLUMN observe_asked INTEGER NOT NULL DEFAULT 0;
