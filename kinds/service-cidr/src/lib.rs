//! A change of the Service CIDR of a cluster: all Services change their addresses without lost requests, `kubernetes` and DNS
//! first.

pub mod addresses;
pub mod checks;
pub mod class;
pub mod covers;
pub mod decide;
pub mod detect;
pub mod document;
pub mod endpoints;
pub mod entry;
pub mod facts;
pub mod host;
pub mod line;
pub mod mentions;
pub mod objects;
pub mod outline;
pub mod ranges;
pub mod settings;
pub mod side;
pub mod step;
pub mod subjects;
pub mod swap;
#[cfg(test)]
mod walk;
