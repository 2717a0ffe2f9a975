//! A firewall of another program on one node that names flannel's links: without the twins that the agent writes, it drops every new
//! connection of a pod once the node is on Calico.

use anyhow::{Result, ensure};

use crate::cluster::Cluster;

/// The node.
const NODE: &str = "lab-worker-1";
const TABLE: &str = "inet lab_firewall";
/// Twins of the rules below.
const TWINS: [&str; 4] = [
    r#"iifname "cali*" accept comment "replumb-twin""#,
    r#"iifname "vxlan.calico" accept comment "replumb-twin of an administrator""#,
    "-A FORWARD -i cali+ -o vxlan.calico -m comment --comment replumb-twin -j ACCEPT",
    "-A FORWARD -i cni0 -o vxlan.calico -m comment --comment replumb-twin -j ACCEPT",
];

/// Installs the firewall, in nftables and in iptables. As that of firewalld it accepts what comes from the loopback interface.
pub async fn install(cluster: &Cluster) -> Result<()> {
    let rules = format!(
        r#"table {TABLE} {{
             chain forward {{
               type filter hook forward priority 10; policy accept;
               ct state established,related accept
               iifname "lo" accept
               iifname "cni0" accept
               iifname "flannel.1" accept comment "of an administrator"
               ip saddr 10.244.0.0/16 counter drop
             }}
           }}"#
    );
    let script =
        format!("echo '{rules}' | nft -f - && iptables -w 5 -I FORWARD 1 -i cni0 -o flannel.1 -j ACCEPT");
    cluster.run_in_node(NODE, &["sh", "-c", &script]).await?;
    Ok(())
}

/// Checks that each twin is there, or that none is, and that the firewall has dropped nothing.
pub async fn verify(cluster: &Cluster, has_twins: bool) -> Result<()> {
    let script = format!("nft list table {TABLE} && iptables -w 5 -S FORWARD");
    let rules = cluster.run_in_node(NODE, &["sh", "-c", &script]).await?;
    for twin in TWINS {
        ensure!(
            rules.contains(twin) == has_twins,
            "twin {twin:?}: needed {has_twins}; found\n{rules}"
        );
    }
    ensure!(
        !rules.contains("replumb-passage"),
        "twins for an adoption that is over:\n{rules}"
    );
    ensure!(
        rules.contains("counter packets 0 bytes 0 drop"),
        "the firewall has dropped packets of pods:\n{rules}"
    );
    Ok(())
}
