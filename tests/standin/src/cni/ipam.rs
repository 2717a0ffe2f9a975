//! The IPAM plugin.

use std::collections::BTreeMap;
use std::fs::File;

use anyhow::{Context, Result};
use kube::Client;
use tracing::{info, warn};

use super::answer::Answer;
use super::config::Call;
use crate::ipam::block::Owner;
use crate::ipam::{Ipam, Use, names};

/// Assigns an address to the pod.
pub async fn add(call: &Call, client: &Client) -> Result<Answer> {
    call.config.refuse_ipv6()?;
    let node = call.config.node_name()?;
    let _lock = lock(call);
    let ipam = Ipam::new(client, &node);
    let owner = Owner {
        handle: call.handle(),
        attributes: BTreeMap::from([
            ("node".to_owned(), node.clone()),
            ("pod".to_owned(), call.pod.clone()),
            ("namespace".to_owned(), call.namespace.clone()),
            ("timestamp".to_owned(), jiff::Timestamp::now().to_string()),
        ]),
    };
    let address = match &call.address {
        Some(wanted) => {
            let wanted = wanted
                .parse()
                .with_context(|| format!("parse the requested address {wanted:?}"))?;
            ipam.assign(wanted, &owner).await?;
            wanted.into()
        }
        None => {
            ipam.assign_any(&owner, Use::Workload, &call.config.ipam.ipv4_pools)
                .await?
        }
    };
    info!(%address, handle = owner.handle, "assigned an address");
    Ok(Answer {
        address,
        devices: None,
    })
}

/// Releases the addresses of the sandbox, and those of the pod in the form of the oldest Calico.
pub async fn delete(call: &Call, client: &Client) -> Result<()> {
    let node = call.config.node_name()?;
    let _lock = lock(call);
    let ipam = Ipam::new(client, &node);
    let handle = call.handle();
    let count = ipam.release(&handle).await?;
    if count == 0 {
        warn!(
            handle,
            "requested to release an address, but there is none: ignoring"
        );
    } else {
        info!(handle, count, "released");
    }
    ipam.release(&names::pod_handle(&call.namespace, &call.pod))
        .await?;
    Ok(())
}

/// Lets one plugin at a time run on this node. Without the lock the plugin continues: the API resolves conflicts in any case.
fn lock(call: &Call) -> Option<File> {
    let path = call.config.lock_file();
    let open = || -> std::io::Result<File> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)?;
        file.lock()?;
        Ok(file)
    };
    open()
        .inspect_err(|error| warn!("lock {}: {error}; continuing without", path.display()))
        .ok()
}
