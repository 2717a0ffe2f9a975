//! Another range for pods, on this host: read what lies in either range. Nothing is changed, so that there is no journal.

pub mod facts;
pub mod observe;
