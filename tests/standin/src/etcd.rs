//! Earlier Calico with etcd: v2.6 on etcd's v2 store, v3.8 on its v3 store, as far as a conversion from one to the
//! other depends on it.
//!
//! 1. [`store`] is one of etcd's stores, guarded by versions; [`keys`] has the keys, [`resource`] the form of objects in v3.
//! 2. [`flag`] is the switch that pauses all of it. [`felix`] and the plugins obey it, [`startup`], [`bird`] and
//!    [`controllers`] do not, like Calico's.
//! 3. [`world`] is the input of Felix; [`tunnel_address`] gives a node with VXLAN the address of its tunnel.
//! 4. [`ipam`] with [`block`] assigns addresses, [`endpoint`] stores their holders, [`network`] and [`address`] are the
//!    plugins.

pub mod address;
pub mod bird;
pub mod block;
mod choice;
mod client2;
pub mod controllers;
pub mod endpoint;
pub mod felix;
pub mod flag;
mod identifier;
pub mod install;
pub mod ipam;
pub mod keys;
#[cfg(test)]
mod memory;
pub mod network;
pub mod node;
mod policies;
pub mod pools;
pub mod profiles;
mod release;
pub mod resource;
pub mod startup;
mod startup2;
mod startup3;
pub mod status;
pub mod store;
mod tunnel_address;
mod world;

use anyhow::Result;
use datastore::access::{PartialAccess, Pem, Side};

use self::store::Store;
use crate::cni::config::Etcd;
use crate::node::environment::Environment;
use crate::version::Generation;

/// The store that a manifest's environment names: `ETCD_ENDPOINTS` and others, the same names in both generations.
pub async fn of_environment(environment: &Environment, generation: Generation) -> Result<Store> {
    Store::connect(
        generation,
        PartialAccess::of_environment(Side::V3, &environment.variables()),
    )
    .await
}

/// The store that a conflist names.
pub async fn of_conflist(etcd: &Etcd, generation: Generation) -> Result<Store> {
    let file = |path: &str| (!path.is_empty()).then(|| Pem::from(path));
    let said = PartialAccess {
        endpoints: etcd.endpoints(),
        authority: file(&etcd.authority),
        certificate: file(&etcd.certificate),
        key: file(&etcd.key),
        ..PartialAccess::default()
    };
    Store::connect(generation, said).await
}
