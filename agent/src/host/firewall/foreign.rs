//! Rules of other programs that name the links of flannel: reads them chain by chain, without those of kube-proxy, of which a node may
//! have hundreds of thousands, and writes and removes their twins for the links of Calico.

mod scripts;

use std::collections::BTreeMap;
use std::path::Path;

use flannel_to_calico::facts::FirewallBackend;
use flannel_to_calico::foreign_rules::{ChainTwins, ForeignRules, Notation, TwinOf, is_known};
use runtime::error::chain;

use self::scripts::{Mode, Place, Scripts, Twin, each};
use super::FirewallError;
use super::backend::{self, legacy_tables, program, save};
use crate::host::netlink::{NfTables, nf_tables};
use crate::host::program::{lines, run};

/// Most chains that are read: firewalld has some hundred.
const CHAINS: usize = 2000;
/// Chains in one call of nft.
const AT_ONCE: usize = 100;
/// Tables that iptables manages: a rule there that iptables does not know is lost at its next change, or matches more.
const IPTABLES_TABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
/// Parts of the names of links of both networks, in rules as nft prints them.
const LINKS: [&str; 5] = [
    "\"cni0\"",
    "\"flannel",
    "\"cali",
    "\"vxlan.calico",
    "\"vxlan-v6.calico",
];

/// The rules of other programs that name the links of flannel.
#[derive(Clone, Debug, Default)]
pub struct Foreign {
    /// The report about them.
    pub report: ForeignRules,
    missing: Vec<Twin>,
    written: Vec<Twin>,
}

impl Foreign {
    /// Whether the twins differ from those that are wanted: the kinds of twins that the agent keeps.
    pub fn differs(&self, wanted: &[TwinOf]) -> bool {
        self.missing.iter().any(|twin| wanted.contains(&twin.of))
            || self.written.iter().any(|twin| !wanted.contains(&twin.of))
    }

    /// Writes the missing twins of these kinds, each directly after its rule, and removes those of other kinds that the agent has
    /// written. A refused one does not keep the others from that. Returns the problems, one text for each twin.
    pub async fn keep(&self, wanted: &[TwinOf]) -> Vec<String> {
        let missing = self.missing.iter().filter(|twin| wanted.contains(&twin.of));
        let surplus = self.written.iter().filter(|twin| !wanted.contains(&twin.of));
        let missing: Vec<&Twin> = missing.collect();
        let mut problems = each(&missing, Scripts::to_write, Mode::Change).await;
        problems.extend(each(&surplus.collect::<Vec<_>>(), Scripts::to_remove, Mode::Change).await);
        let texts = problems
            .into_iter()
            .map(|(twin, problem)| format!("{}: {problem}", twin.text));
        texts.collect()
    }

    fn add(&mut self, name: &str, rules: &[String], notation: Notation, place: impl Fn(usize) -> Place) {
        let found = ChainTwins::of(rules, notation);
        self.report.add(name, &found);
        let missing = found.missing.into_iter().filter_map(|(index, missing)| {
            Some(Twin {
                of: missing.of,
                place: place(index),
                text: missing.marked?,
                plain: missing.twin,
            })
        });
        self.missing.extend(missing);
        let written = found.written.into_iter().filter_map(|(index, of)| {
            Some(Twin {
                of,
                place: place(index),
                text: rules.get(index)?.clone(),
                plain: String::new(),
            })
        });
        self.written.extend(written);
    }

    /// Adds the rules of some chains of one table of iptables, in the order of the table.
    fn add_iptables(&mut self, backend: FirewallBackend, table: &str, rules: &[String]) {
        let mut chains: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for rule in rules {
            let chain = rule.strip_prefix("-A ").and_then(|rule| rule.split(' ').next());
            if let Some(chain) = chain {
                chains.entry(chain).or_default().push(rule.clone());
            }
        }
        for rules in chains.values() {
            let place = |index| Place::Iptables {
                backend,
                table: table.to_owned(),
                number: index + 1,
            };
            self.add(
                &format!("{} {table}", program(backend)),
                rules,
                Notation::Iptables,
                place,
            );
        }
    }

