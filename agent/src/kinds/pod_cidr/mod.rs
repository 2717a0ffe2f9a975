//! Another range for pods, on this host: read what lies in either range. Nothing is changed but addresses that are kept
//! for a while, which have a label, so that there is no journal.

pub mod facts;
pub mod keep;
pub mod observe;
