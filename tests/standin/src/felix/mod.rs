//! Felix's part: the tunnel, the routes and the packet filter of this node.

pub mod health;
mod kernel;
pub mod model;
mod settings;
mod watch;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use tracing::{debug, info};

use self::health::Health;
use self::kernel::{Kernel, Tunnel};
use self::model::{Desired, World};
use self::settings::Settings;
use self::watch::Cache;
use crate::datastore;
use crate::node::environment::Environment;

/// How Felix ends when its settings have changed: whoever runs it starts it again.
const CONFIGURATION_CHANGED: u8 = 129;
/// The real one needs 3.3 to 3.7 s from another tunnel address in the Node to the same on its device: it ends, starts and reads
/// everything (v3.31.7, measured). What others do in that time finds the device as it was.
const RESTART: Duration = Duration::from_secs(3);
/// Changes that come within this time are applied together.
const SETTLE: Duration = Duration::from_millis(50);

/// Runs until the settings change.
pub async fn run(environment: &Environment) -> Result<ExitCode> {
    let client = datastore::client(environment.kubeconfig().as_deref()).await?;
    let node = environment.node_name()?;
    let health = Health::new();
    let cache = Cache::start(&client, &node).await?;
    let settings = effective(&cache, &node);
    let vxlan = wants_vxlan(&cache, &settings);
    if settings.health_enabled() {
        health::serve(Arc::clone(&health), settings.health_address()?).await?;
    }
    let tunnel = Tunnel {
        vni: settings.vni()?,
        port: settings.port()?,
        mtu: settings.mtu()?,
    };
    info!(node, ?tunnel, vxlan, "in sync with the datastore");
    let mut kernel = Kernel::open(tunnel)?;
    let mut last = None;
    loop {
        let now = effective(&cache, &node);
        if now != settings {
            info!(
                changes = settings.differences(&now).join(", "),
                "the settings have changed: restarting with code {CONFIGURATION_CHANGED}"
            );
            if now.tunnel_address() != settings.tunnel_address() {
                tokio::time::sleep(RESTART).await;
            }
            return Ok(ExitCode::from(CONFIGURATION_CHANGED));
        }
        if wants_vxlan(&cache, &settings) != vxlan {
            info!("the pools' encapsulation has changed: restarting with code {CONFIGURATION_CHANGED}");
            return Ok(ExitCode::from(CONFIGURATION_CHANGED));
        }
        let desired = compute(&cache, &node, &settings)?;
        if last.as_ref() != Some(&desired) {
            info!(
                peers = ?model::hosts(&desired),
                routes = desired.routes.len(),
                pods = desired.pods.len(),
                "the desired state has changed"
            );
        }
        if kernel.apply(&desired).await.is_ok() {
            debug!("the kernel is as desired");
        }
        last = Some(desired);
        health.passed();
        if tokio::time::timeout(kernel::DEVICE_INTERVAL, cache.changed.notified())
            .await
            .is_ok()
        {
            tokio::time::sleep(SETTLE).await;
        }
    }
}

fn effective(cache: &Cache, name: &str) -> Settings {
    let objects = cache.configurations.state();
    let nodes = cache.nodes.state();
    let own = nodes.iter().find(|node| node.name_any() == name);
    let tunnel_address = own.and_then(|node| node.annotations().get(model::TUNNEL_ADDRESS));
    Settings::new(
        name,
        tunnel_address.map(String::as_str),
        objects.iter().map(AsRef::as_ref),
        std::env::vars(),
    )
}

fn wants_vxlan(cache: &Cache, settings: &Settings) -> bool {
    let pools = cache.pools.state();
    model::wants_vxlan(settings.vxlan_enabled(), pools.iter().map(|pool| &pool.spec))
}

fn compute(cache: &Cache, node: &str, settings: &Settings) -> Result<Desired> {
    let (nodes, blocks, pools, pods) = (
        cache.nodes.state(),
        cache.blocks.state(),
        cache.pools.state(),
        cache.pods.state(),
    );
    Ok(model::desired(&World {
        node,
        nodes: &nodes.iter().map(AsRef::as_ref).collect::<Vec<&Node>>(),
        blocks: &blocks
            .iter()
            .map(|block| &block.spec)
            .filter(|block| !block.deleted)
            .collect::<Vec<_>>(),
        pools: &pools.iter().map(|pool| &pool.spec).collect::<Vec<_>>(),
        pods: &pods.iter().map(AsRef::as_ref).collect::<Vec<&Pod>>(),
        vxlan_enabled: settings.vxlan_enabled(),
        port: settings.port()?,
    }))
}
