//! The progress of a podCidr migration.

use api::MigrationStatus;
use api::migration::{Direction, Stage};
use jiff::Timestamp;
use serde::Serialize;

use crate::kinds::kind::KindProgress;
use crate::kinds::stage::stage_row;

/// The progress of a podCidr migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodsView {
    /// The stage; null before the first change and after the last.
    pub stage: Option<Stage>,
    /// The direction of the migration; null without a stage.
    pub direction: Option<Direction>,
    /// Since when; null without a stage.
    pub since: Option<Timestamp>,
    /// The old range.
    pub from: String,
    /// The new range.
    pub to: String,
    /// Pods with an address of the old range.
    pub pods_in_old_range: u32,
    /// Pods with an address of the new range.
    pub pods_in_new_range: u32,
    /// Blocks of Calico's IPAM in the source range; null before they are counted.
    pub blocks_left: Option<u32>,
}

impl KindProgress for PodsView {
    fn of(status: &MigrationStatus) -> Option<Self> {
        let known = status.pod_cidr.as_ref()?;
        let stage = known.stage.as_ref();
        Some(Self {
            stage: stage.map(|stage| stage.name),
            direction: stage.map(|stage| stage.direction),
            since: stage.map(|stage| stage.since),
            from: known.settings.from.value.to_string(),
            to: known.settings.to.value.to_string(),
            pods_in_old_range: known.pods_in_old_range,
            pods_in_new_range: known.pods_in_new_range,
            blocks_left: known.source_blocks,
        })
    }

