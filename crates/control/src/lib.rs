//! Authenticated, ordered, framed connections between our own processes.
