//! Rules of nftables while links change: packets of some connections are held back, and new connections have a fixed translation.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use policy::conntrack::Tuple;

use super::Change;
use crate::host::firewall::{load, without};
use crate::host::netlink::conntrack::TrackedConnection;
use crate::host::program::ProgramError;

/// The table that holds back packets.
const HELD_BACK: &str = "inet replumb";
/// The tables of translations: family, and whether it is IPv4.
const TRANSLATED: [(&str, bool); 2] = [("ip", true), ("ip6", false)];
/// After fragments are put together, before everything that tracks connections.
const BEFORE_TRACKING: i32 = -350;
/// Before the rules of other programs that translate sources (`srcnat` is 100): the first translation of a connection counts.
const BEFORE_OTHERS: i32 = 90;

/// Holds back the packets of these connections, in both directions; the sender repeats what was dropped. Each element expires after
/// one second: an agent that is killed holds nothing back.
///
/// # Errors
///
/// nft fails.
pub(super) async fn hold_back(connections: &[TrackedConnection]) -> Result<(), ProgramError> {
    load(&holding(connections)).await
}

/// Lets all packets pass.
///
/// # Errors
///
/// nft fails.
pub(super) async fn let_pass() -> Result<(), ProgramError> {
    load(&without(HELD_BACK)).await
}

/// Gives new connections that will be masqueraded a fixed translation.
///
/// # Errors
///
/// nft fails.
pub(super) async fn translate(change: &Change, marks: &BTreeSet<u32>) -> Result<(), ProgramError> {
    load(&translating(change, marks)).await
}

/// Removes all rules of this module, also those of an agent that was killed.
///
/// # Errors
///
/// nft fails.
pub(super) async fn remove() -> Result<(), ProgramError> {
    load(&removal()).await
}

fn removal() -> String {
    let translated = TRANSLATED.map(|(family, _)| without(&format!("{family} replumb")));
    without(HELD_BACK) + &translated.concat()
}

fn holding(connections: &[TrackedConnection]) -> String {
    let mut text = without(HELD_BACK);
    let _ = writeln!(text, "add table {HELD_BACK}");
    for hook in ["prerouting", "output"] {
        let _ = writeln!(
            text,
            "add chain {HELD_BACK} {hook} {{ type filter hook {hook} priority {BEFORE_TRACKING}; }}"
        );
    }
    for (set, family, kind) in [("ipv4", "ip", "ipv4_addr"), ("ipv6", "ip6", "ipv6_addr")] {
        let elements: Vec<String> = connections
            .iter()
            .flat_map(|connection| [connection.original, connection.reply])
            .filter(|tuple| tuple.source.is_ipv4() == (family == "ip"))
            .map(|tuple| element(&tuple))
            .collect();
        if elements.is_empty() {
            continue;
        }
        let _ = writeln!(
            text,
            "add set {HELD_BACK} {set} {{ type {kind} . inet_service . {kind} . inet_service; flags timeout; timeout 1s; }}\n\
             add element {HELD_BACK} {set} {{ {} }}",
            elements.join(", ")
        );
        for hook in ["prerouting", "output"] {
            let _ = writeln!(
                text,
                "add rule {HELD_BACK} {hook} {family} saddr . tcp sport . {family} daddr . tcp dport @{set} drop"
            );
        }
    }
    text
}

fn element(tuple: &Tuple) -> String {
    let Tuple {
        source,
        destination,
        source_port,
        destination_port,
    } = tuple;
    format!("{source} . {source_port} . {destination} . {destination_port}")
}

fn translating(change: &Change, marks: &BTreeSet<u32>) -> String {
    let mut text = removal();
    let links = list(change.links.iter().map(|link| format!("\"{link}\"")));
    for (family, is_ipv4) in TRANSLATED {
        let source = change.source.iter().find(|source| is_usable(source, is_ipv4));
        let destinations = change.destinations.iter();
        let destinations = destinations.filter(|network| network.addr().is_ipv4() == is_ipv4);
        let destinations = list(destinations.map(ToString::to_string));
        let (Some(source), false) = (source, destinations.is_empty() || marks.is_empty()) else {
            continue;
        };
        let table = format!("{family} replumb");
        let _ = writeln!(
            text,
            "add table {table}\n\
             add chain {table} postrouting {{ type nat hook postrouting priority {BEFORE_OTHERS}; }}"
        );
        for mark in marks {
            // Without the mark, as after a rule of kube-proxy: the packets of a tunnel have the mark of what they carry.
            let _ = writeln!(
                text,
                "add rule {table} postrouting oifname {{ {links} }} {family} daddr {{ {destinations} }} \
                 meta mark & {mark:#x} == {mark:#x} meta mark set meta mark & {:#x} snat to {source}",
                !mark
            );
        }
    }
    text
}

/// Whether an address can be the source of connections of a family.
fn is_usable(address: &IpAddr, is_ipv4: bool) -> bool {
    match address {
        IpAddr::V4(_) => is_ipv4,
        IpAddr::V6(address) => !is_ipv4 && !address.is_unicast_link_local(),
    }
}

fn list(of: impl Iterator<Item = String>) -> String {
    of.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
