//! Composition: builds every room from a valid configuration and hands out what they share.
