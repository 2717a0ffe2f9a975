//! Reads Calico's chains, rules, tables and IP sets, and deletes them table by table.
//!
//! Felix names its chains `cali-…`, marks each of its rules in a built-in chain with a comment `cali:…`, and in its nftables mode
//! has a table `calico` of each family.

use std::path::Path;

use flannel_to_calico::facts::{FirewallBackend, FirewallObject};

use super::FirewallError;
use super::backend::{family, legacy_tables, save, transact};
use super::nftables::Nftables;
use crate::host::program::{ProgramError, lines, run};

/// iptables tables that Felix writes to.
const TABLES: [&str; 4] = ["raw", "mangle", "nat", "filter"];
/// Felix' tables in its nftables mode: family and name.
const NATIVE: [(&str, &str); 2] = [("ip", "calico"), ("ip6", "calico")];
/// Start of the names of Felix' chains.
const CHAINS: &str = "cali-";
/// Exists if the kernel has IP sets: calling `ipset` would load the module.
const SETS_MODULE: &str = "/sys/module/ip_set";

/// The common name for chains of Felix; `None` for another chain.
pub(super) fn common_name(chain: &str) -> Option<&'static str> {
    chain.starts_with(CHAINS).then_some(CHAINS)
}

/// Calico's own tables, and iptables tables that contain chains of Calico.
pub(super) async fn list(proc: &Path, nft: &Nftables) -> Result<Vec<FirewallObject>, FirewallError> {
    let mut found: Vec<FirewallObject> = NATIVE
        .iter()
        .filter(|(family, table)| nft.has_table(family, table))
        .map(|(family, table)| object(FirewallBackend::Nftables, &format!("{family} {table}")))
        .collect();
    for backend in [FirewallBackend::IptablesNft, FirewallBackend::Ip6tablesNft] {
        let tables = TABLES
            .iter()
            .filter(|table| nft.has_chain(family(backend), table, CHAINS));
        found.extend(tables.map(|table| object(backend, table)));
    }
    for backend in [FirewallBackend::IptablesLegacy, FirewallBackend::Ip6tablesLegacy] {
        let tables = legacy_tables(proc, backend)?;
        for table in TABLES.iter().filter(|table| tables.contains(**table)) {
            let mut has_one = false;
            save(backend, table, |line| {
                has_one |= declared(line).is_some();
                false
            })
            .await?;
            if has_one {
                found.push(object(backend, table));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Deletes Calico's chains and rules in one table, or Calico's own table.
///
/// # Errors
///
/// The object is not a table of Calico, or the program of the backend fails.
pub async fn delete(object: &FirewallObject) -> Result<(), FirewallError> {
    if object.backend == FirewallBackend::Nftables {
        let (family, table) = NATIVE
            .into_iter()
            .find(|(family, table)| object.table == format!("{family} {table}"))
            .ok_or_else(|| FirewallError::NotFlannel(format!("{object:?}")))?;
        run("nft", &["delete", "table", family, table], None).await?;
        return Ok(());
    }
    let saved = save(object.backend, &object.table, |line| {
        declared(line).is_some() || rule_of_calico(line).is_some()
    })
    .await?;
    let script = deletion(&object.table, &saved);
    transact(object.backend, &script).await?;
    Ok(())
}

/// Number of Calico's IP sets.
///
/// # Errors
///
/// ipset fails.
pub async fn sets() -> Result<usize, ProgramError> {
    Ok(names_of_sets().await?.len())
}

/// Deletes Calico's IP sets. A set that another set refers to is deleted after that one.
///
/// # Errors
///
/// ipset fails, or refuses every set that remains.
pub async fn delete_sets() -> Result<(), FirewallError> {
    let mut remaining = names_of_sets().await?;
    while !remaining.is_empty() {
        let before = remaining.len();
        let mut refused = None;
        for name in &remaining {
            if let Err(error) = run("ipset", &["destroy", name], None).await {
                refused = Some(error);
            }
        }
        remaining = names_of_sets().await?;
        match refused {
            Some(error) if remaining.len() == before => return Err(error.into()),
            Some(_) | None => {}
        }
    }
    Ok(())
}

async fn names_of_sets() -> Result<Vec<String>, ProgramError> {
    if !Path::new(SETS_MODULE).exists() {
        return Ok(Vec::new());
    }
    lines("ipset", &["list", "-n"], |name| name.starts_with("cali")).await
}

fn object(backend: FirewallBackend, table: &str) -> FirewallObject {
    FirewallObject {
        backend,
        table: table.to_owned(),
        chain: String::new(),
    }
}

/// Input for `iptables-restore --noflush` that deletes Calico's chains and rules of a table; `saved` is the output of
/// `iptables-save`.
fn deletion(table: &str, saved: &[String]) -> String {
    let chains: Vec<&str> = saved.iter().filter_map(|line| declared(line)).collect();
    let mut lines = vec![format!("*{table}")];
    // Flushed first: a chain that another one jumps to cannot be deleted.
    lines.extend(
        saved
            .iter()
            .filter_map(|line| rule_of_calico(line))
            .map(|rule| format!("-D {rule}")),
    );
    lines.extend(chains.iter().map(|chain| format!("-F {chain}")));
    lines.extend(chains.iter().map(|chain| format!("-X {chain}")));
    lines.push("COMMIT\n".to_owned());
    lines.join("\n")
}

/// The chain of Felix that this line of `iptables-save` declares.
fn declared(line: &str) -> Option<&str> {
    let chain = line.strip_prefix(':')?.split(' ').next()?;
    chain.starts_with(CHAINS).then_some(chain)
}

/// The rule of Felix in a built-in chain that this line contains.
fn rule_of_calico(line: &str) -> Option<&str> {
    line.strip_prefix("-A ")
        .filter(|rule| !rule.starts_with(CHAINS) && is_calicos(rule))
}

/// Whether a rule in a built-in chain belongs to Felix: by its comment, or because it jumps to a chain of Felix.
fn is_calicos(rule: &str) -> bool {
    rule.contains(r#"--comment "cali:"#) || rule.contains(" -j cali-") || rule.contains(" -g cali-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calicos_chains_and_rules_are_deleted_in_one_transaction_and_no_others() {
        let saved: Vec<String> = [
            "*filter",
            ":INPUT ACCEPT [0:0]",
            ":KUBE-FORWARD - [0:0]",
            ":cali-FORWARD - [0:0]",
            ":cali-from-wl - [0:0]",
            r#"-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD"#,
            r#"-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD"#,
            r#"-A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m mark --mark 0x10000/0x10000 -j ACCEPT"#,
            r#"-A cali-FORWARD -m comment --comment "cali:vjrMJCRpqwy5oRoX" -j cali-from-wl"#,
            "COMMIT",
        ]
        .map(str::to_owned)
        .into();
        let kept: Vec<String> = saved
            .iter()
            .filter(|line| declared(line).is_some() || rule_of_calico(line).is_some())
            .cloned()
            .collect();
        assert_eq!(kept.len(), 4, "rules of other programs are not even held");
        assert_eq!(deletion("filter", &kept), deletion("filter", &saved));
        assert_eq!(
            deletion("filter", &saved),
            "*filter\n\
             -D FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD\n\
             -D FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m mark --mark 0x10000/0x10000 -j ACCEPT\n\
             -F cali-FORWARD\n-F cali-from-wl\n-X cali-FORWARD\n-X cali-from-wl\nCOMMIT\n"
        );
    }
}
