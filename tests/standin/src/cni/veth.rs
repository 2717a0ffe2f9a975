//! The veth pair between a pod and its node.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use tracing::{info, warn};

use crate::host::netlink::{self, Netlink};
use crate::host::{Link, Mac, PROTOCOL_BOOT, Route, Target, namespace, sysctl};

/// The gateway of every pod. No device has this address: the host's end answers for it.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// Hardware address of every host end.
const HOST_MAC: Mac = Mac([0xee; 6]);

/// A veth pair to be created.
pub struct Cable<'a> {
    /// Name of the device on the host.
    pub host: &'a str,
    /// Name of the device in the pod.
    pub pod: &'a str,
    /// The pod's network namespace.
    pub namespace: &'a Path,
    /// The pod's address.
    pub address: Ipv4Addr,
    /// MTU.
    pub mtu: u32,
    /// Whether the pod may forward packets.
    pub forwarding: bool,
}

/// Creates a veth pair; returns the hardware address of the pod's end.
pub async fn add(cable: &Cable<'_>) -> Result<Mac> {
    let Some(inside) = namespace::open(cable.namespace)? else {
        bail!(
            "open the network namespace {}: not found",
            cable.namespace.display()
        );
    };
    let netlink = Netlink::open()?;
    if let Some(old) = netlink.link(cable.host).await? {
        info!("deleting the old device {}", cable.host);
        netlink.delete_link(&old).await?;
    }
    netlink
        .add_veth(cable.host, cable.pod, inside.as_fd(), cable.mtu, HOST_MAC)
        .await?;
    let host = netlink::existing(&netlink, cable.host).await?;
    host_settings(cable.host)?;
    netlink.set_up(&host).await?;
    let mac = namespace::within(&inside, |netlink| pod_end(netlink, cable))?;
    host_route(&netlink, &host, cable.address).await?;
    Ok(mac)
}

fn host_settings(device: &str) -> Result<()> {
    for (setting, value) in [
        ("conf/{}/route_localnet", "1"),
        ("neigh/{}/proxy_delay", "0"),
        ("conf/{}/proxy_arp", "1"),
        ("conf/{}/forwarding", "1"),
    ] {
        sysctl::set(&format!("net/ipv4/{}", setting.replace("{}", device)), value)?;
    }
    // A kernel without IPv6 has no such setting.
    if let Err(error) = sysctl::set(&format!("net/ipv6/conf/{device}/accept_ra"), "0") {
        warn!("{error:#}");
    }
    Ok(())
}

async fn pod_end(netlink: Netlink, cable: &Cable<'_>) -> Result<Mac> {
    let link = netlink::existing(&netlink, cable.pod).await?;
    netlink.set_up(&link).await?;
    let everything = Ipv4Net::default();
    let device = Target::Device(link.index);
    let by_gateway = Target::Router(link.index, GATEWAY);
    for (destination, target) in [(Ipv4Net::from(GATEWAY), device), (everything, by_gateway)] {
        netlink
            .add_route(&Route {
                destination,
                target,
                protocol: PROTOCOL_BOOT,
                mtu: None,
            })
            .await?;
    }
    netlink.add_address(&link, Ipv4Net::from(cable.address)).await?;
    sysctl::set("net/ipv4/ip_forward", if cable.forwarding { "1" } else { "0" })?;
    link.mac
        .with_context(|| format!("read the hardware address of {}: none", cable.pod))
}

/// The host's route to the pod. As in Calico, an address whose route leads to another device is refused.
async fn host_route(netlink: &Netlink, host: &Link, address: Ipv4Addr) -> Result<()> {
    let destination = Ipv4Net::from(address);
    let route = Route {
        destination,
        target: Target::Device(host.index),
        protocol: PROTOCOL_BOOT,
        mtu: None,
    };
    let Err(error) = netlink.add_route(&route).await else {
        return Ok(());
    };
    if !netlink::exists(&error) {
        return Err(error);
    }
    let routes = netlink.routes().await?;
    let mut same = routes.iter().filter(|known| known.destination == destination);
    if same.any(|known| known.target == route.target) {
        info!(%destination, "the route exists already: Felix was faster");
        return Ok(());
    }
    let links = netlink.links().await?;
    let others: Vec<String> = routes
        .iter()
        .filter(|known| known.destination == destination)
        .map(|known| match known.target {
            Target::Device(index) | Target::Gateway(index, _) | Target::Router(index, _) => links
                .iter()
                .find(|link| link.index == index)
                .map_or_else(|| format!("device {index}"), |link| link.name.clone()),
            other => format!("{other:?}"),
        })
        .collect();
    bail!(
        "route {destination} already exists for an interface other than '{}': {}",
        host.name,
        others.join(", ")
    )
}