    /// Tries, without a change, whether each twin could be written.
    async fn try_twins(&mut self) {
        let all: Vec<&Twin> = self.missing.iter().collect();
        let refused = each(&all, Scripts::to_write, Mode::Try).await;
        let refused: Vec<(TwinOf, String, String)> = refused
            .into_iter()
            .map(|(twin, problem)| (twin.of, twin.plain.clone(), problem))
            .collect();
        for (of, twin, problem) in refused {
            self.report.refuse(of, &twin, &problem);
        }
    }
}

/// The rules, or why they could not be read.
pub async fn read(proc: &Path) -> Foreign {
    read_of(proc, nf_tables()).await
}

async fn read_of(proc: &Path, kernel: NfTables) -> Foreign {
    let mut found = Foreign::default();
    if let Err(error) = read_all(proc, kernel, &mut found).await {
        found.report.problem = Some(chain(&error));
    }
    if !found.missing.is_empty() {
        found.try_twins().await;
    }
    found
}

async fn read_all(proc: &Path, kernel: NfTables, found: &mut Foreign) -> Result<(), FirewallError> {
    match kernel {
        NfTables::Present => read_nftables(found).await?,
        // iptables-legacy has all rules there are.
        NfTables::Missing => {}
    }
    read_legacy(proc, found).await
}

