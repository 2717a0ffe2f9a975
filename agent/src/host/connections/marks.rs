//! The marks of packets whose source kube-proxy masquerades, read from its rules: iptables of both backends, and nftables.

use std::collections::BTreeSet;
use std::path::Path;

use flannel_to_calico::facts::FirewallBackend;

use crate::host::firewall::{self, FirewallError, Nftables};
use crate::host::program::lines;

/// kube-proxy's chain that marks packets, in iptables and in its own table of nftables.
const CHAIN: &str = "KUBE-MARK-MASQ";
const NFT_CHAIN: &str = "mark-for-masquerade";
const NFT_TABLE: &str = "kube-proxy";
const TABLE: &str = "nat";

/// Reads the marks; none without kube-proxy.
///
/// # Errors
///
/// A program of the firewall fails, or `/proc` cannot be read.
pub(super) async fn read(proc: &Path) -> Result<BTreeSet<u32>, FirewallError> {
    let known = Nftables::read(|chain| [CHAIN, NFT_CHAIN].into_iter().find(|known| *known == chain)).await?;
    let mut found = BTreeSet::new();
    for (family, nft, legacy) in [
        (
            "ip",
            FirewallBackend::IptablesNft,
            FirewallBackend::IptablesLegacy,
        ),
        (
            "ip6",
            FirewallBackend::Ip6tablesNft,
            FirewallBackend::Ip6tablesLegacy,
        ),
    ] {
        if known.has_chain(family, TABLE, CHAIN) {
            let rules = firewall::chain(nft, TABLE, CHAIN).await?;
            found.extend(rules.iter().filter_map(|rule| mark(rule)));
        }
        if known.has_chain(family, NFT_TABLE, NFT_CHAIN) {
            let arguments = ["list", "chain", family, NFT_TABLE, NFT_CHAIN];
            let rules = lines("nft", &arguments, |_| true).await?;
            found.extend(rules.iter().filter_map(|rule| mark(rule)));
        }
        if firewall::legacy_tables(proc, legacy)?.contains(TABLE) {
            let start = format!("-A {CHAIN} ");
            let rules = firewall::save(legacy, TABLE, |rule| rule.starts_with(&start)).await?;
            found.extend(rules.iter().filter_map(|rule| mark(rule)));
        }
    }
    Ok(found)
}

/// The mark that a rule sets: `-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000`, or `meta mark set meta mark | 0x00004000`.
fn mark(rule: &str) -> Option<u32> {
    let number = rule.split_whitespace().find_map(|word| word.strip_prefix("0x"))?;
    let digits = number.split('/').next()?;
    u32::from_str_radix(digits, 16).ok().filter(|mark| *mark != 0)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::iptables("-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000", Some(0x4000))]
    #[case::another_bit("-A KUBE-MARK-MASQ -j MARK --or-mark 0x100", Some(0x100))]
    #[case::nftables("\t\tmeta mark set meta mark | 0x00004000", Some(0x4000))]
    #[case::older_nftables("\t\tmark set mark or 0x4000", Some(0x4000))]
    #[case::the_chain("-N KUBE-MARK-MASQ", None)]
    #[case::a_deleted_mark("-A KUBE-MARK-MASQ -j MARK --set-xmark 0x0/0x0", None)]
    #[case::too_large("-A KUBE-MARK-MASQ -j MARK --set-xmark 0x100000000/0x0", None)]
    fn a_rule_of_kube_proxy_has_a_mark(#[case] rule: &str, #[case] expected: Option<u32>) {
        assert_eq!(mark(rule), expected);
    }
}
