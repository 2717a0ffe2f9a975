//! Reads flannel's chains, rules and tables in every firewall backend of the kernel, and deletes them object by object, each in
//! one transaction; rules of other programs are never touched.

pub mod calico;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use flannel_to_calico::facts::{FirewallBackend, FirewallObject};
use thiserror::Error;

use super::files::{FileError, read_small};
use super::program::{LOCK_SECONDS, ProgramError, command_line, lines, run};

/// Where flannel's rules are in an iptables table: the built-in chain, and flannel's own chain.
const PLACES: [Place; 2] = [
    Place {
        table: "nat",
        base: "POSTROUTING",
        own: "FLANNEL-POSTRTG",
    },
    Place {
        table: "filter",
        base: "FORWARD",
        own: "FLANNEL-FWD",
    },
];
/// Comments on the rules that older versions of flannel, without own chains, added to the built-in chains.
const COMMENTS: [&str; 2] = [r#"--comment "flanneld masq""#, r#"--comment "flanneld forward""#];
/// flannel's tables in its nftables mode: family and name.
const TABLES: [(&str, &str); 2] = [("ip", "flannel-ipv4"), ("ip6", "flannel-ipv6")];

struct Place {
    table: &'static str,
    base: &'static str,
    own: &'static str,
}

/// The firewall could not be read or changed.
#[derive(Debug, Error)]
pub enum FirewallError {
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The kernel's list of legacy tables could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A table with a chain of flannel cannot be read by iptables.
    #[error(
        "chain {chain} is in table {table}, which iptables cannot read because of rules added with nft: \
         delete the chain and the jumps to it with nft"
    )]
    Incompatible {
        /// Family and name of the table.
        table: String,
        /// flannel's chain.
        chain: String,
    },
    /// The object is not one of flannel's chains or tables.
    #[error("{0} is not a chain or table of flannel")]
    NotFlannel(String),
}

impl FirewallError {
    /// The category for metrics and status.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Program(error) => error.category(),
            Self::File(error) => error.category(),
            Self::Incompatible { .. } => "FirewallIncompatible",
            Self::NotFlannel(_) => "FirewallObject",
        }
    }
}

/// Objects of both networks in the firewall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    /// flannel's chains, rules and tables.
    pub flannel: Vec<FirewallObject>,
    /// Tables with a chain of flannel whose rules iptables cannot read, with the reason.
    pub unread: Vec<String>,
    /// Calico's own tables, and iptables tables that contain chains of Calico.
    pub calico: Vec<FirewallObject>,
}

/// Reads every backend of the kernel.
pub async fn read(proc: &Path) -> Result<Firewall, FirewallError> {
    let nft = Nftables::read(|chain| of_flannel(chain).or_else(|| calico::common_name(chain))).await?;
    let (flannel, unread) = flannel(proc, &nft).await?;
    Ok(Firewall {
        flannel,
        unread,
        calico: calico::list(proc, &nft).await?,
    })
}

/// The name of a chain that flannel owns or adds rules to; `None` for another chain.
fn of_flannel(chain: &str) -> Option<&'static str> {
    let names = PLACES.iter().flat_map(|place| [place.base, place.own]);
    names.into_iter().find(|name| *name == chain)
}

