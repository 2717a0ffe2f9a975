//! Conversion of Calico's datastore from v2 to v3: [`calico_datastore`] decides, this crate reads and writes.
//!
//! 1. [`access`] reads the connection settings: from flags, files and the environment, with Calico's names.
//! 2. [`etcd2`] and [`etcd3`] are the clients of the two stores. Both use HTTP ([`http`]), the second the JSON gateway.
//! 3. [`stores`] combines both stores.
//! 4. [`lock`] admits one process at a time, [`backup`] saves the data before a change, [`run`] performs the steps.

pub mod access;
pub mod backup;
pub mod error;
pub mod etcd2;
pub mod etcd3;
pub mod http;
pub mod lock;
pub mod run;
pub mod stores;
