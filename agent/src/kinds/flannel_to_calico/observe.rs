//! Reads the host into facts. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::FailureCategory;
use flannel_to_calico::facts::{CalicoObjects, Found, HostFacts, ReversePathFilter};
use flannel_to_calico::flannel::SubnetEnvironment;
use flannel_to_calico::host::BRIDGE;
use ipnet::IpNet;
use thiserror::Error;

use super::facts::{self, Family, LinkParameters};
use crate::host::cnidir::{self, State};
use crate::host::files::{self, FileError};
use crate::host::firewall::detour::Detour;
use crate::host::firewall::{self, FirewallError};
use crate::host::netlink::{Netlink, NetlinkError};
use crate::host::paths::Paths;
use crate::host::processes::{ProcessError, Processes};
use crate::host::runtime;
use crate::host::snapshot::Snapshot;
use crate::host::sysctl::{self, SysctlError};

/// Process name of flannel's daemon.
const FLANNELD: &str = "flanneld";
/// Process name of Calico's daemon.
const CALICO_NODE: &str = "calico-node";

/// Process names that an observation looks for.
const PROCESSES: [&str; 4] = [FLANNELD, CALICO_NODE, runtime::NAMES[0], runtime::NAMES[1]];

/// One observation of the host: the facts, and the other data that steps need.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Input of decisions.
    pub facts: HostFacts,
    /// The kernel's tables.
    pub snapshot: Snapshot,
    /// Files of flannel's CNI plugins.
    pub state: State,
    /// A detour around a bridge, which no step is making now.
    pub detour: Option<Detour>,
    /// Numbers of the processes of flanneld.
    pub flannelds: Vec<u32>,
    /// Numbers of the processes of calico-node.
    pub calico_nodes: Vec<u32>,
}

