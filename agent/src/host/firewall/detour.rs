//! A way around a bridge while a link joins or leaves it. In this moment, some 15 µs, the kernel drops each frame that arrives on the
//! link: the port is not forwarding, and still takes the frames (`del_nbp` and `br_add_if` of Linux). Rules before the bridge send
//! these packets through the loopback interface, from which the host routes them.
//!
//! The rules are a chain of replumb's table of frames. If the reverse path filter of the loopback interface had to be changed, the name
//! of the chain ends with its value before: an agent that was killed finds it there.

use std::path::{Path, PathBuf};

use flannel_to_calico::host::DETOUR;

use super::FirewallError;
use super::frames::{self, FAMILY, TABLE};
use crate::host::files::{self, FileError};
use crate::host::program::{ProgramError, run};
use crate::host::sysctl;

/// After the rules that accept frames.
const PRIORITY: &str = "-490";
const LOOPBACK: &str = "lo";
/// A strict and a loose reverse path filter: the way back to a pod is not the loopback interface.
const STRICT: &str = "1";
const LOOSE: &str = "2";

/// Changes which links belong to a bridge, and loses no unicast packet that arrives on them. `sysctl` is the folder of the parameters
/// of the network, `existing` are the chains of replumb's table of frames.
///
/// A kernel without the expression `fwd` of nftables makes the change without a detour; the log says so.
///
/// # Errors
///
/// nft fails, or a parameter cannot be read or written. Errors of the change itself are in the result.
pub async fn around<E>(
    links: &[&str],
    sysctl: &Path,
    existing: &[String],
    change: impl AsyncFnOnce() -> Result<(), E>,
) -> Result<Result<(), E>, FirewallError> {
    if links.is_empty() {
        return Ok(change().await);
    }
    let filter = filter_to_change(sysctl)?;
    let chain = format!("{DETOUR}{}", filter.as_deref().unwrap_or_default());
    nft(&chain_of(&chain, links)).await?;
    let begun = begin(&chain, filter.is_some(), sysctl).await;
    let made = match begun {
        Ok(()) => Ok(change().await),
        Err(error) => Err(error),
    };
    let all = [existing, std::slice::from_ref(&chain)].concat();
    let ended = end(&chain, sysctl, &all).await;
    let made = made?;
    ended?;
    Ok(made)
}

/// Whether this chain of replumb's table of frames is a detour.
pub fn is_detour(chain: &str) -> bool {
    chain.starts_with(DETOUR)
}

/// Ends a detour: deletes its rules, restores the reverse path filter, deletes the chain. `existing` are all chains of the table.
///
/// # Errors
///
/// nft fails, or the parameter cannot be written.
pub async fn end(chain: &str, sysctl: &Path, existing: &[String]) -> Result<(), FirewallError> {
    nft(&format!("flush chain {FAMILY} {TABLE} {chain}\n")).await?;
    if let Some(value) = chain.strip_prefix(DETOUR).filter(|value| !value.is_empty()) {
        sysctl::write(&filter(sysctl), value)?;
    }
    Ok(frames::stop_accepting(&[chain.to_owned()], existing).await?)
}

/// Adds the rules to the chain.
async fn begin(chain: &str, is_strict: bool, sysctl: &Path) -> Result<(), FirewallError> {
    if is_strict {
        sysctl::write(&filter(sysctl), LOOSE)?;
    }
    let has_no_ipv6 = parameter(&sysctl.join(sysctl::ipv6_is_disabled_on(LOOPBACK)))?;
    let speaks_ipv6 = has_no_ipv6.is_some_and(|value| value == "0");
    if let Err(error) = nft(&rules(chain, speaks_ipv6)).await {
        tracing::warn!(%error, "no detour: a packet that arrives while its link joins or leaves a bridge is lost");
    }
    Ok(())
}

/// The reverse path filter of the loopback interface, if it would drop packets of pods. The kernel uses the larger one of this and of
/// the parameter of all links.
fn filter_to_change(sysctl: &Path) -> Result<Option<String>, FileError> {
    let of_all = parameter(&sysctl.join(sysctl::reverse_path_filter_of("all")))?.unwrap_or_default();
    let own = parameter(&filter(sysctl))?;
    Ok(own.filter(|own| own.max(&of_all) == STRICT))
}

fn filter(sysctl: &Path) -> PathBuf {
    sysctl.join(sysctl::reverse_path_filter_of(LOOPBACK))
}

fn parameter(path: &Path) -> Result<Option<String>, FileError> {
    let bytes = files::read_if_exists(path)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()))
}

fn chain_of(name: &str, links: &[&str]) -> String {
    let links: Vec<String> = links.iter().map(|link| format!("\"{link}\"")).collect();
    format!(
        "add table {FAMILY} {TABLE}\n\
         add chain {FAMILY} {TABLE} {name} {{ type filter hook ingress devices = {{ {} }} priority {PRIORITY}; }}\n",
        links.join(", ")
    )
}

/// ARP, neighbour discovery and packets to link-local addresses belong to the link on which they arrive.
fn rules(chain: &str, speaks_ipv6: bool) -> String {
    let rule = |packets: &str| {
        format!(
            "add rule {FAMILY} {TABLE} {chain} meta pkttype {{ host, other }} {packets} counter \
             ether daddr set 00:00:00:00:00:00 fwd to {LOOPBACK}\n"
        )
    };
    let ipv6 = "ip6 daddr != fe80::/10 icmpv6 type != { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert }";
    let other = "ip6 daddr != fe80::/10 ip6 nexthdr != icmpv6";
    let mut all = rule("meta protocol ip");
    if speaks_ipv6 {
        all += &[rule(ipv6), rule(other)].concat();
    }
    all
}

async fn nft(text: &str) -> Result<(), ProgramError> {
    run("nft", &["-f", "-"], Some(text)).await.map(|_| ())
}