async fn read_nftables(found: &mut Foreign) -> Result<(), FirewallError> {
    let chains = chains().await?;
    if chains.len() > CHAINS {
        found.report.problem = Some(format!(
            "{} chains of other programs, of which {CHAINS} are read",
            chains.len()
        ));
    }
    for some in chains[..chains.len().min(CHAINS)].chunks(AT_ONCE) {
        let commands: Vec<String> = some.iter().map(|chain| format!("list chain {chain}")).collect();
        // A chain that was deleted meanwhile fails the call: each is read alone then.
        match run("nft", &["-s", "-a", &commands.join("; ")], None).await {
            Ok(text) => add_listed(&text, found).await?,
            Err(_) => {
                for command in &commands {
                    match run("nft", &["-s", "-a", command], None).await {
                        Ok(text) => add_listed(&text, found).await?,
                        Err(error) if chain(&error).contains("No such file or directory") => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
    }
    Ok(())
}

async fn read_legacy(proc: &Path, found: &mut Foreign) -> Result<(), FirewallError> {
    for backend in [FirewallBackend::IptablesLegacy, FirewallBackend::Ip6tablesLegacy] {
        for table in legacy_tables(proc, backend)? {
            let rules = save(backend, &table, |line| {
                let chain = line.strip_prefix("-A ").and_then(|rule| rule.split(' ').next());
                chain.is_some_and(|chain| !is_known("ip", &table, chain))
            })
            .await?;
            found.add_iptables(backend, &table, &rules);
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

/// A chain in a listing of nft.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    /// Family, table and name.
    chain: String,
    /// Rules, each with its handle.
    rules: Vec<(String, String)>,
}

impl Listed {
    fn names_links(&self) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|(rule, _)| LINKS.iter().any(|link| rule.contains(link)))
    }

    /// Backend and table, if iptables may manage the chain.
    fn of_iptables(&self) -> Option<(FirewallBackend, &str, &str)> {
        let mut words = self.chain.splitn(3, ' ');
        let backend = match words.next()? {
            "ip" => FirewallBackend::IptablesNft,
            "ip6" => FirewallBackend::Ip6tablesNft,
            _ => return None,
        };
        let (table, name) = (words.next()?, words.next()?);
        IPTABLES_TABLES.contains(&table).then_some((backend, table, name))
    }
}

/// Adds the rules in a listing of chains.
async fn add_listed(text: &str, found: &mut Foreign) -> Result<(), FirewallError> {
    for listed in listed(text).iter().filter(|listed| listed.names_links()) {
        if let Some((backend, table, name)) = listed.of_iptables() {
            match backend::chain(backend, table, name).await {
                Ok(rules) => {
                    found.add_iptables(backend, table, &rules);
                    continue;
                }
                // A table of nft alone.
                Err(error) if chain(&error).contains("incompatible") => {}
                Err(error) => return Err(error.into()),
            }
        }
        let (rules, handles): (Vec<String>, Vec<String>) = listed.rules.iter().cloned().unzip();
        let place = |index: usize| Place::Nft {
            chain: listed.chain.clone(),
            handle: handles.get(index).cloned().unwrap_or_default(),
        };
        found.add(&format!("nft {}", listed.chain), &rules, Notation::Nft, place);
    }
    Ok(())
}

/// The chains of a listing with handles.
fn listed(text: &str) -> Vec<Listed> {
    let mut table = "";
    let mut chains: Vec<Listed> = Vec::new();
    let head = |named: &'_ str| -> usize { named.find(" {").unwrap_or(named.len()) };
    for line in text.lines() {
        if let Some(named) = line.strip_prefix("table ") {
            table = &named[..head(named)];
        } else if let Some(named) = line.strip_prefix("\tchain ") {
            chains.push(Listed {
                chain: format!("{table} {}", &named[..head(named)]),
                rules: Vec::new(),
            });
        } else if let (Some(rule), Some(chain)) = (line.strip_prefix("\t\t"), chains.last_mut())
            && let Some((rule, handle)) = rule.rsplit_once(" # handle ")
        {
            chain.rules.push((rule.to_owned(), handle.to_owned()));
        }
    }
    chains
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
            read_of(proc.path(), NfTables::Missing).await.report,
            ForeignRules::default()
        );
        std::fs::create_dir(net.join("ip_tables_names")).unwrap();
        let found = read_of(proc.path(), NfTables::Missing).await;
        let problem = found.report.problem.unwrap();
        assert!(problem.contains("ip_tables_names"), "{problem}");
    }

    #[test]
    fn rules_of_a_listing_belong_to_their_chains() {
        let text = "table ip filter {\n\tchain FORWARD { # handle 1\n\t\ttype filter hook forward priority filter; policy drop;\n\t\tiifname \
                    \"cni0\" counter accept # handle 7\n\t}\n}\ntable inet firewalld {\n\tchain filter_FORWARD { # handle 3\n\t\toifname \
                    \"flannel.1\" accept comment \"a # b\" # handle 12\n\t}\n}\n";
        let rule = |rule: &str, handle: &str| (rule.to_owned(), handle.to_owned());
        let expected = [
            Listed {
                chain: "ip filter FORWARD".to_owned(),
                rules: vec![rule(r#"iifname "cni0" counter accept"#, "7")],
            },
            Listed {
                chain: "inet firewalld filter_FORWARD".to_owned(),
                rules: vec![rule(r#"oifname "flannel.1" accept comment "a # b""#, "12")],
            },
        ];
        assert_eq!(listed(text), expected);
        assert!(expected[0].of_iptables().is_some() && expected[1].of_iptables().is_none());
    }

    #[test]
    fn twins_are_written_from_the_last_rule_to_the_first() {
        let mut found = Foreign::default();
        let rules = [
            "-A FORWARD -i eth0 -j DROP",
            "-A FORWARD -i cni0 -j ACCEPT",
            "-A INPUT -i cni0 -j DROP",
            "-A FORWARD -o cni0 -j ACCEPT",
        ]
        .map(str::to_owned);
        found.add_iptables(FirewallBackend::IptablesLegacy, "filter", &rules);
        let calico: Vec<&Twin> = found
            .missing
            .iter()
            .filter(|twin| twin.of == TwinOf::Calico)
            .collect();
        let scripts = Scripts::to_write(&calico);
        let key = (FirewallBackend::IptablesLegacy, "filter".to_owned());
        let mark = "-m comment --comment replumb-twin";
        assert_eq!(
            scripts.iptables[&key],
            format!(
                "-I INPUT 2 -i cali+ -j DROP {mark}\n-I FORWARD 4 -o cali+ -j ACCEPT {mark}\n-I FORWARD 3 -i cali+ -j ACCEPT {mark}\n"
            )
        );
        assert_eq!(scripts.nft, "");
    }
}
