//! `PodDisruptionBudget`s: their status as the controller has it, and the API server's decision on an eviction.

use coordinator::facts::pods::budget;
use engine::drain::{Budget, Pod, budgets_of};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

/// The status of a budget for these pods. `expected` is what was there before the migration: the scale of the workloads.
pub fn status(object: &Value, pods: &[Pod], expected: i32) -> Option<Value> {
    let parsed: PodDisruptionBudget = serde_json::from_value(object.clone()).ok()?;
    let spec = parsed.spec.as_ref()?;
    let known = budget(&parsed);
    let selected = pods.iter().filter(|pod| selects(&known, pod));
    let healthy = selected
        .filter(|pod| pod.ready && pod.deleted_at.is_none() && !pod.finished)
        .count();
    let healthy = i32::try_from(healthy).unwrap_or(i32::MAX);
    let desired = match (&spec.min_available, &spec.max_unavailable) {
        (Some(least), _) => scaled(least, expected),
        (None, Some(most)) => (expected - scaled(most, expected)).max(0),
        (None, None) => 0,
    };
    Some(json!({
        "expectedPods": expected, "currentHealthy": healthy, "desiredHealthy": desired,
        "disruptionsAllowed": (healthy - desired).max(0), "observedGeneration": object["metadata"]["generation"],
    }))
}

/// The number of pods of a budget.
pub fn expected(object: &Value, pods: &[Pod]) -> i32 {
    let Ok(parsed) = serde_json::from_value::<PodDisruptionBudget>(object.clone()) else {
        return 0;
    };
    let known = budget(&parsed);
    let selected = pods
        .iter()
        .filter(|pod| selects(&known, pod) && !pod.finished && pod.deleted_at.is_none())
        .count();
    i32::try_from(selected).unwrap_or(i32::MAX)
}

/// The budget that does not allow the eviction of this pod.
pub fn refusing<'budgets>(pod: &Pod, budgets: &'budgets [Budget]) -> Option<&'budgets Budget> {
    // The API server asks no budget for a pod that serves nothing (`canIgnorePDB`).
    if pod.pending || pod.finished || pod.deleted_at.is_some() {
        return None;
    }
    let of_pod = budgets_of(pod, budgets);
    of_pod
        .into_iter()
        .find(|budget| budget.disruptions_allowed <= 0 && (pod.ready || !budget.allows_unready()))
}

fn selects(budget: &Budget, pod: &Pod) -> bool {
    !budgets_of(pod, std::slice::from_ref(budget)).is_empty()
}

/// A number, or a percentage of the pods, rounded up.
fn scaled(value: &IntOrString, of: i32) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i32 = text.trim_end_matches('%').parse().unwrap_or_default();
            (percent.saturating_mul(of) + 99) / 100
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn pods(ready: usize, all: usize) -> Vec<Pod> {
        (0..all)
            .map(|index| Pod {
                namespace: "shop".to_owned(),
                labels: [("app".to_owned(), "web".to_owned())].into_iter().collect(),
                ready: index < ready,
                ..Pod::default()
            })
            .collect()
    }

    #[rstest]
    #[case(json!({ "minAvailable": 2 }), 3, 1)]
    #[case(json!({ "minAvailable": 2 }), 2, 0)]
    #[case(json!({ "minAvailable": "50%" }), 3, 1)]
    #[case(json!({ "maxUnavailable": 1 }), 3, 1)]
    #[case(json!({ "maxUnavailable": 1 }), 2, 0)]
    #[case(json!({ "maxUnavailable": "34%" }), 3, 2)]
    #[case(json!({ "maxUnavailable": 0 }), 3, 0)]
    fn the_status_is_that_of_the_controller(
        #[case] mut spec: Value,
        #[case] ready: usize,
        #[case] allowed: i32,
    ) {
        spec["selector"] = json!({ "matchLabels": { "app": "web" } });
        let object = json!({ "metadata": { "namespace": "shop", "name": "web" }, "spec": spec });
        let pods = pods(ready, 3);
        assert_eq!(expected(&object, &pods), 3);
        let mut object = object;
        object["status"] = status(&object, &pods, 3).unwrap();
        assert_eq!(object["status"]["disruptionsAllowed"], allowed);
        let known = budget(&serde_json::from_value(object).unwrap());
        assert_eq!(refusing(&pods[0], &[known]).is_some(), allowed == 0);
    }
}
