//! Decisions about memory: selection, advance, rendering, prompts and parsing. Pure.
