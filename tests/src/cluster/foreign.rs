//! Host settings of another owner: rules, routes, a CNI configuration. No migration may change them.

use anyhow::{Context, Result};

use super::Cluster;

const SCRIPT: &str = "
    set -e
    iptables -t nat -N OTHER-OWNER
    iptables -t nat -A OTHER-OWNER -d 198.51.100.0/24 -j RETURN
    iptables -t nat -A POSTROUTING -s 198.51.100.0/24 -j OTHER-OWNER
    iptables -A FORWARD -s 198.51.100.0/24 -j ACCEPT
    nft add table inet another-owner
    nft add chain inet another-owner input '{ type filter hook input priority 50; policy accept; }'
    nft add rule inet another-owner input ip saddr 198.51.100.7 counter drop
    ip route add 198.51.100.0/24 dev lo
    ip rule add from 198.51.100.0/24 lookup 100 priority 4321
    ip route add 203.0.113.0/24 dev lo table 100
    echo '{\"name\":\"other\",\"type\":\"loopback\",\"cniVersion\":\"0.3.1\"}' > /etc/cni/net.d/99-another-owner.conf
";

impl Cluster {
    /// Adds them to every node.
    ///
    /// Only before traffic starts: adding them beside traffic lost one of half a million packets, and that loss is
    /// not the migration's.
    pub(super) async fn plant_foreign(&self) -> Result<()> {
        for node in self.node_names().await {
            self.run_in_node(&node, &["sh", "-c", SCRIPT])
                .await
                .with_context(|| format!("add rules and routes of another owner on node {node}"))?;
        }
        self.progress
            .say("rules, routes and a CNI configuration of another owner are added");
        Ok(())
    }
}
