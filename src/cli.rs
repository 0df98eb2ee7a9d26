//! The command line: parse, run, exit code.
