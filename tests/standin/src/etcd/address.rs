//! The plugin `calico-ipam` with etcd. The plugin never reads the flag: its caller has read it.

use anyhow::{Context, Result};
use ipnet::Ipv4Net;
use tracing::{info, warn};

use super::ipam::{self, Ipam};
use super::store::Store;
use crate::cni::answer::Answer;
use crate::cni::config::Call;
use crate::ipam::names;

/// Assigns an address to the pod.
pub async fn add(call: &Call, store: &Store) -> Result<Answer> {
    call.config.refuse_ipv6()?;
    let host = call.config.node_name()?;
    let owner = ipam::owner(store.generation, call.handle(), &host, &call.namespace, &call.pod);
    let ipam = Ipam::new(store, &host);
    let address = match &call.address {
        Some(wanted) => {
            let wanted = wanted
                .parse()
                .with_context(|| format!("parse the requested address {wanted:?}"))?;
            ipam.assign(wanted, &owner).await?;
            wanted
        }
        None => ipam.assign_any(&owner, &call.config.ipam.ipv4_pools).await?,
    };
    info!(%address, handle = owner.handle, "assigned an address");
    Ok(Answer {
        address: Ipv4Net::from(address),
        devices: None,
    })
}

/// Releases the addresses of the sandbox, and those of the pod in the form of the oldest Calico. The handle is the
/// same in v2 and v3: v3 releases addresses that v2 has assigned.
pub async fn delete(call: &Call, store: &Store) -> Result<()> {
    let host = call.config.node_name()?;
    let ipam = Ipam::new(store, &host);
    let handle = call.handle();
    let count = ipam.release(&handle).await?;
    if count == 0 {
        warn!(handle, "Asked to release address but it doesn't exist. Ignoring");
    } else {
        info!(handle, count, "released");
    }
    ipam.release(&names::pod_handle(&call.namespace, &call.pod))
        .await?;
    Ok(())
}
