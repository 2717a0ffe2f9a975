//! Detection of settings.
