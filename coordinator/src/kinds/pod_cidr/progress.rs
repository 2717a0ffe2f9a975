//! Phase and progress of a change of the range, for the status.

use api::MigrationStatus;
use api::migration::{Direction, MigrationPhase, PodCidrStatus, Stage};
use engine::pods::Pods;
use ipnet::IpNet;

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
