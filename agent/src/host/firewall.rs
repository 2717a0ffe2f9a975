//! flannel's chains, rules and tables in every firewall backend of the kernel. Reads them, and deletes them one
//! object at a time in one transaction each; a rule of anybody else is never named.

pub mod calico;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use plan::flannel_to_calico::facts::{FirewallBackend, FirewallObject};
use serde_json::Value;
use thiserror::Error;

use super::files::{FileError, read_small};
use super::program::{LOCK_SECONDS, ProgramError, command_line, run};

/// Where flannel works in an iptables table: the kernel's chain that it hooks, and its own chain.
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
/// Comments on the rules that flannel put straight into the kernel's chains before it had chains of its own.
const COMMENTS: [&str; 2] = [r#"--comment "flanneld masq""#, r#"--comment "flanneld forward""#];
/// flannel's tables in its nftables mode: family and name.
const TABLES: [(&str, &str); 2] = [("ip", "flannel-ipv4"), ("ip6", "flannel-ipv6")];

struct Place {
    table: &'static str,
    base: &'static str,
    own: &'static str,
}

/// Why the firewall could not be read or changed.
#[derive(Debug, Error)]
pub enum FirewallError {
    /// A program gave no answer.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The kernel's list of legacy tables could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A table that holds a chain of flannel's cannot be read by the program that wrote it.
    #[error(
        "chain {chain} is in table {table}, which iptables cannot read since somebody added rules with nft; \
         delete the chain and the jumps to it with nft"
    )]
    Incompatible {
        /// Family and name of the table.
        table: String,
        /// flannel's chain.
        chain: String,
    },
    /// An object that is no object of flannel's, or stands where none can be.
    #[error("{0} is not a chain or table of flannel's")]
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

/// What is in the firewall of the two networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    /// flannel's chains, rules and tables.
    pub flannel: Vec<FirewallObject>,
    /// Tables with something of Calico's in them, and Calico's own tables.
    pub calico: Vec<FirewallObject>,
}

/// Looks into every backend that the kernel holds.
pub async fn read(proc: &Path) -> Result<Firewall, FirewallError> {
    let nft = Nftables::read().await?;
    Ok(Firewall {
        flannel: flannel(proc, &nft).await?,
        calico: calico::list(proc, &nft).await?,
    })
}

