//! The settings and the checks, from facts of the cluster.

use std::collections::BTreeMap;

use engine::check::{Check, Verdict};
use engine::sourced::{Source, Sourced};

use crate::api::{Settings, Spec};

/// What the checks and the plan depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Whether the ConfigMap has the label; `None` if there is no such ConfigMap.
    pub labelled: Option<bool>,
    /// Release of the kernel by node; `None` if the agent has not reported it.
    pub kernels: BTreeMap<String, Option<String>>,
}

/// The settings and the result of the check.
pub fn check(spec: &Spec, facts: &ClusterFacts) -> (Option<Settings>, Vec<Check>) {
    let object = format!("ConfigMap {}", spec.config_map);
    let check = match facts.labelled {
        Some(false) => Check::pass("ConfigMap", object, "no label"),
        Some(true) => Check::not_pass(
            "ConfigMap",
            Verdict::Fail,
            object,
            format!("label {}", crate::LABEL),
            "no such label",
            format!(
                "run `kubectl label configmap {} {}-`",
                spec.config_map,
                crate::LABEL
            ),
        ),
        None => Check::not_pass(
            "ConfigMap",
            Verdict::Fail,
            object,
            "not found",
            "a ConfigMap in the namespace of replumb",
            "create it, or name another ConfigMap in spec.example.configMap",
        ),
    };
    let settings = Settings {
        config_map: Sourced {
            value: spec.config_map.clone(),
            source: Source::Spec,
        },
    };
    (Some(settings), vec![check])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_and_a_labelled_config_map_refuse_the_migration() {
        let spec = Spec {
            config_map: "seen".to_owned(),
            hold_seconds: 0,
        };
        for (labelled, verdict) in [
            (None, Verdict::Fail),
            (Some(true), Verdict::Fail),
            (Some(false), Verdict::Pass),
        ] {
            let facts = ClusterFacts {
                labelled,
                ..ClusterFacts::default()
            };
            let (settings, checks) = check(&spec, &facts);
            assert_eq!(settings.unwrap().config_map.value, "seen");
            assert_eq!(checks[0].verdict, verdict, "{checks:?}");
        }
    }
}
