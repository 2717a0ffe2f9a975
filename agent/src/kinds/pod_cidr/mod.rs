//! New pod range on this host: observes both ranges. The only changes are addresses that are kept temporarily; their label
//! replaces a journal.

pub mod facts;
pub mod kept_addresses;
pub mod observe;
