//! Rules that accept frames to other MAC addresses than that of a link. An adopted pod remembers the MAC addresses of `cni0` and of
//! its neighbours; the kernel drops a frame to a foreign MAC address unless a rule says that the frame is for the host.
//!
//! One chain of nftables' family `netdev` for each link: its name is that of the link, or both names of the link of a pod, with an
//! underscore between them. Since Linux 6.16 a chain belongs to the names of its links; before, to the links that had these names.

use super::backend::{load, without};
use crate::host::program::ProgramError;

/// The family of the rules: frames that arrive on a link, before a bridge takes them.
pub const FAMILY: &str = "netdev";
/// replumb's table.
pub const TABLE: &str = "replumb";

/// Before any other chain of a link.
const PRIORITY: &str = "-500";

/// Adds a chain for each of these rules, all at once. Existing chains are replaced. `exists` is whether a link has this name now.
///
/// # Errors
///
/// nft fails.
pub async fn accept(rules: &[String], exists: impl Fn(&str) -> bool) -> Result<(), ProgramError> {
    let all = batch(rules, |_| true);
    match load(&all).await {
        // A kernel that binds chains to links refuses names without a link.
        Err(_) if rules.iter().any(|rule| links(rule).any(|link| !exists(link))) => {
            let existing = batch(rules, exists);
            load(&existing).await
        }
        result => result,
    }
}

/// Deletes the chains of these rules, and the table with the last one. `remaining` are the rules that exist.
///
/// # Errors
///
/// nft fails.
pub async fn stop_accepting(rules: &[String], remaining: &[String]) -> Result<(), ProgramError> {
    if remaining.iter().all(|rule| rules.contains(rule)) {
        return load(&without(&format!("{FAMILY} {TABLE}"))).await;
    }
    let existing = rules.iter().filter(|rule| remaining.contains(rule));
    let lines: Vec<String> = existing
        .map(|rule| format!("delete chain {FAMILY} {TABLE} {rule}\n"))
        .collect();
    if lines.is_empty() {
        return Ok(());
    }
    load(&lines.concat()).await
}

fn batch(rules: &[String], exists: impl Fn(&str) -> bool) -> String {
    let mut lines = vec![format!("add table {FAMILY} {TABLE}")];
    for rule in rules {
        let names: Vec<String> = links(rule)
            .filter(|link| exists(link))
            .map(|link| format!("\"{link}\""))
            .collect();
        if names.is_empty() {
            continue;
        }
        let hook = format!(
            "{{ type filter hook ingress devices = {{ {} }} priority {PRIORITY}; }}",
            names.join(", ")
        );
        lines.extend([
            format!("add chain {FAMILY} {TABLE} {rule} {hook}"),
            format!("flush chain {FAMILY} {TABLE} {rule}"),
            format!("add rule {FAMILY} {TABLE} {rule} meta pkttype other counter meta pkttype set host"),
        ]);
    }
    lines.join("\n") + "\n"
}

fn links(rule: &str) -> impl Iterator<Item = &str> {
    rule.split('_')
}
