//! What the Migration itself asks for and cannot have, or should not want.

use super::{CheckName, CheckPolicy};
use crate::check::{Check, Finding, Report};
use crate::pod_cidr::settings::Mode;

pub(super) fn check(policy: CheckPolicy) -> Vec<Check> {
    let mut checks = mode(policy.mode);
    checks.extend(gate(policy.is_unwatched));
    checks
}

fn mode(mode: Mode) -> Vec<Check> {
    let mut report = Report::new(CheckName::Mode);
    match mode {
        Mode::ByWorkload => {}
        Mode::ByNode => report.fail(
            "",
            "spec.podCidr.mode",
            Finding::new(
                "",
                "ByNode",
                "ByWorkload",
                "leave mode out: this version moves pods workload by workload, and does not cordon nodes for it",
            ),
        ),
    }
    report.finish("spec.podCidr.mode", "ByWorkload: pods move workload by workload")
}

fn gate(is_unwatched: bool) -> Vec<Check> {
    let mut report = Report::new(CheckName::TrafficGate);
    if is_unwatched {
        report.warn(
            "",
            "spec.gates.traffic",
            Finding::new(
                "",
                "Off",
                "Watch",
                "leave gates.traffic out: nobody proves then that pods of the new range are reached before every pod gets one of its \
                 addresses, and nothing stops the migration when traffic is lost",
            ),
        );
    }
    report.finish(
        "spec.gates.traffic",
        "Watch: pods of both ranges reach each other, or the migration stops",
    )
}

#[cfg(test)]
mod tests {
    use crate::check::{Verdict, worst};

    use super::*;

    #[test]
    fn what_is_not_done_is_refused_and_what_is_not_watched_is_said() {
        assert_eq!(worst(&check(CheckPolicy::default())), Verdict::Pass);
        let by_node = CheckPolicy {
            mode: Mode::ByNode,
            ..CheckPolicy::default()
        };
        assert_eq!(worst(&check(by_node)), Verdict::Fail);
        let unwatched = CheckPolicy {
            is_unwatched: true,
            ..CheckPolicy::default()
        };
        assert_eq!(worst(&check(unwatched)), Verdict::Warn);
    }
}
