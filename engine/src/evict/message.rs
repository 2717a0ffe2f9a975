//! Messages about pods that cannot be evicted.

use super::{Refusal, Time};
use crate::drain::{self, Budget, Pod};
use crate::words::{lines_of, names};

/// A pod whose grace period is longer than the time limit.
pub(super) fn describe_slow(pod: &Pod, seconds: i64, place: &str, time: &Time) -> String {
    format!(
        "pod {} has to leave {place} later, but its grace period of {seconds} s is longer than drain.timeoutSeconds ({}): set \
         drain.gracePeriodSeconds",
        pod.key(),
        time.limit.as_secs()
    )
}

/// Every pod that cannot be evicted, each with its own obstacle.
pub(super) fn describe_obstacles(place: &str, stuck: &[(&Pod, drain::Obstacle)]) -> String {
    let described = lines_of(stuck, |(pod, obstacle)| describe_obstacle(pod, obstacle));
    format!("{place}: {described}")
}

fn describe_obstacle(pod: &Pod, obstacle: &drain::Obstacle) -> String {
    match obstacle {
        drain::Obstacle::Bare => {
            format!(
                "pod {} has no controller: delete it or set drain.force",
                pod.key()
            )
        }
        // Deleting the pod does not help: the DaemonSet recreates it on the node at once, with the same volume.
        drain::Obstacle::EmptyDir(volumes) if pod.of_daemon_set() => format!(
            "pod {} would lose its emptyDir volumes {}: set drain.deleteEmptyDirData",
            pod.key(),
            names(volumes)
        ),
        drain::Obstacle::EmptyDir(volumes) => format!(
            "pod {} would lose its emptyDir volumes {}: set drain.deleteEmptyDirData or delete the pod",
            pod.key(),
            names(volumes)
        ),
        drain::Obstacle::Static => format!(
            "pod {} is a static pod on the pod network: move its manifest out of the kubelet's static pod path",
            pod.key()
        ),
    }
}

/// Every refused eviction, each with its own reason.
pub(super) fn describe_refusals(refused: &[(&Pod, &Refusal)], budgets: &[Budget]) -> String {
    lines_of(refused, |(pod, refusal)| describe_refusal(pod, refusal, budgets))
}

/// One refused eviction: the exact budget with its numbers, and since when (R1).
fn describe_refusal(pod: &Pod, refusal: &Refusal, budgets: &[Budget]) -> String {
    let mut holding = drain::budgets_of(pod, budgets);
    holding.retain(|budget| budget.disruptions_allowed <= 0);
    let because = if holding.is_empty() {
        refusal.message.clone()
    } else {
        lines_of(&holding, |budget| describe_budget(budget))
    };
    // A time, not an age: the message stays the same in each pass, so it is written once.
    format!(
        "eviction of pod {} refused since {:.0}: {because}",
        pod.key(),
        refusal.since
    )
}

/// One budget that allows no disruption, with its numbers.
pub(super) fn describe_budget(budget: &Budget) -> String {
    let Budget { namespace, name, .. } = budget;
    // Even with all pods Ready such a budget allows no disruption: only the user can change that.
    let way_out = if budget.expected_pods == 0 {
        ": its controller has not counted its pods yet".to_owned()
    } else if budget.desired_healthy >= budget.expected_pods {
        format!(
            ": no pod can ever be evicted; run `kubectl edit pdb -n {namespace} {name}`, or, if minAvailable is a number, add a \
             replica"
        )
    } else {
        String::new()
    };
    format!(
        "PodDisruptionBudget {namespace}/{name} allows {} disruptions ({} healthy, {} needed, {} expected){way_out}",
        budget.disruptions_allowed, budget.current_healthy, budget.desired_healthy, budget.expected_pods
    )
}
