//! What was said, without its wire format: fingerprints, links, chains and safe cuts. Pure leaf.
