-- What else a request was sent with, beside its snapshot and placement.
--
-- `asked_usage`: whether its stream was asked for usage on the client's behalf; NULL where that was
-- not Diarist's to say. `trimmed_to`: the message up to which its oldest raw rounds were left out,
-- because it did not fit the model; `trim_pin`: the one of them that stood raw all the same;
-- `trim_wording`: in which words it was noted.
ALTER TABLE requests ADD COLUMN asked_usage INTEGER CHECK (asked_usage IN (0, 1));
ALTER TABLE requests ADD COLUMN trimmed_to INTEGER CHECK (trimmed_to > 0);
ALTER TABLE requests ADD COLUMN trim_pin INTEGER CHECK (trim_pin < trimmed_to);
ALTER TABLE requests ADD COLUMN trim_wording INTEGER CHECK ((trimmed_to IS NULL) = (trim_wording IS NULL));
