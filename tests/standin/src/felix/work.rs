//! The main loop of Felix: the kernel follows the datastore, until a setting changes that Felix reads only at its start.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use tracing::{debug, info};

use super::kernel::{Kernel, Tunnel};
use super::model::{self, Demand, Desired, World};
use super::settings::Settings;

/// Exit code of Felix after a change of its settings: the supervisor restarts it.
const CONFIGURATION_CHANGED: u8 = 129;
/// The real Felix needs 3.3 to 3.7 s from a new tunnel address in the Node to the same address on its device: it
/// ends, starts and reads everything (v3.31.7, measured). Meanwhile the device keeps its old address.
const RESTART: Duration = Duration::from_secs(3);

/// A started Felix.
pub struct Work {
    node: String,
    settings: Settings,
    vxlan: bool,
    kernel: Kernel,
    last: Option<Desired>,
}

impl Work {
    /// Starts with these settings.
    pub fn begin(node: &str, settings: Settings, world: &World) -> Result<Self> {
        let vxlan = model::wants_vxlan(settings.vxlan_enabled(), &world.pools);
        let tunnel = Tunnel {
            vni: settings.vni()?,
            port: settings.port()?,
            mtu: settings.mtu()?,
        };
        info!(node, ?tunnel, vxlan, "in sync with the datastore");
        Ok(Self {
            node: node.to_owned(),
            settings,
            vxlan,
            kernel: Kernel::open(tunnel)?,
            last: None,
        })
    }

    /// Adjusts the kernel; returns the exit code if Felix must restart.
    pub async fn pass(&mut self, settings: &Settings, world: &World) -> Result<Option<ExitCode>> {
        if *settings != self.settings {
            info!(
                changes = self.settings.differences(settings).join(", "),
                "the settings have changed: restarting with code {CONFIGURATION_CHANGED}"
            );
            if settings.tunnel_address() != self.settings.tunnel_address() {
                tokio::time::sleep(RESTART).await;
            }
            return Ok(Some(ExitCode::from(CONFIGURATION_CHANGED)));
        }
        let demand = Demand {
            vxlan: settings.vxlan_enabled(),
            port: settings.port()?,
        };
        if model::wants_vxlan(demand.vxlan, &world.pools) != self.vxlan {
            info!("the pools' encapsulation has changed: restarting with code {CONFIGURATION_CHANGED}");
            return Ok(Some(ExitCode::from(CONFIGURATION_CHANGED)));
        }
        let desired = model::desired(&self.node, world, demand);
        if self.last.as_ref() != Some(&desired) {
            info!(
                peers = ?model::hosts(&desired),
                routes = desired.routes.len(),
                pods = desired.pods.len(),
                "the desired state has changed"
            );
        }
        if self.kernel.apply(&desired).await.is_ok() {
            debug!("the kernel has the desired state");
        }
        self.last = Some(desired);
        Ok(None)
    }
}
