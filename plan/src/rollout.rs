//! Which nodes may be in work at the same time.
