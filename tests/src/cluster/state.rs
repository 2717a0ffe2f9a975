//! The state file: the things that this lab has made or is about to make. The file is written before each thing is
//! made, so that `down` can find them after any crash.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::families::IpFamilies;
use super::kube_proxy::KubeProxy;
use super::manifests::{PacketFilter, ProxyMode};
use super::pod_network::PodNetwork;
use super::tunnel::Tunnel;

/// The machine that runs etcd, the API server, the controllers and the lab's switch.
pub const CONTROL_PLANE: &str = "control-plane";

/// Progress and owner of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The lab is being made, or the attempt was interrupted.
    Starting,
    /// The lab is up, and belongs to the command that made it: after that command's end, the lab has no owner.
    Up,
    /// The lab is up and stays until a command removes it.
    Standing,
}

/// The contents of `state.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The progress.
    pub phase: Phase,
    /// The lab's own subnet: `.1` is the host, `.2` the control plane and switch, nodes from `.11`.
    pub subnet: Ipv4Net,
    /// The folder of the lab's Kubernetes binaries.
    pub binaries: std::path::PathBuf,
    /// The folder of the basic CNI plugins.
    pub plugins: std::path::PathBuf,
    /// The program of holder and process 1.
    pub program: std::path::PathBuf,
    /// The mode of kube-proxy.
    pub proxy_mode: ProxyMode,
    /// How kube-proxy runs.
    pub kube_proxy: KubeProxy,
    /// The tool with which flannel writes its rules.
    pub packet_filter: PacketFilter,
    /// The address families.
    pub ip_families: IpFamilies,
    /// The pod network.
    pub pod_network: PodNetwork,
    /// The tunnel, if the pod network has a choice.
    pub tunnel: Tunnel,
    /// The machines by name: the control plane and the nodes.
    pub machines: BTreeMap<String, Machine>,
}

/// One machine in the state file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// The address on the lab's subnet.
    pub address: Ipv4Addr,
    /// Whether the machine should be on.
    pub on: bool,
}

impl State {
    /// Reads the state; `None` if there is no lab in this folder.
    pub fn read(directory: &Directory) -> Result<Option<Self>> {
        let file = directory.state();
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("read {}", file.display())),
        };
        serde_json::from_str(&text).map(Some).with_context(|| {
            format!(
                "parse {}: `cargo lab down` removes the lab even without it",
                file.display()
            )
        })
    }

    /// Writes the state so that a crash leaves either the old file or the new one.
    pub fn write(&self, directory: &Directory) -> Result<()> {
        let file = directory.state();
        let new = file.with_extension("new");
        let attempt = || -> Result<()> {
            let mut out = fs::File::create(&new)?;
            out.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
            out.sync_all()?;
            fs::rename(&new, &file)?;
            Ok(())
        };
        attempt().with_context(|| format!("write {}", file.display()))
    }

    /// The n-th address of the subnet.
    pub fn address(&self, host: u8) -> Ipv4Addr {
        nth(self.subnet, host)
    }

    /// The API server's and the switch's address.
    pub fn control_plane(&self) -> Ipv4Addr {
        self.address(2)
    }

    /// The nodes, without the control plane, by name: `lab-control` first, then the workers by number.
    pub fn nodes(&self) -> Vec<(String, Machine)> {
        let mut nodes: Vec<_> = self
            .machines
            .iter()
            .filter(|(name, _)| *name != CONTROL_PLANE)
            .map(|(name, machine)| (name.clone(), machine.clone()))
            .collect();
        nodes.sort_by_key(|(_, machine)| machine.address);
        nodes
    }

    /// The first address that no node has.
    pub fn free_address(&self) -> Option<Ipv4Addr> {
        (11..=250)
            .map(|host| self.address(host))
            .find(|address| self.machines.values().all(|machine| machine.address != *address))
    }
}

/// The n-th address of a /24.
pub fn nth(subnet: Ipv4Net, host: u8) -> Ipv4Addr {
    let [a, b, c, _] = subnet.network().octets();
    Ipv4Addr::new(a, b, c, host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            phase: Phase::Starting,
            subnet: "172.30.4.0/24".parse().unwrap(),
            binaries: "/bin".into(),
            plugins: "/usr/lib/cni".into(),
            program: "/bin/lab".into(),
            proxy_mode: ProxyMode::default(),
            kube_proxy: KubeProxy::default(),
            packet_filter: PacketFilter::default(),
            ip_families: IpFamilies::default(),
            pod_network: PodNetwork::default(),
            tunnel: Tunnel::default(),
            machines: BTreeMap::new(),
        }
    }

    #[test]
    fn an_address_is_used_once_and_reused_after_its_node_is_removed() {
        let mut state = state();
        let first = state.free_address().unwrap();
        assert_eq!(first, Ipv4Addr::new(172, 30, 4, 11));
        state.machines.insert(
            "lab-control".into(),
            Machine {
                address: first,
                on: true,
            },
        );
        assert_eq!(state.free_address(), Some(Ipv4Addr::new(172, 30, 4, 12)));
        state.machines.clear();
        assert_eq!(state.free_address(), Some(first));
    }

    #[test]
    fn nodes_are_ordered_by_address_not_by_name() {
        let mut state = state();
        for (name, host) in [
            ("lab-worker-10", 21),
            ("lab-worker-2", 13),
            ("lab-control", 11),
            (CONTROL_PLANE, 2),
        ] {
            let address = state.address(host);
            state.machines.insert(name.into(), Machine { address, on: true });
        }
        let names: Vec<_> = state.nodes().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["lab-control", "lab-worker-2", "lab-worker-10"]);
    }

    #[test]
    fn a_written_state_is_read_back_and_a_missing_file_is_no_lab() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::open(temporary.path()).unwrap();
        assert!(State::read(&directory).unwrap().is_none());
        state().write(&directory).unwrap();
        assert_eq!(State::read(&directory).unwrap().unwrap().subnet, state().subnet);
        fs::write(directory.state(), "{").unwrap();
        assert!(format!("{:#}", State::read(&directory).unwrap_err()).contains("cargo lab down"));
    }
}