async fn flannel(proc: &Path, nft: &Nftables) -> Result<Vec<FirewallObject>, FirewallError> {
    let mut objects: Vec<FirewallObject> = TABLES
        .iter()
        .filter(|(family, table)| nft.tables.contains(&((*family).to_owned(), (*table).to_owned())))
        .map(|(family, table)| FirewallObject {
            backend: FirewallBackend::Nftables,
            table: format!("{family} {table}"),
            chain: String::new(),
        })
        .collect();
    for backend in [FirewallBackend::IptablesNft, FirewallBackend::Ip6tablesNft] {
        let family = family(backend);
        for place in &PLACES {
            let own = nft
                .chains
                .contains(&(family.to_owned(), place.table.to_owned(), place.own.to_owned()));
            if own {
                objects.push(object(backend, place, place.own));
            }
            let base = (family.to_owned(), place.table.to_owned(), place.base.to_owned());
            if !nft.chains.contains(&base) {
                continue;
            }
            match base_rules(backend, place).await {
                Ok(rules) if rules.iter().any(|rule| is_tagged(rule, place)) => {
                    objects.push(object(backend, place, place.base));
                }
                Ok(_) => {}
                // No iptables, flannel's included, can have a living rule in such a table.
                Err(error) if is_incompatible(&error) && !own => {}
                Err(error) if is_incompatible(&error) => {
                    return Err(FirewallError::Incompatible {
                        table: format!("{family} {}", place.table),
                        chain: place.own.to_owned(),
                    });
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    for backend in [FirewallBackend::IptablesLegacy, FirewallBackend::Ip6tablesLegacy] {
        let tables = legacy_tables(proc, backend)?;
        for place in PLACES.iter().filter(|place| tables.contains(place.table)) {
            let saved = save(backend, place.table).await?;
            if saved
                .iter()
                .any(|line| line.starts_with(&format!(":{} ", place.own)))
            {
                objects.push(object(backend, place, place.own));
            }
            if saved.iter().any(|line| is_tagged(line, place)) {
                objects.push(object(backend, place, place.base));
            }
        }
    }
    objects.sort();
    Ok(objects)
}

/// The rules that an object consists of, and those that lead to it, in the words of the program that lists them.
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

/// Deletes one object: a chain with the jumps to it, the tagged rules of a kernel's chain, or a table.
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

/// Makes one object again, from the lines that [`rules`] gave. Rules in the kernel's chains come after those that are
/// there.
pub async fn restore(object: &FirewallObject, saved: &[String]) -> Result<(), FirewallError> {
    if object.backend == FirewallBackend::Nftables {
        native_table(object)?;
        run("nft", &["-f", "-"], Some(&format!("{}\n", saved.join("\n")))).await?;
        return Ok(());
    }
    transact(object.backend, &restoration(place(object)?, &object.chain, saved)).await?;
    Ok(())
}

/// One transaction: either all of it is done or nothing is. --noflush leaves every chain that is not named.
async fn transact(backend: FirewallBackend, script: &str) -> Result<(), ProgramError> {
    let restore = format!("{}-restore", program(backend));
    run(&restore, &["--noflush", "-w", LOCK_SECONDS], Some(script)).await?;
    Ok(())
}

/// What `iptables-restore --noflush` reads to make one object again.
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

/// What `iptables-restore --noflush` reads to delete one object.
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

/// The rules of the kernel's chain that belong to this object: jumps to flannel's chain, or tagged rules.
async fn own_rules(object: &FirewallObject, place: &Place) -> Result<Vec<String>, FirewallError> {
    let rules = base_rules(object.backend, place).await?;
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

/// The rules of one chain that is there. With the newer backend that is much cheaper than its table: of 10 000 Services, a second
/// instead of a quarter of a minute. With the legacy one it is not, and takes the lock.
pub async fn chain(backend: FirewallBackend, table: &str, chain: &str) -> Result<Vec<String>, ProgramError> {
    let arguments = ["-w", LOCK_SECONDS, "-t", table, "-S", chain];
    let text = run(program(backend), &arguments, None).await?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// The rules of one table, as the backend saves them.
pub async fn save(backend: FirewallBackend, table: &str) -> Result<Vec<String>, ProgramError> {
    let save = format!("{}-save", program(backend));
    let text = run(&save, &["-t", table], None).await?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// A rule that jumps to flannel's own chain.
fn jumps_to(rule: &str, place: &Place) -> bool {
    rule.starts_with(&format!("-A {} ", place.base))
        && [" -j ", " -g "]
            .iter()
            .any(|verb| rule.ends_with(&format!("{verb}{}", place.own)))
}

/// A rule of flannel's straight in the kernel's chain. A jump to flannel's own chain goes with that chain.
fn is_tagged(rule: &str, place: &Place) -> bool {
    rule.starts_with(&format!("-A {} ", place.base))
        && COMMENTS.iter().any(|comment| rule.contains(comment))
        && !jumps_to(rule, place)
}

fn is_incompatible(error: &ProgramError) -> bool {
    matches!(error, ProgramError::Refused { message, .. } if message.contains("is incompatible"))
}

/// Tables that the legacy backend of a family has. Asking that backend itself would create them.
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
            std::fs::metadata(&folder).map_err(FileError::of("look into folder", &folder))?;
            Ok(BTreeSet::new())
        }
        Err(error) => Err(FileError::of("read", &path)(error)),
    }
}

/// Tables and chains of nftables by name, without their rules: a node may have hundreds of thousands of those.
pub struct Nftables {
    /// Family and name.
    tables: BTreeSet<(String, String)>,
    /// Family, table and name.
    chains: BTreeSet<(String, String, String)>,
}

impl Nftables {
    /// Whether there is a table of this family and name.
    pub fn has_table(&self, family: &str, table: &str) -> bool {
        self.tables.contains(&(family.to_owned(), table.to_owned()))
    }

    /// Whether a table of this family has a chain of this name.
    pub fn has_chain(&self, family: &str, table: &str, chain: &str) -> bool {
        self.chains
            .contains(&(family.to_owned(), table.to_owned(), chain.to_owned()))
    }

    /// Looks which there are.
    pub async fn read() -> Result<Self, ProgramError> {
        let tables = list("tables", "table").await?;
        let chains = if tables.is_empty() {
            Vec::new()
        } else {
            list("chains", "chain").await?
        };
        let text = |object: &Value, key: &str| object[key].as_str().unwrap_or_default().to_owned();
        Ok(Self {
            tables: tables
                .iter()
                .map(|object| (text(object, "family"), text(object, "name")))
                .collect(),
            chains: chains
                .iter()
                .map(|object| {
                    (
                        text(object, "family"),
                        text(object, "table"),
                        text(object, "name"),
                    )
                })
                .collect(),
        })
    }
}

/// `nft -j list <what>`: the objects of this kind.
async fn list(what: &str, kind: &str) -> Result<Vec<Value>, ProgramError> {
    let arguments = ["-j", "list", what];
    let text = run("nft", &arguments, None).await?;
    let answer = |problem: String| ProgramError::Answer {
        command: command_line("nft", &arguments),
        problem,
    };
    let value: Value = serde_json::from_str(&text).map_err(|error| answer(error.to_string()))?;
    let objects = value["nftables"]
        .as_array()
        .ok_or_else(|| answer("no list \"nftables\"".to_owned()))?;
    Ok(objects
        .iter()
        .filter_map(|object| object.get(kind))
        .cloned()
        .collect())
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
    fn a_jump_goes_with_its_chain_and_a_tagged_rule_does_not() {
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
    fn the_deletion_names_the_jumps_and_the_chain_only() {
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
    fn what_was_deleted_is_made_again_the_chain_before_its_jumps() {
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
