//! How nodes reach the pods of the old pool, and so those of the new one.

use super::CheckName;
use crate::facts::Pool;
use crate::pools::{NEVER, mode};
use engine::check::{Check, Finding, Report};

/// How nodes reach the pods of the pool.
pub(super) fn check(name: &str, pool: Option<&Pool>) -> Vec<Check> {
    let mut report = Report::new(CheckName::Encapsulation);
    let Some(pool) = pool else {
        // The check OldPool says so.
        return report.finish(format!("IPPool {name}"), "no such pool: see check OldPool");
    };
    let (vxlan, ipip) = (mode(&pool.spec, "vxlanMode"), mode(&pool.spec, "ipipMode"));
    if ipip != NEVER {
        report.warn(
            "IPPool",
            &pool.name,
            Finding::new(
                "spec.ipipMode",
                ipip,
                "VXLAN, with which the migration was tried in every part",
                "no kernel with IPIP was tried: `kubectl replumb pause` in stage Canary, and look at the connections of the canary pod \
                 between nodes before you resume (docs/limits.md)",
            ),
        );
    } else if vxlan == "CrossSubnet" || vxlan == NEVER {
        report.warn(
            "IPPool",
            &pool.name,
            Finding::new(
                "spec.vxlanMode",
                vxlan,
                "VXLAN Always, with which the migration was tried with the real Calico",
                "routes between nodes come from BGP or from their subnet, which were tried with a stand-in for BIRD only: `kubectl \
                 replumb pause` in stage Canary, and look at the routes to the canary pod before you resume (docs/limits.md)",
            ),
        );
    }
    report.finish(format!("IPPool {}", pool.name), format!("VXLAN {vxlan}"))
}
