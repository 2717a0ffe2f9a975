//! Validates IP pools.

use super::super::network::cidr;
use super::super::spec::ip_pool::Spec;
use super::Findings;

/// Networks that no pool may overlap with.
const LINK_LOCAL: [&str; 2] = ["169.254.0.0/16", "fe80::/10"];

/// Validates the spec of a pool.
pub fn spec(spec: &Spec, findings: &mut Findings) {
    let Some((address, network)) = cidr(&spec.cidr) else {
        findings.text(false, "spec.cidr", &spec.cidr, "a network like 10.1.0.0/16");
        return;
    };
    if network.address != Some(address) {
        findings.text(
            false,
            "spec.cidr",
            &spec.cidr,
            &format!("a network without host bits: {network}"),
        );
    }
    if network.version() == 6 && spec.ipip_mode != "Never" {
        findings.text(
            false,
            "spec.ipipMode",
            spec.ipip_mode,
            "Never, because the pool is IPv6: clear \"ipip\" in v2",
        );
    }
    if !spec.disabled && network.length() > spec.block_size {
        findings.text(
            false,
            "spec.cidr",
            &spec.cidr,
            &format!(
                "/{} or wider, the size of a block: disable the pool in v2, or replace it by a wider one",
                spec.block_size
            ),
        );
    }
    for reserved in LINK_LOCAL {
        if cidr(reserved).is_some_and(|(_, reserved)| reserved.overlaps(&network)) {
            findings.text(
                false,
                "spec.cidr",
                &spec.cidr,
                &format!("a network that does not overlap with link-local {reserved}"),
            );
        }
    }
}
