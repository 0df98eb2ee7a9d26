//! Durable memory behind domain verbs. SQL lives here and nowhere else.