    fn stage(&self) -> Option<&'static str> {
        self.stage.map(Stage::as_str)
    }

    fn direction(&self) -> Option<Direction> {
        self.direction
    }

    fn rows(&self, begun: bool, now: Timestamp) -> Vec<(&'static str, String)> {
        let mut rows = vec![("Range", format!("{} → {}", self.from, self.to))];
        if !begun {
            return rows;
        }
        rows.extend(stage_row(self.stage(), self.direction, self.since, now));
        rows.push((
            "Pods",
            format!(
                "{} in {}, {} in {}",
                self.pods_in_old_range, self.from, self.pods_in_new_range, self.to
            ),
        ));
        if let Some(blocks) = self.blocks_left {
            rows.push(("Blocks", format!("{blocks} in the source range")));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use api::migration::{Desired, MigrationPhase};
    use api::{Migration, NodeMigration};
    use serde_json::json;

    use crate::exit::Outcome;
    use crate::fixture;
    use crate::render::status::{line, status};
    use crate::render::view::View;

    fn view(change: impl FnOnce(&mut Migration)) -> View {
        let (mut migration, nodes): (Migration, Vec<NodeMigration>) = fixture::range_rolling();
        change(&mut migration);
        View::of(&migration, &nodes)
    }

    fn shown(view: &View) -> String {
        status(view, fixture::now(), None)
    }

    #[test]
    fn status_shows_pods_and_the_stage_instead_of_nodes() {
        let view = view(|_| {});
        assert_eq!(view.end(), None);
        insta::assert_snapshot!(shown(&view), @r"
        Migration  pod-cidr
        Phase      Rolling
        Progress   12/40 pods done
        Range      10.244.0.0/16 → 10.200.0.0/16
        Stage      Move for 3m0s
        Pods       28 in 10.244.0.0/16, 12 in 10.200.0.0/16
        Running    5m0s
        Blocked    DisruptionBudget
        Message    eviction of pod default/web-1 refused since 2026-03-01T10:04:10Z: PodDisruptionBudget default/web
                   allows 0 disruptions (2 healthy, 2 needed, 2 expected)
        ");
        insta::assert_snapshot!(line(&view), @"Migration pod-cidr: Rolling, Move, 12/40 pods done: DisruptionBudget: eviction of pod default/web-1 refused since 2026-03-01T10:04:10Z: PodDisruptionBudget default/web allows 0 disruptions (2 healthy, 2 needed, 2 expected)");
    }

    #[test]
    fn status_has_no_counts_before_the_first_change() {
        let (migration, nodes) = fixture::range_planned();
        let view = View::of(&migration, &nodes);
        insta::assert_snapshot!(shown(&view), @r"
        Migration  pod-cidr
        Phase      Planned
        Range      10.244.0.0/16 → 10.200.0.0/16
        Running    not started; nothing has changed
        Message    every check allows the migration

        next: `kubectl replumb plan`, then `kubectl replumb apply`
        ");
        insta::assert_snapshot!(line(&view), @"Migration pod-cidr: Planned: every check allows the migration");
    }

    #[test]
    fn the_second_of_two_hops_waits_for_the_first() {
        let (mut migration, nodes) = fixture::range_planned();
        let status = migration.status.as_mut().unwrap();
        status.phase = MigrationPhase::Refused;
        "AnotherMigration".clone_into(&mut status.reason);
        "Migration pod-cidr-hop-1 is under way; one at a time".clone_into(&mut status.message);
        let view = View::of(&migration, &nodes);
        assert_eq!(view.end(), Some(Outcome::Refused));
        assert!(
            view.next().contains("end the other Migration first"),
            "{}",
            view.next()
        );
    }

    #[test]
    fn the_soak_stage_shows_its_end() {
        let view = view(|migration| {
            let status = migration.status.as_mut().unwrap();
            status.phase = MigrationPhase::Finishing;
            "40/40 pods".clone_into(&mut status.progress.text);
            "PoolSoak".clone_into(&mut status.reason);
            "every pod has an address of 10.200.0.0/16; IPPool default-ipv4-ippool stays until 2026-03-02T10:04:00Z, and can be \
             used again until then"
                .clone_into(&mut status.message);
            let known = status.pod_cidr.as_mut().unwrap();
            (known.pods_in_old_range, known.pods_in_new_range) = (0, 40);
            known.source_blocks = Some(4);
            known.stage = serde_json::from_value(json!({
                "name": "Soak", "direction": "Forward", "since": "2026-03-01T10:04:00Z",
            }))
            .unwrap();
        });
        insta::assert_snapshot!(shown(&view), @r"
        Migration  pod-cidr
        Phase      Finishing
        Progress   40/40 pods done
        Range      10.244.0.0/16 → 10.200.0.0/16
        Stage      Soak for 1m0s
        Pods       0 in 10.244.0.0/16, 40 in 10.200.0.0/16
        Blocks     4 in the source range
        Running    5m0s
        Blocked    PoolSoak
        Message    every pod has an address of 10.200.0.0/16; IPPool default-ipv4-ippool stays until
                   2026-03-02T10:04:00Z, and can be used again until then
        ");
    }

    #[test]
    fn a_rollback_counts_pods_that_are_rolled_back() {
        let view = view(|migration| {
            migration.spec.desired = Desired::Rollback;
            let status = migration.status.as_mut().unwrap();
            status.phase = MigrationPhase::RollingBack;
            "28/40 pods".clone_into(&mut status.progress.text);
            let stage = status.pod_cidr.as_mut().unwrap().stage.as_mut().unwrap();
            stage.direction = api::migration::Direction::Rollback;
        });
        assert_eq!(view.end(), None);
        insta::assert_snapshot!(line(&view), @"Migration pod-cidr: RollingBack, Move (rollback), 28/40 pods rolled back: DisruptionBudget: eviction of pod default/web-1 refused since 2026-03-01T10:04:10Z: PodDisruptionBudget default/web allows 0 disruptions (2 healthy, 2 needed, 2 expected)");
    }

    #[test]
    fn pause_halt_and_end_have_their_exit_codes() {
        let mut paused = view(|migration| {
            migration.spec.desired = Desired::Pause;
            let status = migration.status.as_mut().unwrap();
            status.paused = true;
            "Paused".clone_into(&mut status.reason);
            "paused by the user".clone_into(&mut status.message);
        });
        for phase in [
            MigrationPhase::Preparing,
            MigrationPhase::Rolling,
            MigrationPhase::Finishing,
        ] {
            paused.phase = phase;
            assert_eq!(paused.end(), Some(Outcome::Paused), "{phase:?}");
        }
        insta::assert_snapshot!(line(&paused), @"Migration pod-cidr: Finishing, paused, Move, 12/40 pods done: Paused: paused by the user");
        let halted = view(|migration| {
            migration.spec.desired = Desired::Rollback;
            let status = migration.status.as_mut().unwrap();
            status.phase = MigrationPhase::Halted;
            let stage = status.pod_cidr.as_mut().unwrap().stage.as_mut().unwrap();
            stage.direction = api::migration::Direction::Rollback;
        });
        assert_eq!(halted.end(), Some(Outcome::Failed));
        assert!(
            line(&halted).contains("12/40 pods rolled back"),
            "{}",
            line(&halted)
        );
        assert!(halted.next().contains("rollback --all"), "{}", halted.next());
        let completed = view(|migration| {
            let status = migration.status.as_mut().unwrap();
            status.phase = MigrationPhase::Completed;
            status.completed_at = Some(fixture::now());
            status.reason = String::new();
            "40/40 pods".clone_into(&mut status.progress.text);
            "every pod has an address of 10.200.0.0/16; IPPool default-ipv4-ippool, its blocks and all routes to it are deleted"
                .clone_into(&mut status.message);
            let known = status.pod_cidr.as_mut().unwrap();
            (known.pods_in_old_range, known.pods_in_new_range) = (0, 40);
            (known.stage, known.source_blocks) = (None, Some(0));
        });
        assert_eq!(completed.end(), Some(Outcome::Done));
        insta::assert_snapshot!(shown(&completed), @r"
        Migration  pod-cidr
        Phase      Completed
        Progress   40/40 pods done
        Range      10.244.0.0/16 → 10.200.0.0/16
        Pods       0 in 10.244.0.0/16, 40 in 10.200.0.0/16
        Blocks     0 in the source range
        Took       5m0s (completed 0s ago)
        Message    every pod has an address of 10.200.0.0/16; IPPool default-ipv4-ippool, its blocks and all routes to
                   it are deleted
        ");
    }
}
