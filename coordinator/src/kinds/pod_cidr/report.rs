//! The status of a change of the range: phase, progress and messages.

use api::MigrationStatus;
use api::migration::{Direction, MigrationPhase, PodCidrStatus, Stage};
use calico::etcd_access::StoreProblem;
use engine::pods::Pods;
use ipnet::IpNet;
use pod_cidr::hardcoded_range::{self, RangeUse};

use super::malformed::Pools;

/// The phase of the Migration in this stage.
pub fn phase(stage: Stage, direction: Direction) -> MigrationPhase {
    match (direction, stage) {
        (Direction::Rollback, _) => MigrationPhase::RollingBack,
        (
            Direction::Forward,
            Stage::Widen | Stage::CreatePool | Stage::Canary | Stage::Redundancy | Stage::Switch,
        ) => MigrationPhase::Preparing,
        (Direction::Forward, Stage::Move) => MigrationPhase::Rolling,
        (
            Direction::Forward,
            Stage::Verify
            | Stage::FollowUp
            | Stage::Soak
            | Stage::DeletePool
            | Stage::Routes
            | Stage::CleanUp,
        ) => MigrationPhase::Finishing,
    }
}

/// Counts the pods of both ranges that run and have a network of their own.
pub fn count(known: &mut PodCidrStatus, pods: &Pods, direction: Direction, status: &mut MigrationStatus) {
    let within = |range: &IpNet| {
        let has = |pod: &&engine::drain::Pod| pod.addresses.iter().any(|address| range.contains(address));
        let found = pods
            .iter()
            .filter(|pod| pod.uses_pod_network() && !pod.mirror)
            .filter(has)
            .count();
        u32::try_from(found).unwrap_or(u32::MAX)
    };
    known.pods_in_old_range = within(&known.settings.from.value);
    known.pods_in_new_range = within(&known.settings.to.value);
    let (there, all) = match direction {
        Direction::Forward => (known.pods_in_new_range, known.pods_in_old_range),
        Direction::Rollback => (known.pods_in_old_range, known.pods_in_new_range),
    };
    status.progress.text = format!("{there}/{} pods", there.saturating_add(all));
}

/// The message when a rollback is requested after the old pool was deleted.
pub fn past_return(from: IpNet, to: IpNet, known: &PodCidrStatus) -> String {
    format!(
        "IPPool {} is deleted, and {from} is past its point of no return: nothing was rolled back. `kubectl replumb resume` \
         completes this migration; another one, from {to} to {from}, moves the pods back",
        known.settings.old_pool.value
    )
}

/// The message when Calico's datastore does not answer.
pub fn unreachable(problem: &StoreProblem) -> String {
    format!("{}; replumb retries. {}", problem.message, problem.hint)
}

/// Why no step may run while one of both pools is malformed.
pub fn malformed_pool(pools: &Pools, known: &PodCidrStatus) -> Option<String> {
    let ours =
        [&known.settings.old_pool.value, &known.settings.new_pool.value].map(|name| format!("IPPool {name}"));
    let mut malformed = pools.malformed.iter();
    let pool = malformed.find(|pool| ours.contains(&pool.malformed.object))?;
    Some(format!(
        "{}; replumb changes nothing until it is corrected",
        pool.message()
    ))
}

/// The message of a completed migration. `mentions`: places that contain a range.
pub fn completed(known: &PodCidrStatus, direction: Direction, mentions: &[RangeUse]) -> String {
    let settings = &known.settings;
    let (from, to) = (settings.from.value, settings.to.value);
    let (pool, source, range) = match direction {
        Direction::Forward => (&settings.old_pool.value, from, to),
        Direction::Rollback => (&settings.new_pool.value, to, from),
    };
    // A rollback waits for no user: places that contain the new range are named at its end.
    let still = hardcoded_range::follow_up(mentions, &source, &range);
    let still = still.first().map_or_else(String::new, |first| {
        let count = still.len();
        format!("; places that still contain {source} and must be changed back: {count}, first: {first}")
    });
    format!(
        "every pod has an address of {range}; IPPool {pool}, its blocks and all routes to it are deleted{still}"
    )
}

#[cfg(test)]
mod tests {
    use engine::drain::Pod;
    use pod_cidr::settings::Settings;
    use serde_json::json;

    use super::*;

    fn known() -> PodCidrStatus {
        let sourced = |value: &str| json!({ "value": value, "source": "spec" });
        let settings: Settings = serde_json::from_value(json!({
            "from": sourced("10.244.0.0/16"), "to": sourced("10.200.0.0/16"), "oldPool": sourced("old"), "newPool": sourced("new"),
            "blockSize": { "value": 26, "source": "default" }, "calicoDaemonSetNamespace": sourced("kube-system"),
            "calicoDaemonSetName": sourced("calico-node"),
        }))
        .unwrap();
        PodCidrStatus::of(settings)
    }

    #[test]
    fn running_pods_with_a_network_count_by_range() {
        let pod = |address: &str, host_network, finished| Pod {
            addresses: vec![address.parse().unwrap()],
            host_network,
            finished,
            ..Pod::default()
        };
        let pods = vec![
            pod("10.244.0.1", false, false),
            pod("10.244.0.2", false, true),
            pod("10.244.0.3", true, false),
            pod("10.200.0.1", false, false),
            pod("10.200.0.2", false, false),
        ];
        let pods = Pods::from(pods);
        let (mut known, mut status) = (known(), MigrationStatus::default());
        count(&mut known, &pods, Direction::Forward, &mut status);
        assert_eq!((known.pods_in_old_range, known.pods_in_new_range), (1, 2));
        assert_eq!(status.progress.text, "2/3 pods");
        count(&mut known, &pods, Direction::Rollback, &mut status);
        assert_eq!(status.progress.text, "1/3 pods");
    }
}
