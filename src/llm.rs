//! Calls to the models that observe and reflect. Never on the request path.
