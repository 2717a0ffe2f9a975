//! Validates policies.

use super::super::spec::policy::Spec;
use super::{Findings, rule};

/// Validates the spec of a policy.
pub fn spec(spec: &Spec, findings: &mut Findings) {
    rule::selector("spec.selector", &spec.selector, findings);
    rule::rules("spec.ingress", &spec.ingress, findings);
    rule::rules("spec.egress", &spec.egress, findings);
    if spec.do_not_track && spec.pre_dnat {
        findings.add("spec.preDNAT", true, "false, because doNotTrack is true");
    }
    if spec.pre_dnat && !spec.egress.is_empty() {
        findings.add(
            "spec.egress",
            format_args!("a list of {}", spec.egress.len()),
            "an empty list, because preDNAT is true",
        );
    }
    let types = format!("{:?}", spec.types);
    if spec.pre_dnat && spec.types.contains(&"Egress") {
        findings.add("spec.types", &types, "only Ingress, because preDNAT is true");
    }
    let is_twice = |kind: &str| spec.types.iter().filter(|found| **found == kind).count() > 1;
    if ["Ingress", "Egress"].into_iter().any(is_twice) {
        findings.add("spec.types", types, "each type once");
    }
}