/// flannel's objects, and for unreadable tables the reason.
async fn flannel(proc: &Path, nft: &Nftables) -> Result<(Vec<FirewallObject>, Vec<String>), FirewallError> {
    let mut unread = Vec::new();
    let mut objects: Vec<FirewallObject> = TABLES
        .iter()
        .filter(|(family, table)| nft.has_table(family, table))
        .map(|(family, table)| FirewallObject {
            backend: FirewallBackend::Nftables,
            table: format!("{family} {table}"),
            chain: String::new(),
        })
        .collect();
    for backend in [FirewallBackend::IptablesNft, FirewallBackend::Ip6tablesNft] {
        let family = family(backend);
        for place in &PLACES {
            let own = nft.has_chain(family, place.table, place.own);
            if own {
                objects.push(object(backend, place, place.own));
            }
            if !nft.has_chain(family, place.table, place.base) {
                continue;
            }
            match base_rules(backend, place).await {
                Ok(rules) if rules.iter().any(|rule| is_tagged(rule, place)) => {
                    objects.push(object(backend, place, place.base));
                }
                Ok(_) => {}
                // No iptables rule, also none of flannel, can be in use in such a table.
                Err(error) if is_incompatible(&error) && !own => {}
                // The chain is known from nft, and stays reported until its table can be read or the user deletes the chain.
                Err(error) if is_incompatible(&error) => {
                    unread.push(incompatible(backend, place).to_string());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    for backend in [FirewallBackend::IptablesLegacy, FirewallBackend::Ip6tablesLegacy] {
        let tables = legacy_tables(proc, backend)?;
        for place in PLACES.iter().filter(|place| tables.contains(place.table)) {
            let saved = save(backend, place.table, |line| {
                declares(line, place) || is_tagged(line, place)
            })
            .await?;
            if saved.iter().any(|line| declares(line, place)) {
                objects.push(object(backend, place, place.own));
            }
            if saved.iter().any(|line| is_tagged(line, place)) {
                objects.push(object(backend, place, place.base));
            }
        }
    }
    objects.sort();
    Ok((objects, unread))
}

/// The rules of an object, and the jumps to it, as printed by the backend's program.
pub async fn rules(object: &FirewallObject) -> Result<Vec<String>, FirewallError> {
    if object.backend == FirewallBackend::Nftables {
        let (family, table) = native_table(object)?;
        let text = run("nft", &["-s", "list", "table", family, table], None).await?;
        return Ok(text.lines().map(str::to_owned).collect());
    }
    let place = place(object)?;
    let mut lines = own_rules(object, place).await?;
    if object.chain == place.own {
        let arguments = ["-w", LOCK_SECONDS, "-t", place.table, "-S", place.own];
        let text = run(program(object.backend), &arguments, None).await?;
        lines.extend(text.lines().map(str::to_owned));
    }
    Ok(lines)
}

/// Deletes one object: a chain with the jumps to it, the tagged rules of a built-in chain, or a table.
pub async fn delete(object: &FirewallObject) -> Result<(), FirewallError> {
    if object.backend == FirewallBackend::Nftables {
        let (family, table) = native_table(object)?;
        run("nft", &["delete", "table", family, table], None).await?;
        return Ok(());
    }
    let place = place(object)?;
    let script = deletion(place, &object.chain, &own_rules(object, place).await?);
    transact(object.backend, &script).await?;
    Ok(())
}

/// Restores one object from the output of [`rules`]. Rules in built-in chains are appended.
pub async fn restore(object: &FirewallObject, saved: &[String]) -> Result<(), FirewallError> {
    if object.backend == FirewallBackend::Nftables {
        native_table(object)?;
        run("nft", &["-f", "-"], Some(&format!("{}\n", saved.join("\n")))).await?;
        return Ok(());
    }
    transact(object.backend, &restoration(place(object)?, &object.chain, saved)).await?;
    Ok(())
}

/// Runs one transaction: either all of it is applied or nothing. --noflush keeps every chain that is not named.
async fn transact(backend: FirewallBackend, script: &str) -> Result<(), ProgramError> {
    let restore = format!("{}-restore", program(backend));
    run(&restore, &["--noflush", "-w", LOCK_SECONDS], Some(script)).await?;
    Ok(())
}

/// Input for `iptables-restore --noflush` that restores one object.
fn restoration(place: &Place, chain: &str, saved: &[String]) -> String {
    let own = format!("-A {} ", place.own);
    let rules = saved.iter().filter(|rule| rule.starts_with("-A "));
    let (of_chain, jumps): (Vec<&String>, Vec<&String>) = rules.partition(|rule| rule.starts_with(&own));
    let mut lines = vec![format!("*{}", place.table)];
    if chain == place.own {
        lines.push(format!(":{} - [0:0]", place.own));
    }
    lines.extend(of_chain.into_iter().chain(jumps).cloned());
    lines.push("COMMIT\n".to_owned());
    lines.join("\n")
}

/// Input for `iptables-restore --noflush` that deletes one object.
fn deletion(place: &Place, chain: &str, rules: &[String]) -> String {
    let mut lines = vec![format!("*{}", place.table)];
    lines.extend(
        rules
            .iter()
            .filter_map(|rule| rule.strip_prefix("-A "))
            .map(|rest| format!("-D {rest}")),
    );
    if chain == place.own {
        lines.extend([format!("-F {chain}"), format!("-X {chain}")]);
    }
    lines.push("COMMIT\n".to_owned());
    lines.join("\n")
}

/// The rules of the built-in chain that belong to this object: jumps to flannel's chain, or tagged rules.
async fn own_rules(object: &FirewallObject, place: &Place) -> Result<Vec<String>, FirewallError> {
    let rules = base_rules(object.backend, place).await.map_err(|error| {
        if is_incompatible(&error) {
            incompatible(object.backend, place)
        } else {
            error.into()
        }
    })?;
    Ok(rules
        .into_iter()
        .filter(|rule| {
            if object.chain == place.own {
                jumps_to(rule, place)
            } else {
                is_tagged(rule, place)
            }
        })
        .collect())
}

async fn base_rules(backend: FirewallBackend, place: &Place) -> Result<Vec<String>, ProgramError> {
    chain(backend, place.table, place.base).await
}

/// The rules of one existing chain. With the nft backend, one chain is much cheaper than its table: with 10 000 Services, one
/// second instead of 15 seconds. With the legacy backend it is not cheaper, and takes the lock.
pub async fn chain(backend: FirewallBackend, table: &str, chain: &str) -> Result<Vec<String>, ProgramError> {
    let arguments = ["-w", LOCK_SECONDS, "-t", table, "-S", chain];
    lines(program(backend), &arguments, |_| true).await
}

/// The lines of one saved table that `keep` selects: with the legacy backend a table contains all rules of a node.
pub async fn save(
    backend: FirewallBackend,
    table: &str,
    keep: impl FnMut(&str) -> bool,
) -> Result<Vec<String>, ProgramError> {
    let save = format!("{}-save", program(backend));
    lines(&save, &["-t", table], keep).await
}

/// Whether a saved line declares flannel's own chain.
fn declares(line: &str, place: &Place) -> bool {
    let rest = line
        .strip_prefix(':')
        .and_then(|line| line.strip_prefix(place.own));
    rest.is_some_and(|rest| rest.starts_with(' '))
}

/// Whether a rule of the built-in chain jumps to flannel's own chain.
fn jumps_to(rule: &str, place: &Place) -> bool {
    is_in_base(rule, place)
        && [" -j ", " -g "]
            .iter()
            .any(|verb| rule.ends_with(&format!("{verb}{}", place.own)))
}

/// Whether a rule of the built-in chain has a comment of flannel. A jump to flannel's own chain belongs to that chain instead.
fn is_tagged(rule: &str, place: &Place) -> bool {
    is_in_base(rule, place) && COMMENTS.iter().any(|comment| rule.contains(comment)) && !jumps_to(rule, place)
}

fn is_in_base(rule: &str, place: &Place) -> bool {
    let rest = rule
        .strip_prefix("-A ")
        .and_then(|rule| rule.strip_prefix(place.base));
    rest.is_some_and(|rest| rest.starts_with(' '))
}

fn incompatible(backend: FirewallBackend, place: &Place) -> FirewallError {
    FirewallError::Incompatible {
        table: format!("{} {}", family(backend), place.table),
        chain: place.own.to_owned(),
    }
}

fn is_incompatible(error: &ProgramError) -> bool {
    matches!(error, ProgramError::Refused { message, .. } if message.contains("is incompatible"))
}

/// Tables of the legacy backend of a family. Listing them with that backend's own program would create them.
pub fn legacy_tables(proc: &Path, backend: FirewallBackend) -> Result<BTreeSet<String>, FileError> {
    let name = if backend == FirewallBackend::Ip6tablesLegacy {
        "ip6_tables_names"
    } else {
        "ip_tables_names"
    };
    let folder = proc.join("thread-self/net");
    let path = folder.join(name);
    match read_small(&path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::metadata(&folder).map_err(FileError::of("access folder", &folder))?;
            Ok(BTreeSet::new())
        }
        Err(error) => Err(FileError::of("read", &path)(error)),
    }
}

/// Names of all nftables tables, and of the selected chains, without rules: a node may have hundreds of thousands of chains.
#[derive(Debug, Default)]
pub struct Nftables {
    /// Family and name.
    tables: BTreeSet<(String, String)>,
    /// Family, table, and the common name of the selected chain.
    chains: BTreeSet<(String, String, &'static str)>,
}

impl Nftables {
    /// Whether a table of this family and name exists.
    pub fn has_table(&self, family: &str, table: &str) -> bool {
        self.tables.contains(&(family.to_owned(), table.to_owned()))
    }

    /// Whether a table of this family has a chain with this common name.
    pub fn has_chain(&self, family: &str, table: &str, chain: &'static str) -> bool {
        self.chains
            .contains(&(family.to_owned(), table.to_owned(), chain))
    }

    /// Reads tables and chains. `select` returns the common name for a selected chain: of several chains with one common name,
    /// each table has one entry.
    ///
    /// Reads nft's text output, not JSON: its lines are read one by one, so that at most one of hundreds of thousands of chains
    /// is held.
    pub async fn read(select: impl Fn(&str) -> Option<&'static str>) -> Result<Self, ProgramError> {
        let mut found = Self::default();
        for what in ["tables", "chains"] {
            let arguments = ["list", what];
            let (mut table, mut problem) = (None, None);
            lines("nft", &arguments, |line| {
                if found.take(line, &mut table, &select).is_none() {
                    problem.get_or_insert_with(|| format!("line {line:?}"));
                }
                false
            })
            .await?;
            if let Some(problem) = problem {
                return Err(ProgramError::Answer {
                    command: command_line("nft", &arguments),
                    problem,
                });
            }
            if found.tables.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    /// Parses one line: `table ip nat`, with or without `{` at its end; `chain POSTROUTING {` in a table; the content of a chain,
    /// a closing bracket, or a comment. `None` for any other line.
    fn take(
        &mut self,
        line: &str,
        table: &mut Option<(String, String)>,
        select: impl Fn(&str) -> Option<&'static str>,
    ) -> Option<()> {
        if let Some(named) = line.strip_prefix("table ") {
            let (family, name) = named.strip_suffix(" {").unwrap_or(named).split_once(' ')?;
            let named = (family.to_owned(), name.to_owned());
            self.tables.insert(named.clone());
            *table = Some(named);
        } else if let Some(named) = line.strip_prefix("\tchain ") {
            let (family, table) = table.as_ref()?;
            if let Some(known) = select(named.strip_suffix(" {")?) {
                self.chains.insert((family.clone(), table.clone(), known));
            }
        } else if !["\t\t", "\t}", "}", "#"]
            .iter()
            .any(|start| line.starts_with(start))
            && !line.trim().is_empty()
        {
            return None;
        }
        Some(())
    }
}

fn object(backend: FirewallBackend, place: &Place, chain: &str) -> FirewallObject {
    FirewallObject {
        backend,
        table: place.table.to_owned(),
        chain: chain.to_owned(),
    }
}

fn place(object: &FirewallObject) -> Result<&'static Place, FirewallError> {
    PLACES
        .iter()
        .find(|place| {
            place.table == object.table && (place.own == object.chain || place.base == object.chain)
        })
        .ok_or_else(|| FirewallError::NotFlannel(format!("{object:?}")))
}

fn native_table(object: &FirewallObject) -> Result<(&'static str, &'static str), FirewallError> {
    TABLES
        .into_iter()
        .find(|(family, table)| object.table == format!("{family} {table}"))
        .ok_or_else(|| FirewallError::NotFlannel(format!("{object:?}")))
}

fn family(backend: FirewallBackend) -> &'static str {
    match backend {
        FirewallBackend::IptablesNft | FirewallBackend::IptablesLegacy | FirewallBackend::Nftables => "ip",
        FirewallBackend::Ip6tablesNft | FirewallBackend::Ip6tablesLegacy => "ip6",
    }
}

fn program(backend: FirewallBackend) -> &'static str {
    match backend {
        FirewallBackend::IptablesNft => "iptables-nft",
        FirewallBackend::Ip6tablesNft => "ip6tables-nft",
        FirewallBackend::IptablesLegacy => "iptables-legacy",
        FirewallBackend::Ip6tablesLegacy => "ip6tables-legacy",
        FirewallBackend::Nftables => "nft",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAT: &Place = &PLACES[0];

    #[test]
    fn a_jump_belongs_to_its_chain_and_a_tagged_rule_does_not() {
        let jump = r#"-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG"#;
        let tagged = r#"-A POSTROUTING -s 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN"#;
        let foreign = r#"-A POSTROUTING -m comment --comment "not flanneld masq" -j MASQUERADE"#;
        let elsewhere = r#"-A OUTPUT -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG"#;
        assert!(jumps_to(jump, NAT) && !is_tagged(jump, NAT));
        assert!(is_tagged(tagged, NAT) && !jumps_to(tagged, NAT));
        assert!(!is_tagged(foreign, NAT) && !jumps_to(foreign, NAT));
        assert!(!is_tagged(elsewhere, NAT) && !jumps_to(elsewhere, NAT));
    }

    #[test]
    fn a_declaration_of_flannels_chain_differs_from_chains_with_the_same_start() {
        assert!(declares(":FLANNEL-POSTRTG - [0:0]", NAT));
        for other in [
            ":FLANNEL-POSTRTG-OLD - [0:0]",
            ":FLANNEL-FWD - [0:0]",
            "-A FLANNEL-POSTRTG -j RETURN",
            "FLANNEL-POSTRTG - [0:0]",
        ] {
            assert!(!declares(other, NAT), "{other}");
        }
        let other = r#"-A POSTROUTING-OLD -m comment --comment "flanneld masq" -j RETURN"#;
        assert!(!is_tagged(other, NAT));
    }

    fn listed(text: &str) -> Option<Nftables> {
        let (mut found, mut table) = (Nftables::default(), None);
        let select = |chain: &str| of_flannel(chain).or_else(|| calico::common_name(chain));
        for line in text.lines() {
            found.take(line, &mut table, select)?;
        }
        Some(found)
    }

    /// kube-proxy has a chain for each port of a Service, and Felix some for each pod.
    #[test]
    fn only_selected_chains_are_kept() {
        let chains = |start: &str| -> String {
            let chain = |number: u32| format!("\tchain {start}{number} {{\n\t}}\n");
            (0..1_000).map(chain).collect()
        };
        let text = [
            "table ip nat {\n\tchain POSTROUTING {\n\t\tcomment \"x\"\n",
            "\t\ttype nat hook postrouting priority srcnat; policy accept;\n\t}\n",
            &chains("KUBE-SVC-"),
            "}\ntable ip filter {\n",
            &chains("cali-pi-_"),
            "}\ntable ip6 calico {\n}\n",
        ]
        .concat();
        let found = listed(&text).unwrap();
        assert!(found.has_table("ip", "nat") && found.has_table("ip6", "calico"));
        assert!(!found.has_table("ip6", "nat"));
        assert!(found.has_chain("ip", "nat", "POSTROUTING") && found.has_chain("ip", "filter", "cali-"));
        assert!(!found.has_chain("ip", "nat", "cali-") && !found.has_chain("ip", "filter", "POSTROUTING"));
        assert_eq!(found.chains.len(), 2);
        assert!(
            listed("# Warning\ntable ip nat\ntable inet a_b\n")
                .unwrap()
                .has_table("inet", "a_b")
        );
    }

    #[test]
    fn an_unknown_listing_is_an_error() {
        for text in [
            "{\"nftables\": []}",
            "\tchain POSTROUTING {",
            "table nat",
            "table ip nat {\n\tchain POSTROUTING",
        ] {
            assert!(listed(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_deletion_contains_only_the_chain_and_its_jumps() {
        let jump = r#"-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG"#.to_owned();
        assert_eq!(
            deletion(NAT, NAT.own, &[jump]),
            "*nat\n-D POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG\n\
             -F FLANNEL-POSTRTG\n-X FLANNEL-POSTRTG\nCOMMIT\n"
        );
        assert_eq!(
            deletion(NAT, NAT.base, &["-A POSTROUTING -j RETURN".to_owned()]),
            "*nat\n-D POSTROUTING -j RETURN\nCOMMIT\n"
        );
    }

    #[test]
    fn a_restoration_adds_the_chain_before_its_jumps() {
        let jump = r#"-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG"#.to_owned();
        let saved = [
            jump.clone(),
            "-N FLANNEL-POSTRTG".to_owned(),
            "-A FLANNEL-POSTRTG -j RETURN".to_owned(),
        ];
        assert_eq!(
            restoration(NAT, NAT.own, &saved),
            format!("*nat\n:FLANNEL-POSTRTG - [0:0]\n-A FLANNEL-POSTRTG -j RETURN\n{jump}\nCOMMIT\n")
        );
        assert_eq!(
            restoration(NAT, NAT.base, &["-A POSTROUTING -j RETURN".to_owned()]),
            "*nat\n-A POSTROUTING -j RETURN\nCOMMIT\n"
        );
    }

    #[test]
    fn only_objects_of_flannel_are_deleted() {
        let foreign = FirewallObject {
            backend: FirewallBackend::Nftables,
            table: "ip kube-proxy".to_owned(),
            chain: String::new(),
        };
        assert!(native_table(&foreign).is_err());
        let foreign = FirewallObject {
            backend: FirewallBackend::IptablesNft,
            table: "nat".to_owned(),
            chain: "KUBE-POSTROUTING".to_owned(),
        };
        assert!(place(&foreign).is_err());
    }
}
