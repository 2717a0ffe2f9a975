//! The parts of `calico-node` with etcd.

use std::process::ExitCode;

use anyhow::{Result, bail};
use tracing::info;

use super::{bird, felix, of_environment, startup, tunnel_address};
use crate::node::environment::Environment;
use crate::version::{Generation, Played};

/// Permanent parts, each restarted when it ends. The last belongs to a later release, which may be started by this program.
pub fn staying(environment: &Environment, generation: Generation) -> Vec<&'static str> {
    let mut parts = vec!["-felix"];
    if !["none", "vxlan"].contains(&environment.backend()) {
        parts.push("-bird");
    }
    if generation == Generation::V3 {
        parts.push("-allocate-tunnel-addrs");
    }
    parts
}

/// Runs one part.
pub async fn run(
    part: &str,
    once: bool,
    environment: &Environment,
    played: &Played,
    generation: Generation,
) -> Result<ExitCode> {
    let kind = environment.get("DATASTORE_TYPE");
    if let Some(kind) = kind.filter(|kind| !["etcdv2", "etcdv3"].contains(kind)) {
        bail!(
            "DATASTORE_TYPE is {kind:?}: the stand-in plays {} only with etcd",
            played.version
        );
    }
    let store = of_environment(environment, generation).await?;
    match part {
        "startup" => startup::run(environment, &store, played).await?,
        "felix" => return felix::run(environment, &store).await,
        "bird" => return bird::run(environment, &store).await,
        "allocate-tunnel-addrs" if generation == Generation::V3 => {
            if once {
                tunnel_address::allocate(&store, &environment.node_name()?).await?;
            } else {
                info!("v3.8 checks the tunnel's address only at its start");
                std::future::pending::<()>().await;
            }
        }
        _ => info!("nothing to do for {part}"),
    }
    Ok(ExitCode::SUCCESS)
}
