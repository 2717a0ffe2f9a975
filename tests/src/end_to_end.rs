//! End-to-end cases: a real cluster, real traffic, and disturbances.

mod adopted;
mod back;
mod bundle;
mod calico_datastore;
mod calico_v2;
mod controller_manager;
mod coordinator;
mod crash;
pub mod datastore;
mod drift;
mod fair;
mod firewall;
mod gate;
mod guard;
mod in_place;
mod metrics;
mod migration_reader;
mod obstacles;
mod pod_cidr;
mod refusals;
mod scale;
mod service_cidr;
mod source_addresses;
mod storm;
mod strangers;

pub use back::back;
pub use calico_datastore::calico_datastore;
pub use calico_v2::calico_v2;
pub use crash::crash;
pub use fair::{fair, wide};
pub use gate::gate;
pub use in_place::in_place;
pub use migration_reader::MigrationReader;
pub use pod_cidr::{pod_cidr, pod_cidr_etcd};
pub use refusals::refusals;
pub use scale::scale;
pub use service_cidr::service_cidr;
pub use storm::storm;
pub use strangers::{stranger_services, strangers};

use std::fmt::Display;

use anyhow::Result;

/// The results of cases.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of cases that passed.
    pub passed: usize,
    /// Names of the cases that failed.
    pub failed: Vec<String>,
}

impl Tally {
    /// Counts a case, and prints its result.
    pub fn count<T>(&mut self, name: impl Display, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => {
                println!("ok      {name}");
                self.passed += 1;
                Some(value)
            }
            Err(error) => {
                println!("FAILED  {name}: {error:#}");
                self.failed.push(name.to_string());
                None
            }
        }
    }

    /// Adds the cases of another tally.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
    }
}
