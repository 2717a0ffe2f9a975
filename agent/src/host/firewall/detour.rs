//! A way around a bridge while links join or leave it. In this moment, some 15 µs, the kernel drops each frame that arrives on the link:
//! the port is not forwarding, and still takes the frames (`del_nbp` and `br_add_if` of Linux). Rules before the bridge send IP packets
//! through the loopback interface, from which the host routes them. ARP, neighbour discovery, broadcast and multicast belong to the
//! link, and are left to the bridge.
//!
//! The rules are a table of their own. If the reverse path filter of the loopback interface had to be changed, a chain without a hook has
//! its value before in its name: an agent that was killed finds it there. The kernel deletes chains with a hook when their links end.

use std::path::{Path, PathBuf};

use super::FirewallError;
use super::backend::{load, without};
use crate::host::files::{self, FileError};
use crate::host::program::ProgramError;
use crate::host::sysctl;

/// The family of the rules: frames that arrive on a link, before a bridge takes them.
pub const FAMILY: &str = "netdev";
/// The table of the rules.
pub const TABLE: &str = "replumb_detour";
/// Most links of one detour: the kernel accepts fewer than 256 (`NFT_NETDEVICE_MAX`).
pub const MOST_LINKS: usize = 128;

/// The start of the name of the chain with the rules; the rest is the reverse path filter before, if it was changed.
const RULES: &str = "filter";
/// The chain with the hook.
const HOOK: &str = "ports";
/// After the rules that accept frames.
const PRIORITY: &str = "-490";
const LOOPBACK: &str = "lo";
/// A strict reverse path filter: the way back to a pod is not the loopback interface.
const STRICT: &str = "1";

/// A detour that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detour {
    /// The reverse path filter of the loopback interface before; `None` if it was not changed.
    filter: Option<String>,
}

impl Detour {
    /// The detour with these chains.
    pub(super) fn of<'names>(chains: impl IntoIterator<Item = &'names str>) -> Self {
        let mut filters = chains.into_iter().filter_map(|name| name.strip_prefix(RULES));
        Self {
            filter: filters
                .next()
                .filter(|filter| !filter.is_empty())
                .map(str::to_owned),
        }
    }

    fn rules(&self) -> String {
        format!("{RULES}{}", self.filter.as_deref().unwrap_or_default())
    }

    /// Ends the detour: packets first, then the parameter, then its record. `sysctl` is the folder of the parameters of the network.
    ///
    /// # Errors
    ///
    /// nft fails, or the parameter cannot be written.
    pub async fn end(&self, sysctl: &Path) -> Result<(), FirewallError> {
        let hook = format!("{FAMILY} {TABLE} {HOOK}");
        let unhooked = load(&format!(
            "add table {FAMILY} {TABLE}\nadd chain {hook}\ndelete chain {hook}\n"
        ))
        .await;
        if let Some(filter) = &self.filter {
            sysctl::write(&filter_of_loopback(sysctl), filter)?;
        }
        unhooked?;
        Ok(load(&without(&format!("{FAMILY} {TABLE}"))).await?)
    }

    async fn begin(&self, links: &[&str], sysctl: &Path) -> Result<(), FirewallError> {
        let rules = self.rules();
        load(&format!(
            "add table {FAMILY} {TABLE}\nadd chain {FAMILY} {TABLE} {rules}\n"
        ))
        .await?;
        if self.filter.is_some() {
            sysctl::write(&filter_of_loopback(sysctl), sysctl::LOOSE)?;
        }
        for family in families(sysctl)? {
            match load(&family.detour(&rules)).await {
                Err(error @ ProgramError::Refused { .. }) => tracing::warn!(
                    %error,
                    "no detour: a packet that arrives while its link joins or leaves a bridge is lost"
                ),
                result => result?,
            }
        }
        Ok(load(&hook(&rules, links)).await?)
    }
}

