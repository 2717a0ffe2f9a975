//! Reads the rules of other programs that name the links of flannel: chain by chain, without those of kube-proxy, of which a node may
//! have hundreds of thousands.

use std::path::Path;

use flannel_to_calico::facts::FirewallBackend;
use flannel_to_calico::foreign_rules::{ForeignRules, Notation, is_known};
use runtime::error::chain;

use super::FirewallError;
use super::backend::{legacy_tables, program, save};
use crate::host::netlink::{NfTables, nf_tables};
use crate::host::program::{lines, run};

/// Most chains that are read: firewalld has some hundred.
const CHAINS: usize = 2000;
/// Chains in one call of nft.
const AT_ONCE: usize = 100;

/// The rules, or why they could not be read.
pub async fn read(proc: &Path) -> ForeignRules {
    read_of(proc, nf_tables()).await
}

async fn read_of(proc: &Path, kernel: NfTables) -> ForeignRules {
    let mut found = ForeignRules::default();
    if let Err(error) = read_all(proc, kernel, &mut found).await {
        found.problem = Some(chain(&error));
    }
    found
}

async fn read_all(proc: &Path, kernel: NfTables, found: &mut ForeignRules) -> Result<(), FirewallError> {
    match kernel {
        NfTables::Present => read_nftables(found).await?,
        // iptables-legacy has all rules there are.
        NfTables::Missing => {}
    }
    read_legacy(proc, found).await
}

async fn read_nftables(found: &mut ForeignRules) -> Result<(), FirewallError> {
    let chains = chains().await?;
    if chains.len() > CHAINS {
        found.problem = Some(format!(
            "{} chains of other programs, of which {CHAINS} are read",
            chains.len()
        ));
    }
    for some in chains[..chains.len().min(CHAINS)].chunks(AT_ONCE) {
        let commands: Vec<String> = some.iter().map(|chain| format!("list chain {chain}")).collect();
        // A chain that was deleted meanwhile fails the call: each is read alone then.
        match run("nft", &["-s", &commands.join("; ")], None).await {
            Ok(text) => add_listed(&text, found),
            Err(_) => {
                for command in &commands {
                    match run("nft", &["-s", command], None).await {
                        Ok(text) => add_listed(&text, found),
                        Err(error) if chain(&error).contains("No such file or directory") => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
    }
    Ok(())
}

async fn read_legacy(proc: &Path, found: &mut ForeignRules) -> Result<(), FirewallError> {
    for backend in [FirewallBackend::IptablesLegacy, FirewallBackend::Ip6tablesLegacy] {
        for table in legacy_tables(proc, backend)? {
            let rules = save(backend, &table, |line| {
                let chain = line.strip_prefix("-A ").and_then(|rule| rule.split(' ').next());
                chain.is_some_and(|chain| !is_known("ip", &table, chain))
            })
            .await?;
            found.add(
                &format!("{} {table}", program(backend)),
                &rules,
                Notation::Iptables,
            );
        }
    }
    Ok(())
}

/// The chains of other programs: family, table and chain, as nft takes them.
async fn chains() -> Result<Vec<String>, FirewallError> {
    let mut chains = Vec::new();
    let mut table: Option<(String, String)> = None;
    lines("nft", &["list chains"], |line| {
        if let Some(named) = line.strip_prefix("table ") {
            let named = named.strip_suffix(" {").unwrap_or(named);
            table = named
                .split_once(' ')
                .map(|(family, name)| (family.to_owned(), name.to_owned()));
        } else if let (Some(named), Some((family, table))) = (line.strip_prefix("\tchain "), &table) {
            let name = named.strip_suffix(" {").unwrap_or(named);
            if !is_known(family, table, name) {
                chains.push(format!("{family} {table} {name}"));
            }
        }
        false
    })
    .await?;
    Ok(chains)
}

/// Adds the rules in a listing of chains.
fn add_listed(text: &str, found: &mut ForeignRules) {
    let mut table = "";
    let mut chain: Option<(String, Vec<String>)> = None;
    for line in text.lines() {
        if let Some(named) = line.strip_prefix("table ") {
            table = named.strip_suffix(" {").unwrap_or(named);
        } else if let Some(named) = line.strip_prefix("\tchain ") {
            let name = named.strip_suffix(" {").unwrap_or(named);
            chain = Some((format!("nft {table} {name}"), Vec::new()));
        } else if line == "\t}" {
            if let Some((name, rules)) = chain.take() {
                found.add(&name, &rules, Notation::Nft);
            }
        } else if let (Some(rule), Some((_, rules))) = (line.strip_prefix("\t\t"), &mut chain) {
            rules.push(rule.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_kernel_without_nf_tables_is_asked_for_legacy_tables_only() {
        let proc = tempfile::tempdir().unwrap();
        let net = proc.path().join("thread-self/net");
        std::fs::create_dir_all(&net).unwrap();
        assert_eq!(
            read_of(proc.path(), NfTables::Missing).await,
            ForeignRules::default()
        );
        std::fs::create_dir(net.join("ip_tables_names")).unwrap();
        let problem = read_of(proc.path(), NfTables::Missing).await.problem.unwrap();
        assert!(problem.contains("ip_tables_names"), "{problem}");
    }

    #[test]
    fn rules_of_a_listing_belong_to_their_chains() {
        let text = "table ip filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n\t\tiifname \"cni0\" \
                    counter packets 1 bytes 60 accept\n\t\tiifname \"cali*\" counter packets 0 bytes 0 accept\n\t}\n}\ntable inet \
                    firewalld {\n\tchain filter_FORWARD {\n\t\toifname \"flannel.1\" accept\n\t}\n}\n";
        let mut found = ForeignRules::default();
        add_listed(text, &mut found);
        assert_eq!(found.twins, 1);
        assert_eq!(found.rules.len(), 1);
        assert_eq!(found.rules[0].chain, "nft inet firewalld filter_FORWARD");
    }
}
