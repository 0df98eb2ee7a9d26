//! The way of one request.
