//! The startup of calico-node. Neither generation reads the flag first: a node that starts while Calico is paused also writes.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node;
use tracing::{info, warn};

use super::store::Store;
use super::{startup2, startup3};
use crate::host::netlink::Netlink;
use crate::node::environment::Environment;
use crate::node::startup::complete;
use crate::node::{autodetect, condition};
use crate::version::{Generation, Played};

/// Folder that v3's plugin checks.
const FOLDER: &str = "/var/lib/calico";

/// The settings of the starting node.
#[derive(Debug)]
pub struct Starting<'a> {
    /// The name.
    pub host: &'a str,
    /// The manifest's settings.
    pub environment: &'a Environment,
    /// The played release.
    pub version: &'a str,
}

/// Performs the startup.
pub async fn run(environment: &Environment, store: &Store, played: &Played) -> Result<()> {
    let host = environment.node_name()?;
    let starting = Starting {
        host: &host,
        environment,
        version: &played.version,
    };
    match store.generation {
        Generation::V2 => startup2::run(&starting, store).await?,
        Generation::V3 => {
            // Calico also continues without it.
            if let Err(error) = condition::set(environment, true).await {
                warn!("unable to set NetworkUnavailable to False: {error:#}");
            }
            startup3::run(&starting, store).await?;
            // v2.6 has no such file: its plugin uses the host's name.
            let file = Path::new(FOLDER).join("nodename");
            std::fs::create_dir_all(FOLDER).with_context(|| format!("make {FOLDER}"))?;
            std::fs::write(&file, &host).with_context(|| format!("write {}", file.display()))?;
        }
    }
    info!("Using node name: {host}");
    Ok(())
}

impl Starting<'_> {
    /// The host's address: the configured one, otherwise the stored one, otherwise the first of the host.
    pub async fn address(&self, noted: Option<Ipv4Net>) -> Result<Ipv4Net> {
        let netlink = Netlink::open()?;
        let devices = autodetect::candidates(netlink.links().await?, &netlink.addresses().await?);
        match (self.environment.get("IP"), noted) {
            (Some("autodetect"), _) | (None, None) => {
                let method = self
                    .environment
                    .get("IP_AUTODETECTION_METHOD")
                    .unwrap_or_default();
                autodetect::address(method, &Node::default(), &devices)
            }
            (None, Some(noted)) => Ok(noted),
            (Some(given), _) => complete(given, &devices),
        }
    }

    /// Two nodes with one address would receive each other's packets.
    pub fn refuse_conflict(&self, own: Ipv4Addr, others: &[(String, Ipv4Addr)]) -> Result<()> {
        if self.environment.get("DISABLE_NODE_IP_CHECK") == Some("true") {
            return Ok(());
        }
        for (host, address) in others.iter().filter(|(host, _)| host != self.host) {
            if *address == own {
                bail!("Calico node '{host}' is already using the IPv4 address {address}.");
            }
        }
        Ok(())
    }

    /// The range of the pool that is created if there is no IPv4 pool; `None` if no pool should be created.
    pub fn default_range(&self) -> Option<&str> {
        (self.environment.get("NO_DEFAULT_POOLS") != Some("true")).then(|| {
            self.environment
                .get("CALICO_IPV4POOL_CIDR")
                .unwrap_or("192.168.0.0/16")
        })
    }

    /// Refuses a tunnel that is not supported.
    pub fn refuse_ipip(&self) -> Result<()> {
        let mode = self.mode("CALICO_IPV4POOL_IPIP")?;
        if mode != "Never" {
            bail!("CALICO_IPV4POOL_IPIP is {mode}: the only tunnel of the stand-in with etcd is VXLAN");
        }
        Ok(())
    }

    /// The `vxlanMode` of that pool, in v3's form. BIRD does not support a tunnel.
    pub fn default_vxlan(&self) -> Result<&'static str> {
        self.refuse_ipip()?;
        let mode = self.mode("CALICO_IPV4POOL_VXLAN")?;
        let backend = self.environment.backend();
        if mode != "Never" && backend != "vxlan" {
            bail!(
                "CALICO_IPV4POOL_VXLAN is {mode} with CALICO_NETWORKING_BACKEND {backend}: the stand-in supports it only with vxlan"
            );
        }
        Ok(mode)
    }

    fn mode(&self, variable: &str) -> Result<&'static str> {
        let said = self.environment.get(variable).unwrap_or("off");
        Ok(match said.to_lowercase().as_str() {
            "off" | "never" => "Never",
            "always" => "Always",
            "crosssubnet" | "cross-subnet" => "CrossSubnet",
            _ => bail!("read {variable}: {said:?} is not one of Always, CrossSubnet, Never and off"),
        })
    }
}

/// The types of a cluster, with missing ones of these added: `k8s,bgp`.
pub fn cluster_type(found: &str, added: &str) -> String {
    let mut types: Vec<&str> = found.split(',').filter(|kind| !kind.is_empty()).collect();
    for kind in added.split(',').filter(|kind| !kind.is_empty()) {
        if !types.contains(&kind) {
            types.push(kind);
        }
    }
    types.join(",")
}

/// Whether the kernel supports IPv6: then both generations create an IPv6 pool.
pub fn has_ipv6() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_added_once() {
        assert_eq!(cluster_type("", "k8s,bgp"), "k8s,bgp");
        assert_eq!(cluster_type("k8s,bgp,kops", "bgp,kdd"), "k8s,bgp,kops,kdd");
    }

    #[test]
    fn a_pool_has_vxlan_only_with_the_vxlan_backend() {
        let of = |variables: [(&str, &str); 3]| {
            let starting = Starting {
                host: "n1",
                environment: &Environment::from(variables),
                version: "v3.8.9",
            };
            starting.default_vxlan().map_err(|error| error.to_string())
        };
        let [ipip, vxlan, backend] = [
            "CALICO_IPV4POOL_IPIP",
            "CALICO_IPV4POOL_VXLAN",
            "CALICO_NETWORKING_BACKEND",
        ];
        assert_eq!(of([(ipip, "off"), (vxlan, ""), (backend, "bird")]), Ok("Never"));
        assert_eq!(
            of([(ipip, "Never"), (vxlan, "Always"), (backend, "vxlan")]),
            Ok("Always")
        );
        for (refused, of_it) in [
            ([(ipip, "Always"), (vxlan, ""), (backend, "bird")], ipip),
            ([(ipip, "off"), (vxlan, "Always"), (backend, "bird")], backend),
            (
                [(ipip, "off"), (vxlan, "Sometimes"), (backend, "vxlan")],
                "Sometimes",
            ),
        ] {
            let said = of(refused).unwrap_err();
            assert!(said.contains(of_it), "{said}");
        }
    }

    #[test]
    fn another_nodes_address_is_refused() {
        let environment = Environment::default();
        let starting = Starting {
            host: "n1",
            environment: &environment,
            version: "v2.6.12",
        };
        let address = "172.30.0.2".parse().unwrap();
        let nodes = [
            ("n1".to_owned(), address),
            ("n2".to_owned(), "172.30.0.3".parse().unwrap()),
        ];
        starting.refuse_conflict(address, &nodes).unwrap();
        assert!(
            starting
                .refuse_conflict("172.30.0.3".parse().unwrap(), &nodes)
                .is_err()
        );
    }
}
