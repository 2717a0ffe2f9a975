//! The packet filter: masquerading of packets that leave the pools, and the protection of the tunnel's port. A
//! separate table, so that no other rules are changed and one command removes everything.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Name of the table, in family `ip`.
pub const TABLE: &str = "calico";

/// The desired contents of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Pools whose addresses are masqueraded with the node's address for destinations outside every pool.
    pub masqueraded: BTreeSet<Ipv4Net>,
    /// Every pool.
    pub pools: BTreeSet<Ipv4Net>,
    /// The tunnel's UDP port and the hosts that may use it; `None` without a tunnel.
    pub tunnel: Option<(u16, BTreeSet<Ipv4Addr>)>,
}

impl Rules {
    /// A script for `nft -f`: one transaction replaces the old table with the new one.
    pub fn script(&self) -> String {
        let mut text = format!("table ip {TABLE}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n");
        text.push_str("  comment \"made by replumb's stand-in for Calico\"\n");
        if !self.masqueraded.is_empty() {
            let _ = writeln!(
                text,
                "  chain postrouting {{\n    type nat hook postrouting priority srcnat; policy accept;\n    ip saddr \
                 {{ {} }} ip daddr != {{ {} }} masquerade fully-random\n  }}",
                join(&self.masqueraded),
                join(&self.pools)
            );
        }
        if let Some((port, hosts)) = &self.tunnel {
            let others = if hosts.is_empty() {
                String::new()
            } else {
                format!("ip saddr != {{ {} }} ", join(hosts))
            };
            // Calico also drops tunnel packets from unknown hosts.
            let _ = writeln!(
                text,
                "  chain input {{\n    type filter hook input priority filter; policy accept;\n    udp dport {port} \
                 {others}counter drop\n  }}"
            );
        }
        text.push_str("}\n");
        text
    }
}

/// Sets the rules.
pub async fn apply(rules: &Rules) -> Result<()> {
    run(&["-f", "-"], &rules.script()).await.map(|_| ())
}

/// Whether the table exists.
pub async fn present() -> Result<bool> {
    let tables = run(&["list", "tables", "ip"], "").await?;
    Ok(tables
        .lines()
        .any(|line| line.trim() == format!("table ip {TABLE}")))
}

async fn run(arguments: &[&str], input: &str) -> Result<String> {
    let shown = arguments.join(" ");
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start nft {shown} (the stand-in needs nft on its PATH)"))?;
    if let Some(mut writer) = child.stdin.take() {
        writer
            .write_all(input.as_bytes())
            .await
            .with_context(|| format!("write to nft {shown}"))?;
    }
    let output = child
        .wait_with_output()
        .await
        .with_context(|| format!("wait for nft {shown}"))?;
    if !output.status.success() {
        bail!(
            "nft {shown} ended with {}: {}; its input was:\n{input}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn join<T: ToString>(items: &BTreeSet<T>) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_replaces_the_whole_table() {
        let rules = Rules {
            masqueraded: ["10.244.0.0/16".parse().unwrap()].into(),
            pools: ["10.244.0.0/16".parse().unwrap(), "10.250.0.0/16".parse().unwrap()].into(),
            tunnel: Some((8472, ["172.30.0.2".parse().unwrap()].into())),
        };
        let script = rules.script();
        assert!(
            script.starts_with("table ip calico\ndelete table ip calico\n"),
            "{script}"
        );
        assert!(
            script.contains(
                "ip saddr { 10.244.0.0/16 } ip daddr != { 10.244.0.0/16, 10.250.0.0/16 } masquerade fully-random"
            ),
            "{script}"
        );
        assert!(
            script.contains("udp dport 8472 ip saddr != { 172.30.0.2 } counter drop"),
            "{script}"
        );
    }

    #[test]
    fn without_peers_every_tunnel_packet_is_dropped() {
        let rules = Rules {
            tunnel: Some((8472, BTreeSet::new())),
            ..Rules::default()
        };
        let script = rules.script();
        assert!(script.contains("udp dport 8472 counter drop"), "{script}");
        assert!(!script.contains("masquerade"), "{script}");
    }
}