/// Removes the veth pair, from the pod's end. A missing namespace or device is not an error.
pub fn delete(path: &Path, device: &str) -> Result<()> {
    if path.as_os_str().is_empty() {
        info!("no network namespace in the call: nothing to remove");
        return Ok(());
    }
    let Some(inside) = namespace::open(path)? else {
        info!("the network namespace {} does not exist any more", path.display());
        return Ok(());
    };
    namespace::within(&inside, |netlink| async move {
        match netlink.link(device).await? {
            Some(link) => netlink.delete_link(&link).await,
            None => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::iter;
    use std::net::UdpSocket;
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    /// A network namespace for the test, removed at its end.
    struct Scratch(String);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("standin-{name}-{}", std::process::id());
            assert!(
                ip(&["netns", "add", &name]).is_some(),
                "create the network namespace {name}"
            );
            Self(name)
        }

        fn path(&self) -> std::path::PathBuf {
            Path::new("/run/netns").join(&self.0)
        }

        fn run(&self, arguments: &[&str]) -> Option<String> {
            ip(&[&["netns", "exec", &self.0], arguments].concat())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            ip(&["netns", "del", &self.0]);
        }
    }

    fn ip(arguments: &[&str]) -> Option<String> {
        let output = Command::new("ip").args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    }

    /// Whether a packet from one namespace reaches this address in the other.
    fn reaches(from: &File, to: &File, address: Ipv4Addr) -> bool {
        let socket = |namespace: &File| {
            namespace::within(namespace, |_| async { Ok(UdpSocket::bind("0.0.0.0:0")?) }).unwrap()
        };
        let (sender, receiver) = (socket(from), socket(to));
        receiver.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let port = receiver.local_addr().unwrap().port();
        if sender.send_to(b"hello", (address, port)).is_err() {
            return false;
        }
        let mut buffer = [0; 16];
        receiver
            .recv_from(&mut buffer)
            .is_ok_and(|(size, _)| &buffer[..size] == b"hello")
    }

    /// The host answers for the pods' gateway only if it has a route to it through another device: its default route.
    fn add_uplink(node: &Scratch) {
        for command in [
            "link set lo up",
            "address add 10.99.0.1/32 dev lo",
            "link add uplink type bridge",
            "link set uplink up",
            "route add default dev uplink",
        ] {
            let words: Vec<&str> = iter::once("ip").chain(command.split(' ')).collect();
            assert!(node.run(&words).is_some(), "ip {command}");
        }
    }

    /// Adds and deletes a veth pair between two namespaces, with packets over it. As root: `cargo test -p standin -- --ignored`.
    #[test]
    #[ignore = "needs root, and ip"]
    fn a_pod_and_its_node_reach_each_other() {
        let (node, pod) = (Scratch::new("node"), Scratch::new("pod"));
        let (node_address, pod_address) = (Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 99, 1, 5));
        add_uplink(&node);
        let path = pod.path();
        let [on_node, in_pod] =
            [&node, &pod].map(|scratch| namespace::open(&scratch.path()).unwrap().unwrap());
        let lay = || {
            let cable = Cable {
                host: "cali0123456789a",
                pod: "eth0",
                namespace: &path,
                address: pod_address,
                mtu: 1400,
                forwarding: false,
            };
            namespace::within(&on_node, |_| async move { add(&cable).await })
        };
        let remove = || namespace::within(&on_node, |_| async { delete(&path, "eth0") });

        let mac = lay().unwrap();
        let device = pod.run(&["ip", "-o", "link", "show", "dev", "eth0"]).unwrap();
        assert!(
            device.contains("mtu 1400") && device.contains(&mac.to_string()),
            "{device}"
        );
        let routes = pod.run(&["ip", "route"]).unwrap();
        assert!(routes.contains("default via 169.254.1.1 dev eth0"), "{routes}");
        assert!(routes.contains("169.254.1.1 dev eth0 scope link"), "{routes}");
        let routes = node.run(&["ip", "route"]).unwrap();
        assert!(
            routes.contains("10.99.1.5 dev cali0123456789a scope link"),
            "{routes}"
        );
        assert!(
            reaches(&in_pod, &on_node, node_address),
            "the pod does not reach its node"
        );
        assert!(
            reaches(&on_node, &in_pod, pod_address),
            "the node does not reach its pod"
        );

        // A second ADD for the same pod replaces the veth pair.
        lay().unwrap();
        assert!(
            reaches(&in_pod, &on_node, node_address),
            "the pod does not reach its node after a second ADD"
        );

        remove().unwrap();
        assert_eq!(
            node.run(&["ip", "-o", "link", "show", "dev", "cali0123456789a"]),
            None
        );
        assert!(!node.run(&["ip", "route"]).unwrap().contains("10.99.1.5"));
        assert!(
            !reaches(&on_node, &in_pod, pod_address),
            "a packet arrived without a veth pair"
        );
        remove().unwrap();

        // An address whose route leads to another device is refused, and the other route stays.
        node.run(&["ip", "link", "add", "cni0", "type", "bridge"])
            .unwrap();
        node.run(&["ip", "link", "set", "cni0", "up"]).unwrap();
        node.run(&["ip", "route", "add", "10.99.1.5/32", "dev", "cni0"])
            .unwrap();
        let error = format!("{:#}", lay().unwrap_err());
        assert!(
            error.contains("already exists for an interface other than") && error.contains("cni0"),
            "{error}"
        );
        assert!(node.run(&["ip", "route"]).unwrap().contains("10.99.1.5 dev cni0"));
    }
}
