//! Calico's chains, rules, tables and sets of addresses. Reads them, and deletes them one table at a time.
//!
//! Felix names its chains `cali-…`, marks every rule in a kernel's chain with a comment `cali:…`, and in its nftables mode
//! has a table `calico` of each family.

use std::path::Path;

use plan::flannel_to_calico::facts::{FirewallBackend, FirewallObject};

use super::{FirewallError, Nftables, family, legacy_tables, save, transact};
use crate::host::program::{ProgramError, run};

/// Tables of iptables that Felix writes to.
const TABLES: [&str; 4] = ["raw", "mangle", "nat", "filter"];
/// Felix' tables in its nftables mode: family and name.
const NATIVE: [(&str, &str); 2] = [("ip", "calico"), ("ip6", "calico")];
/// Where the kernel shows that it has sets at all: to ask `ipset` would load the module.
const SETS_MODULE: &str = "/sys/module/ip_set";

/// Tables with something of Calico's in them.
pub(super) async fn list(proc: &Path, nft: &Nftables) -> Result<Vec<FirewallObject>, FirewallError> {
    let mut found: Vec<FirewallObject> = NATIVE
        .iter()
        .filter(|(family, table)| nft.tables.contains(&((*family).to_owned(), (*table).to_owned())))
        .map(|(family, table)| object(FirewallBackend::Nftables, &format!("{family} {table}")))
        .collect();
    for backend in [FirewallBackend::IptablesNft, FirewallBackend::Ip6tablesNft] {
        let tables = TABLES.iter().filter(|table| {
            nft.chains.iter().any(|(of_family, of_table, chain)| {
                of_family == family(backend) && of_table == *table && chain.starts_with("cali-")
            })
        });
        found.extend(tables.map(|table| object(backend, table)));
    }
    for backend in [FirewallBackend::IptablesLegacy, FirewallBackend::Ip6tablesLegacy] {
        let tables = legacy_tables(proc, backend)?;
        for table in TABLES.iter().filter(|table| tables.contains(**table)) {
            let saved = save(backend, table).await?;
            if saved.iter().any(|line| line.starts_with(":cali-")) {
                found.push(object(backend, table));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Deletes everything of Calico's in one table, or Calico's table.
pub async fn delete(object: &FirewallObject) -> Result<(), FirewallError> {
    if object.backend == FirewallBackend::Nftables {
        let (family, table) = NATIVE
            .into_iter()
            .find(|(family, table)| object.table == format!("{family} {table}"))
            .ok_or_else(|| FirewallError::NotFlannel(format!("{object:?}")))?;
        run("nft", &["delete", "table", family, table], None).await?;
        return Ok(());
    }
    let script = deletion(&object.table, &save(object.backend, &object.table).await?);
    transact(object.backend, &script).await?;
    Ok(())
}

/// Number of Calico's sets.
pub async fn sets() -> Result<usize, ProgramError> {
    Ok(names_of_sets().await?.len())
}

/// Deletes Calico's sets. One that another one refers to goes after that one.
pub async fn delete_sets() -> Result<(), FirewallError> {
    let mut left = names_of_sets().await?;
    while !left.is_empty() {
        let before = left.len();
        let mut refused = None;
        for name in &left {
            if let Err(error) = run("ipset", &["destroy", name], None).await {
                refused = Some(error);
            }
        }
        left = names_of_sets().await?;
        match refused {
            Some(error) if left.len() == before => return Err(error.into()),
            Some(_) | None => {}
        }
    }
    Ok(())
}

async fn names_of_sets() -> Result<Vec<String>, ProgramError> {
    if !Path::new(SETS_MODULE).exists() {
        return Ok(Vec::new());
    }
    let text = run("ipset", &["list", "-n"], None).await?;
    Ok(text
        .lines()
        .filter(|name| name.starts_with("cali"))
        .map(str::to_owned)
        .collect())
}

fn object(backend: FirewallBackend, table: &str) -> FirewallObject {
    FirewallObject {
        backend,
        table: table.to_owned(),
        chain: String::new(),
    }
}

/// What `iptables-restore --noflush` reads to take Calico's part out of a table, given what `iptables-save` says of it.
fn deletion(table: &str, saved: &[String]) -> String {
    let chains: Vec<&str> = saved
        .iter()
        .filter_map(|line| line.strip_prefix(':')?.split(' ').next())
        .filter(|chain| chain.starts_with("cali-"))
        .collect();
    let mut lines = vec![format!("*{table}")];
    // Flushed first: a chain that another one jumps to cannot be deleted.
    lines.extend(
        saved
            .iter()
            .filter_map(|line| line.strip_prefix("-A "))
            .filter(|rule| !rule.starts_with("cali-") && is_calicos(rule))
            .map(|rule| format!("-D {rule}")),
    );
    lines.extend(chains.iter().map(|chain| format!("-F {chain}")));
    lines.extend(chains.iter().map(|chain| format!("-X {chain}")));
    lines.push("COMMIT\n".to_owned());
    lines.join("\n")
}

/// Whether a rule in a kernel's chain is Felix': by its mark, or because it leads to a chain of Felix'.
fn is_calicos(rule: &str) -> bool {
    rule.contains(r#"--comment "cali:"#) || rule.contains(" -j cali-") || rule.contains(" -g cali-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calicos_part_of_a_table_goes_in_one_transaction_and_nothing_else_does() {
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
        assert_eq!(
            deletion("filter", &saved),
            "*filter\n\
             -D FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD\n\
             -D FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m mark --mark 0x10000/0x10000 -j ACCEPT\n\
             -F cali-FORWARD\n-F cali-from-wl\n-X cali-FORWARD\n-X cali-from-wl\nCOMMIT\n"
        );
    }
}