/// The host could not be read.
#[derive(Debug, Error)]
pub enum ObserveError {
    /// Links, addresses or routes could not be read.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A file or folder could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Processes could not be read.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A kernel parameter could not be read.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// The firewall could not be read.
    #[error(transparent)]
    Firewall(#[from] FirewallError),
}

impl ObserveError {
    /// The category for metrics and status.
    pub fn category(&self) -> FailureCategory {
        match self {
            Self::Netlink(error) => error.category(),
            Self::File(error) => error.category(),
            Self::Process(error) => error.category(),
            Self::Sysctl(error) => error.category(),
            Self::Firewall(error) => error.category(),
        }
    }
}

/// Reads the whole state. If one part cannot be read, there are no facts at all, since partial facts would be misleading. An
/// unreadable process is a fact.
///
/// # Errors
///
/// Processes, files, kernel parameters, the network or the firewall cannot be read.
pub async fn observe(
    paths: &Paths,
    netlink: &Netlink,
    processes: &Processes,
) -> Result<Observation, ObserveError> {
    // Processes before files: a flanneld that ends between the two reads has written its file before.
    let running = processes.running(&paths.proc, &PROCESSES).await?;
    let runtime = runtime::read(processes, &running, paths).await;
    let (cni, plugin) = cnidir::read(
        &paths.cni_configuration,
        &paths.cni_configuration.to_string_lossy(),
    )?;
    let (flannelds, calico_nodes) = (running.numbers(FLANNELD), running.numbers(CALICO_NODE));
    let state = cnidir::state(&paths.cni_state, &cnidir::flannel_networks(&cni))?;
    let subnet_environment = subnet_environment(paths)?;
    // At the same time: the firewall is read by programs.
    let (snapshot, firewall) = tokio::try_join!(
        async { netlink.snapshot().await.map_err(ObserveError::from) },
        async { firewall::read(&paths.proc).await.map_err(ObserveError::from) },
    )?;
    let (all, mut interfaces) = sysctl::reverse_path_filter(&paths.proc)?;
    let parameters = link_parameters(
        (all, &interfaces),
        (&snapshot, &state),
        firewall.frame_rules,
        paths,
    )?;
    let legacy_pods = facts::legacy_pods(&snapshot, &state.attachments, &parameters);
    let uplink = facts::uplink(&snapshot);
    let detected = facts::detected_address(&snapshot, Family::Ipv4);
    let networks = networks(&subnet_environment);
    let used = [uplink.as_ref(), detected.as_ref().map(|(_, link)| link)];
    interfaces.retain(|name, _| is_of_networks(name) || used.contains(&Some(name)));
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let vxlan_devices = facts::vxlan_devices(&snapshot);
    let calico = CalicoObjects {
        node_running: !calico_nodes.is_empty(),
        pods: facts::calico_pods(&snapshot, &legacy_pods),
        firewall: firewall.calico,
        sets: count(firewall.calico_sets),
        blackholes: count(facts::blackholes(&snapshot).count()),
        pod_routes: count(facts::pod_routes(&snapshot).count()),
        subnet_routes: facts::subnet_routes(&snapshot),
        records: count(state.of_calico.len()),
        kept_addresses: facts::kept_addresses(&snapshot),
        frame_rules: parameters.frame_rules.clone(),
    };
    let facts = HostFacts {
        plugin,
        // Read more seldom, by the worker.
        foreign_rules: None,
        lacks_nf_tables: firewall.lacks_nf_tables,
        runtime,
        vxlan_devices,
        calico,
        bridge: facts::bridge(
            &snapshot,
            sysctl::answers(&paths.sysctl, BRIDGE, facts::speaks_ipv6(&snapshot, BRIDGE))?,
            &parameters,
        ),
        legacy_problems: facts::legacy_problems(&state.attachments),
        legacy_pods,
        direct_routes: facts::direct_routes(&snapshot, &networks),
        reverse_path_filter: ReversePathFilter { all, interfaces },
        subnet_environment,
        flanneld_running: !flannelds.is_empty(),
        unread_processes: running.unread,
        firewall: firewall.flannel,
        unread_tables: firewall.unread,
        leases: count(state.leases.len() + state.bookkeeping.len()),
        delegates: count(state.delegates.len()),
        detected_address: detected.map(|(address, _)| address),
        detected_ipv6_address: facts::detected_address(&snapshot, Family::Ipv6).map(|(address, _)| address),
        uplink,
        bridge_nf_call_iptables: sysctl::bridge_netfilter(&paths.proc)?,
        cni,
    };
    Ok(Observation {
        facts,
        snapshot,
        state,
        detour: firewall.detour,
        flannelds,
        calico_nodes,
    })
}

/// Whether the parameters of this interface are a fact. A pod's interface has the value of `default`; with each interface the facts
/// would change with every pod.
fn is_of_networks(name: &str) -> bool {
    name == "default" || name == BRIDGE || name.starts_with("flannel.") || name == "vxlan.calico"
}

/// flannel's networks, as flanneld has written them.
fn networks(environment: &Found<SubnetEnvironment>) -> Vec<IpNet> {
    environment.present().map_or_else(Vec::new, |environment| {
        let ipv6 = environment.ipv6.as_ref().map(|ipv6| IpNet::V6(ipv6.network));
        [IpNet::V4(environment.network)].into_iter().chain(ipv6).collect()
    })
}

/// flannel's `subnet.env`.
fn subnet_environment(paths: &Paths) -> Result<Found<SubnetEnvironment>, FileError> {
    Ok(match files::read_if_exists(&paths.subnet_environment())? {
        None => Found::Absent,
        Some(bytes) => match SubnetEnvironment::parse(&String::from_utf8_lossy(&bytes)) {
            Ok(environment) => Found::Present(environment),
            Err(error) => Found::Malformed(error.to_string()),
        },
    })
}

/// What the kernel does on links. The first pair is the reverse path filter of all links, and of single ones by name.
fn link_parameters(
    (all, interfaces): (u8, &BTreeMap<String, u8>),
    (snapshot, state): (&Snapshot, &State),
    frame_rules: Vec<String>,
    paths: &Paths,
) -> Result<LinkParameters, SysctlError> {
    // The kernel uses the larger of the two values; 1 is strict.
    let loose = interfaces.iter().filter(|(_, own)| all.max(**own) != 1);
    let mut parameters = LinkParameters {
        loose: loose.map(|(name, _)| name.clone()).collect(),
        answering: BTreeSet::new(),
        with_ipv6: BTreeSet::new(),
        frame_rules,
    };
    let attachments = state.attachments.iter();
    for attachment in attachments.filter_map(|(_, known)| known.as_ref().ok()) {
        let Some((name, calico_name)) = facts::link_names(attachment) else {
            continue;
        };
        for link in [name, &calico_name] {
            if snapshot.link(link).is_none() {
                continue;
            }
            let speaks_ipv6 = attachment.addresses.iter().any(IpAddr::is_ipv6);
            if sysctl::answers_for_all(&paths.sysctl, link, speaks_ipv6)? {
                parameters.answering.insert(link.to_owned());
            }
            if speaks_ipv6 && sysctl::has_ipv6(&paths.sysctl, link)? {
                parameters.with_ipv6.insert(link.to_owned());
            }
        }
    }
    Ok(parameters)
}
