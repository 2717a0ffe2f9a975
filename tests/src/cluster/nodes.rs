//! Creates nodes, switches them off and on, and removes them while the cluster runs.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;

use super::authority::Authority;
use super::node::{self, IMAGES, NodeConfig};
use super::state::{CONTROL_PLANE, Machine};
use super::wait::{Observation, until};
use super::{Cluster, Images, images, machines, network};

/// Time limit to import all images on a busy machine with two cores, one node beside others.
const IMPORT_LIMIT: Duration = Duration::from_mins(3);
const CONTAINERD_LIMIT: Duration = Duration::from_mins(1);

impl Cluster {
    /// Creates a node and starts its kubelet; does not wait until the node is Ready (see [`super::ClusterApi::nodes_ready`]).
    pub async fn node_add(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let address = {
            let mut state = self.state.lock().await;
            if state.machines.contains_key(name) {
                bail!("machine {name} exists already");
            }
            let address = state
                .free_address()
                .context("every address of the lab's subnet is in use")?;
            // Written before the machine is created.
            state
                .machines
                .insert(name.to_owned(), Machine { address, on: true });
            state.write(&self.directory)?;
            address
        };
        self.node_prepare(name, address).await?;
        self.node_start_with_images(name, address).await?;
        self.node_start_kubelet(name, address).await
    }

    /// Powers a node off. Its disk stays.
    pub async fn node_power_off(&self, name: &str) -> Result<()> {
        self.node_address(name).await?;
        self.set_on(name, false).await?;
        machines::power_off(&self.directory, name).await
    }

    /// Powers a node on again, with the same disk.
    pub async fn node_power_on(&self, name: &str) -> Result<()> {
        let address = self.node_address(name).await?;
        if machines::pid(&self.directory.machine(name)).is_some() {
            bail!("node {name} is on already");
        }
        self.set_on(name, true).await?;
        self.node_start_machine(name, address).await?;
        self.node_start_kubelet(name, address).await
    }

    /// Removes a node from the cluster: its object, its machine, its disk.
    pub async fn node_delete(&self, name: &str) -> Result<()> {
        self.node_address(name).await?;
        machines::power_off(&self.directory, name).await?;
        self.api.delete_node(name).await?;
        let folder = self.directory.machine(name);
        std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
        let mut state = self.state.lock().await;
        state.machines.remove(name);
        state.write(&self.directory)
    }

    /// A node's address.
    pub async fn node_address(&self, name: &str) -> Result<Ipv4Addr> {
        let state = self.state.lock().await;
        match state.machines.get(name) {
            Some(machine) if name != CONTROL_PLANE => Ok(machine.address),
            _ => {
                let names: Vec<_> = state.nodes().into_iter().map(|(name, _)| name).collect();
                bail!("there is no node {name:?}; the nodes are {}", names.join(", "))
            }
        }
    }

    async fn set_on(&self, name: &str, on: bool) -> Result<()> {
        let mut state = self.state.lock().await;
        if let Some(machine) = state.machines.get_mut(name) {
            machine.on = on;
        }
        state.write(&self.directory)
    }

    pub(super) async fn node_prepare(&self, name: &str, address: Ipv4Addr) -> Result<()> {
        let authority = Authority::open(&self.directory.keys())?;
        let (api_server, plugins) = {
            let state = self.state.lock().await;
            (state.control_plane(), state.plugins.clone())
        };
        let pause_image = Images::default().pause;
        let config = NodeConfig {
            name,
            address,
            api_server,
            plugins: &plugins,
            pause_image: &pause_image,
        };
        node::prepare(&self.directory, &authority, &config)
            .with_context(|| format!("prepare node {name}"))?;
        self.write_kube_proxy(name, &authority)
            .await
            .with_context(|| format!("prepare kube-proxy of node {name}"))
    }

    /// Machine, link and container runtime.
    pub(super) async fn node_start_machine(&self, name: &str, address: Ipv4Addr) -> Result<()> {
        let state = self.state.lock().await.clone();
        let pid = machines::power_on(&self.directory, &state, name).await?;
        let control_plane = self.pid(CONTROL_PLANE)?;
        network::connect_node(
            control_plane,
            pid,
            address,
            state.control_plane(),
            state.ip_families,
        )
        .await
        .with_context(|| format!("connect node {name}"))?;
        self.control(name).start(node::containerd()).await?;
        self.containerd_answers(name, node::CONTAINERD).await
    }

    /// Waits until the containerd behind this socket of a machine answers.
    pub(super) async fn containerd_answers(&self, machine: &str, socket: &str) -> Result<()> {
        until(
            &format!("containerd on {machine}"),
            CONTAINERD_LIMIT,
            &self.directory.machine_logs(machine),
            async || {
                let output = self
                    .exec_in_node(machine, &["ctr", "--address", socket, "version"])
                    .await?;
                Ok(if output.status.success() {
                    Observation::Done(())
                } else {
                    Observation::NotYet(String::from_utf8_lossy(&output.stderr).trim().to_owned())
                })
            },
        )
        .await
    }

    /// The machine of a new node, with a container runtime that has every image.
    pub(super) async fn node_start_with_images(&self, name: &str, address: Ipv4Addr) -> Result<()> {
        let newer = self.link_images(name)?;
        self.node_start_machine(name, address).await?;
        self.import(name, node::CONTAINERD, &newer).await?;
        self.node_knows_images(name).await
    }

    /// Imports archives of the lab into the containerd behind this socket of a machine.
    pub(super) async fn import(&self, machine: &str, socket: &str, archives: &[String]) -> Result<()> {
        for archive in archives {
            let archive = format!("{IMAGES}/{archive}");
            let command = [
                "ctr",
                "--address",
                socket,
                "-n",
                "k8s.io",
                "images",
                "import",
                "--no-unpack",
                &archive,
            ];
            tokio::time::timeout(IMPORT_LIMIT, self.run_in_node(machine, &command))
                .await
                .with_context(|| {
                    format!(
                        "the import of {archive} on {machine} took over {} s",
                        IMPORT_LIMIT.as_secs()
                    )
                })??;
        }
        Ok(())
    }

    /// Imports images on every node that is on, and on later nodes. An existing image is replaced.
    pub async fn import_images(&self, archives: &[PathBuf]) -> Result<()> {
        let names = images::take(&self.directory.images(), archives)?;
        let nodes = self.node_names().await;
        let on = nodes.iter().filter(|name| self.pid(name).is_ok());
        try_join_all(on.map(|name| self.import(name, node::CONTAINERD, &names)))
            .await
            .map(drop)
    }

    pub(super) async fn node_start_kubelet(&self, name: &str, address: Ipv4Addr) -> Result<()> {
        let families = self.state.lock().await.ip_families;
        self.control(name)
            .start(node::kubelet(name, address, families))
            .await
    }
}

/// The name becomes a folder, a host name, a cgroup and a node name.
fn check_name(name: &str) -> Result<()> {
    let plain =
        |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-';
    if name.is_empty()
        || name.len() > 40
        || !name.chars().all(plain)
        || name.starts_with('-')
        || name.ends_with('-')
    {
        bail!(
            "{name:?} is not a valid node name: use lower-case letters, digits and inner hyphens, at most 40 characters"
        );
    }
    if name == CONTROL_PLANE {
        bail!("{name:?} is the control plane's machine; choose another name for a node");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_valid_as_folder_and_host_are_refused() {
        for good in ["lab-worker-1", "a", "n2"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "../x", CONTROL_PLANE] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