/// Changes which links belong to a bridge, and loses no unicast IP packet that arrives on them. `sysctl` is the folder of the
/// parameters of the network. At most [`MOST_LINKS`] links.
///
/// If the kernel refuses the rules of a family (it has no `fwd`), the change is made without them, and the log says so.
///
/// # Errors
///
/// nft fails, or a parameter cannot be read or written. Errors of the change itself are in the result.
pub async fn around<E>(
    links: &[&str],
    sysctl: &Path,
    change: impl AsyncFnOnce() -> Result<(), E>,
) -> Result<Result<(), E>, FirewallError> {
    let detour = Detour {
        filter: filter_to_change(sysctl)?,
    };
    let made = match detour.begin(links, sysctl).await {
        Ok(()) => Ok(change().await),
        Err(error) => Err(error),
    };
    match (made, detour.end(sysctl).await) {
        (Ok(Ok(())), ended) => ended.map(Ok),
        (made, ended) => {
            if let Err(error) = ended {
                tracing::warn!(%error, "the detour around the bridge remains until the next observation");
            }
            made
        }
    }
}

/// The reverse path filter of the loopback interface, if it would drop packets of pods. The kernel uses the larger one of this and of
/// the parameter of all links.
fn filter_to_change(sysctl: &Path) -> Result<Option<String>, FileError> {
    let of_all = parameter(&sysctl.join(sysctl::reverse_path_filter_of("all")))?.unwrap_or_default();
    let own = parameter(&filter_of_loopback(sysctl))?;
    Ok(own.filter(|own| own.max(&of_all) == STRICT))
}

fn filter_of_loopback(sysctl: &Path) -> PathBuf {
    sysctl.join(sysctl::reverse_path_filter_of(LOOPBACK))
}

fn parameter(path: &Path) -> Result<Option<String>, FileError> {
    let bytes = files::read_if_exists(path)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()))
}

/// A family of packets that the host routes from the loopback interface.
#[derive(Clone, Copy, Debug)]
enum Family {
    Ipv4,
    Ipv6,
}

fn families(sysctl: &Path) -> Result<Vec<Family>, FileError> {
    let mut families = Vec::new();
    if parameter(&sysctl.join(sysctl::forwards(LOOPBACK)))?.as_deref() == Some("1") {
        families.push(Family::Ipv4);
    } else {
        tracing::warn!("no detour for IPv4: net.ipv4.conf.lo.forwarding is not 1");
    }
    if parameter(&sysctl.join(sysctl::ipv6_is_disabled_on(LOOPBACK)))?.as_deref() == Some("0") {
        families.push(Family::Ipv6);
    }
    Ok(families)
}

impl Family {
    /// The rules of the family. Addresses of the loopback interface itself would be accepted there.
    fn detour(self, chain: &str) -> String {
        let rule = |packets: &str| {
            format!(
                "add rule {FAMILY} {TABLE} {chain} meta pkttype {{ host, other }} {packets} \
                 ether daddr set 00:00:00:00:00:00 fwd to {LOOPBACK}\n"
            )
        };
        match self {
            Self::Ipv4 => rule("ip saddr != 127.0.0.0/8 ip daddr != 127.0.0.0/8"),
            Self::Ipv6 => {
                let unicast = "ip6 saddr != ::1 ip6 daddr != { ::1, fe80::/10 }";
                let of_link = "{ nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert }";
                let messages = rule(&format!("{unicast} icmpv6 type != {of_link}"));
                messages + &rule(&format!("{unicast} ip6 nexthdr != icmpv6"))
            }
        }
    }
}

fn hook(rules: &str, links: &[&str]) -> String {
    let links: Vec<String> = links.iter().map(|link| format!("\"{link}\"")).collect();
    let chain = format!("{FAMILY} {TABLE} {HOOK}");
    format!(
        "add chain {chain} {{ type filter hook ingress devices = {{ {} }} priority {PRIORITY}; }}\n\
         add rule {chain} jump {rules}\n",
        links.join(", ")
    )
}
