//! Reads flannel's chains, rules and tables, and deletes or restores them object by object, each in one transaction.

use std::path::Path;

use flannel_to_calico::facts::{FirewallBackend, FirewallObject};
use futures::future::join_all;

use super::FirewallError;
use super::backend::{chain, family, legacy_tables, load, program, save, transact};
use super::nftables::Nftables;
use crate::host::program::{LOCK_SECONDS, ProgramError, run};

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

/// The name of a chain that flannel owns or adds rules to; `None` for another chain.
pub(super) fn of_flannel(chain: &str) -> Option<&'static str> {
    let names = PLACES.iter().flat_map(|place| [place.base, place.own]);
    names.into_iter().find(|name| *name == chain)
}

/// flannel's objects, and for unreadable tables the reason.
pub(super) async fn list(
    proc: &Path,
    nft: &Nftables,
) -> Result<(Vec<FirewallObject>, Vec<String>), FirewallError> {
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
    let backends = [FirewallBackend::IptablesNft, FirewallBackend::Ip6tablesNft];
    let places: Vec<_> = backends
        .into_iter()
        .flat_map(|backend| PLACES.iter().map(move |place| (backend, place)))
        .collect();
    // At the same time: each is a program of its own.
    let read = places.iter().map(async |(backend, place)| {
        let exists = nft.has_chain(family(*backend), place.table, place.base);
        if exists {
            base_rules(*backend, place).await
        } else {
            Ok(Vec::new())
        }
    });
    let all = join_all(read).await;
    for ((backend, place), rules) in places.into_iter().zip(all) {
        let own = nft.has_chain(family(backend), place.table, place.own);
        if own {
            objects.push(object(backend, place, place.own));
        }
        match rules {
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
///
/// # Errors
///
/// The object is not one of flannel, or the program of the backend fails.
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
///
/// # Errors
///
/// The object is not one of flannel, or the program of the backend fails.
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
///
/// # Errors
///
/// The object is not one of flannel, or the program of the backend fails.
pub async fn restore(object: &FirewallObject, saved: &[String]) -> Result<(), FirewallError> {
    if object.backend == FirewallBackend::Nftables {
        native_table(object)?;
        load(&format!("{}\n", saved.join("\n"))).await?;
        return Ok(());
    }
    transact(object.backend, &restoration(place(object)?, &object.chain, saved)).await?;
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

#[cfg(test)]
mod tests;
