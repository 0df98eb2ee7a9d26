//! Token counts: an exact tokenizer behind a guard, and an estimate.
