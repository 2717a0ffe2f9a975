//! A change of the Service CIDR of a cluster: all Services change their addresses without lost requests, `kubernetes` and DNS
//! first.

pub mod addresses;
pub mod api;
pub mod assignment;
pub mod checks;
pub mod class;
pub mod covers;
pub mod decide;
pub mod detect;
pub mod document;
pub mod endpoints;
pub mod entry;
pub mod exchange;
pub mod facts;
pub mod host;
mod host_report;
pub mod mentions;
pub mod movers;
pub mod objects;
pub mod outline;
pub mod queue;
mod range_name;
pub mod ranges;
pub mod settings;
pub mod side;
pub mod step;
#[cfg(test)]
mod walk;
