//! Fields of a Migration's spec that are set, and that its kind does not use. Each of them is named before the start: a field
//! without effect is a wish that is not met.

use api::MigrationSpec;
use api::migration::OnBlocked;
use api::traffic::{SoakGate, SourceAddressGate};
use engine::check::{Check, UNUSED_FIELDS, Verdict};
use strum::{IntoStaticStr, VariantArray};

/// A field of the spec that some kinds use and others do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
pub(crate) enum SpecField {
    #[strum(serialize = "rollout.maxUnavailable")]
    MaxUnavailable,
    #[strum(serialize = "rollout.canary.nodes")]
    CanaryNodes,
    #[strum(serialize = "rollout.canary.soakSeconds")]
    CanarySoak,
    #[strum(serialize = "rollout.intervalSeconds")]
    Interval,
    #[strum(serialize = "drain.timeoutSeconds")]
    DrainTimeout,
    #[strum(serialize = "drain.gracePeriodSeconds")]
    GracePeriod,
    #[strum(serialize = "drain.onBlocked")]
    OnBlocked,
    #[strum(serialize = "drain.deleteEmptyDirData")]
    EmptyDirData,
    #[strum(serialize = "drain.force")]
    Force,
    #[strum(serialize = "gates.sourceAddresses")]
    SourceAddressGate,
    #[strum(serialize = "gates.soak")]
    SoakGate,
}

impl SpecField {
    /// The path below `spec`.
    fn path(self) -> &'static str {
        self.into()
    }

    /// Whether the field has another value than its default.
    fn is_set(self, spec: &MigrationSpec) -> bool {
        let (rollout, drain) = (&spec.rollout, &spec.drain);
        match self {
            Self::MaxUnavailable => rollout.max_unavailable.is_some(),
            // The API requires `nodes` beside `soakSeconds`: one node there is no wish of its own.
            Self::CanaryNodes => rollout
                .canary
                .as_ref()
                .is_some_and(|canary| canary.nodes > 1 || canary.soak_seconds == 0),
            Self::CanarySoak => rollout
                .canary
                .as_ref()
                .is_some_and(|canary| canary.soak_seconds > 0),
            Self::Interval => rollout.interval_seconds > 0,
            Self::DrainTimeout => drain.timeout_seconds.is_some(),
            Self::GracePeriod => drain.grace_period_seconds.is_some(),
            Self::OnBlocked => drain.on_blocked != OnBlocked::default(),
            Self::EmptyDirData => drain.delete_empty_dir_data,
            Self::Force => drain.force,
            Self::SourceAddressGate => spec.gates.source_addresses != SourceAddressGate::default(),
            Self::SoakGate => spec.gates.soak != SoakGate::default(),
        }
    }
}

/// A warning that names every field that is set without effect. `None` if there is none.
pub(crate) fn check(spec: &MigrationSpec, is_used: impl Fn(SpecField) -> bool) -> Option<Check> {
    let unused: Vec<String> = SpecField::VARIANTS
        .iter()
        .filter(|field| field.is_set(spec) && !is_used(**field))
        .map(|field| format!("spec.{}", field.path()))
        .collect();
    if unused.is_empty() {
        return None;
    }
    Some(Check::not_pass(
        UNUSED_FIELDS,
        Verdict::Warn,
        unused.join(", "),
        "set",
        "unset: this kind of migration does not use it",
        "remove it from the Migration; `kubectl explain migration.spec` says which kinds use a field",
    ))
}

#[cfg(test)]
mod tests {
    use api::migration::{CalicoDatastore, FlannelToCalico};
    use serde_json::{Value, json};

    use super::*;
    use crate::kind::Kind;

    fn spec(fields: &Value) -> MigrationSpec {
        serde_json::from_value(fields.clone()).unwrap()
    }

    fn everything() -> MigrationSpec {
        spec(&json!({
            "rollout": { "maxUnavailable": 2, "intervalSeconds": 5, "canary": { "nodes": 2, "soakSeconds": 60 } },
            "drain": {
                "timeoutSeconds": 60, "gracePeriodSeconds": 5, "onBlocked": "Skip", "deleteEmptyDirData": true, "force": true,
            },
            "gates": { "sourceAddresses": "Ignore", "soak": "Elapsed" },
        }))
    }

    fn unused(spec: &MigrationSpec, kind: &impl Kind) -> String {
        check(spec, |field| kind.uses(field)).map_or_else(String::new, |check| {
            assert_eq!(check.verdict, Verdict::Warn);
            check.object
        })
    }

    #[test]
    fn fields_with_their_defaults_are_not_named() {
        let bare = spec(&json!({ "rollout": { "canary": { "nodes": 1, "soakSeconds": 60 } } }));
        assert_eq!(check(&bare, |field| field == SpecField::CanarySoak), None);
        assert_eq!(check(&spec(&json!({})), |_| false), None);
    }

    #[test]
    fn each_field_that_is_set_and_not_used_is_named() {
        let found = check(&everything(), |_| false).unwrap();
        for field in SpecField::VARIANTS.iter().copied() {
            assert!(found.object.contains(field.path()), "{found:?}");
            let others = check(&everything(), |used| used == field).unwrap();
            assert!(!others.object.contains(field.path()), "{others:?}");
        }
    }

    #[test]
    fn each_kind_names_the_fields_that_the_api_says_it_does_not_use() {
        let pods = serde_json::from_value::<api::migration::PodCidr>(
            json!({ "from": "10.0.0.0/16", "to": "10.1.0.0/16" }),
        )
        .unwrap();
        let services =
            serde_json::from_value::<api::migration::ServiceCidr>(json!({ "to": ["10.2.0.0/16"] })).unwrap();
        let set = everything();
        assert_eq!(unused(&set, &FlannelToCalico::default()), "spec.gates.soak");
        assert_eq!(
            unused(&set, &pods),
            "spec.rollout.canary.nodes, spec.rollout.intervalSeconds, \
             spec.drain.timeoutSeconds, spec.gates.soak"
        );
        assert_eq!(
            unused(&set, &services),
            "spec.rollout.maxUnavailable, spec.rollout.canary.nodes, spec.rollout.canary.soakSeconds, \
             spec.rollout.intervalSeconds, spec.drain.timeoutSeconds, spec.gates.sourceAddresses"
        );
        assert_eq!(
            unused(&set, &CalicoDatastore::default()),
            "spec.rollout.canary.nodes, spec.rollout.canary.soakSeconds, \
             spec.rollout.intervalSeconds, spec.drain.timeoutSeconds, spec.drain.gracePeriodSeconds, spec.drain.onBlocked, \
             spec.drain.deleteEmptyDirData, spec.drain.force, spec.gates.sourceAddresses, spec.gates.soak"
        );
    }
}
