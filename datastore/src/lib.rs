//! Calico's datastore, from v2 to v3, as it is carried out: [`calico_datastore`] decides, this reads and writes.
//!
//! 1. [`access`] says how a store is reached: by flags, or by the names that Calico uses in files and environments.
//! 2. [`etcd2`] and [`etcd3`] are the two stores. Both speak HTTP ([`http`]), the second by its JSON gateway.
//! 3. [`stores`] is both of them, as Calico uses them.
//! 4. [`lock`] lets one at a time work on them, [`backup`] keeps what was there, [`run`] goes step by step.

pub mod access;
pub mod backup;
pub mod error;
pub mod etcd2;
pub mod etcd3;
pub mod http;
pub mod lock;
pub mod run;
pub mod stores;
