//! The parts of the tests.

use std::time::Duration;

/// Time limit of a default part, including its builds: all default parts together end within an hour on two cores.
const USUAL: Duration = Duration::from_mins(45);
/// Time limit of any other part.
const LONG: Duration = Duration::from_hours(2);

/// Number of nodes in a lab of the tests.
pub const SMALL: usize = 3;
/// Enough to migrate two nodes at a time.
const MEDIUM: usize = 5;
/// Enough for one node to fail, one to join and one to be deleted.
const LARGE: usize = 6;

/// The crates that a part compiles into the target folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Compiles {
    /// No crate.
    Nothing,
    /// The programs of the workspace.
    Programs,
    /// Every crate with its tests.
    Tests,
}

/// A part of the tests, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// cargo fmt --check.
    Format,
    /// Tests that need only the compiler, and no root.
    Unit,
    /// Builds the programs of a lab from their modules. This part, Deny, Go and Clippy run beside Kernel, with the
    /// lowest priority.
    Programs,
    /// cargo deny check bans licenses sources.
    Deny,
    /// Tests of the lab's own Go programs.
    Go,
    /// cargo clippy and cargo doc, with warnings as errors.
    Clippy,
    /// Tests in network namespaces of their own.
    Kernel,
    /// Conversion of Calico's data from etcd v2 to etcd v3: killed at every write, run twice at once, refused.
    Datastore,
    /// Tests against a real API server.
    Api,
    /// Migrations of simulated nodes, and the cost for the coordinator. Only if requested.
    Scale,
    /// Every refused prerequisite. Then in place, forward and back: Calico does not start, the API server stops, and
    /// everything is rolled back.
    Back,
    /// A migration without disturbance, with recreated pods. Only if requested.
    Fair,
    /// In place: no pod moves, no probe is lost, and pods of both networks live side by side. Only if requested.
    InPlace,
    /// Packets are dropped: the rollout stops, and continues after the user resumes it. Only if requested.
    Gate,
    /// Agent, coordinator and API server are killed in the middle of a step, forward and back. Only if requested.
    Crash,
    /// New address range for the pods of a cluster with Calico: every refused prerequisite, then the migration.
    PodCidr,
    /// The same migration with Calico's pools in etcd, with VXLAN; with `--tunnel none` without a tunnel.
    PodCidrEtcd,
    /// New address range for Services: every refused prerequisite, then the migration.
    ServiceCidr,
    /// Calico v2.6 with etcd: paused, then converted and rolled to v3.8 manually.
    CalicoV2,
    /// The same with replumb: every refused prerequisite, a rollback from each stage, and the complete migration.
    CalicoDatastore,
    /// Five nodes, at most two at a time. Only if requested.
    Wide,
    /// Disturbances. Only if requested.
    Storm,
    /// Objects of other owners: pods, budgets, policies, webhooks, floods. Only if requested.
    Strangers,
    /// 20 000 Services of another owner, and three that this owner edits, while Services exchange their addresses.
    /// Only if requested.
    StrangerServices,
}

impl Part {
    pub const ALL: [Self; 24] = [
        Self::Format,
        Self::Unit,
        Self::Programs,
        Self::Deny,
        Self::Go,
        Self::Clippy,
        Self::Kernel,
        Self::Datastore,
        Self::Api,
        Self::Scale,
        Self::Back,
        Self::Fair,
        Self::InPlace,
        Self::Gate,
        Self::Crash,
        Self::PodCidr,
        Self::PodCidrEtcd,
        Self::ServiceCidr,
        Self::CalicoV2,
        Self::CalicoDatastore,
        Self::Wide,
        Self::Storm,
        Self::Strangers,
        Self::StrangerServices,
    ];

    /// Whether the part runs if no parts are named.
    pub fn is_usual(self) -> bool {
        match self {
            Self::Format
            | Self::Unit
            | Self::Programs
            | Self::Deny
            | Self::Go
            | Self::Clippy
            | Self::Kernel
            | Self::Datastore
            | Self::Api
            | Self::Scale
            | Self::Back
            | Self::PodCidr
            | Self::PodCidrEtcd
            | Self::ServiceCidr
            | Self::CalicoV2
            | Self::CalicoDatastore => true,
            Self::Fair
            | Self::InPlace
            | Self::Gate
            | Self::Crash
            | Self::Wide
            | Self::Storm
            | Self::Strangers
            | Self::StrangerServices => false,
        }
    }

    /// Time limit: several times the duration on two cores, so that a part that hangs is named.
    pub fn limit(self) -> Duration {
        if self.is_usual() { USUAL } else { LONG }
    }

    /// Whether the part runs beside others, in idle processor time: its results do not depend on time.
    pub fn is_behind(self) -> bool {
        match self {
            Self::Programs | Self::Deny | Self::Go | Self::Clippy => true,
            Self::Format
            | Self::Unit
            | Self::Kernel
            | Self::Datastore
            | Self::Api
            | Self::Scale
            | Self::Back
            | Self::Fair
            | Self::InPlace
            | Self::Gate
            | Self::Crash
            | Self::PodCidr
            | Self::PodCidrEtcd
            | Self::ServiceCidr
            | Self::CalicoV2
            | Self::CalicoDatastore
            | Self::Wide
            | Self::Storm
            | Self::Strangers
            | Self::StrangerServices => false,
        }
    }

    /// Whether the part runs at the same time as its neighbour in the order. Kernel waits for clocks, and counts no probe.
    fn runs_with(self, next: Self) -> bool {
        let may = |part: Self| part.is_behind() || part == Self::Kernel;
        may(self) && may(next)
    }

    /// Number of nodes of the part's own lab; `None` if the part makes none.
    pub fn nodes(self) -> Option<usize> {
        match self {
            Self::Back
            | Self::Fair
            | Self::InPlace
            | Self::Gate
            | Self::Crash
            | Self::PodCidr
            | Self::PodCidrEtcd
            | Self::ServiceCidr
            | Self::CalicoV2
            | Self::CalicoDatastore
            | Self::Strangers
            | Self::StrangerServices => Some(SMALL),
            Self::Wide => Some(MEDIUM),
            Self::Storm => Some(LARGE),
            Self::Format
            | Self::Unit
            | Self::Programs
            | Self::Deny
            | Self::Go
            | Self::Clippy
            | Self::Kernel
            | Self::Datastore
            | Self::Api
            | Self::Scale => None,
        }
    }

    /// Whether the part makes its own lab.
    pub fn makes_a_lab(self) -> bool {
        self.nodes().is_some()
    }

    /// The crates that the part compiles.
    pub fn compiles(self) -> Compiles {
        match self {
            Self::Format | Self::Programs | Self::Deny | Self::Go => Compiles::Nothing,
            Self::Unit | Self::Clippy | Self::Kernel | Self::Api => Compiles::Tests,
            Self::Datastore
            | Self::Scale
            | Self::Back
            | Self::Fair
            | Self::InPlace
            | Self::Gate
            | Self::Crash
            | Self::PodCidr
            | Self::PodCidrEtcd
            | Self::ServiceCidr
            | Self::CalicoV2
            | Self::CalicoDatastore
            | Self::Wide
            | Self::Storm
            | Self::Strangers
            | Self::StrangerServices => Compiles::Programs,
        }
    }
}

/// The parts in their order, grouped by the parts that run at the same time.
pub fn shifts(parts: &[Part]) -> impl Iterator<Item = &[Part]> {
    parts.chunk_by(|part, next| part.runs_with(*next))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_part_runs_once_and_in_order() {
        let all: Vec<Part> = shifts(&Part::ALL).flatten().copied().collect();
        assert_eq!(all, Part::ALL);
        let names: BTreeSet<String> = Part::ALL.iter().map(|part| format!("{part:?}")).collect();
        let known = <Part as clap::ValueEnum>::value_variants();
        assert_eq!((names.len(), Part::ALL.as_slice()), (known.len(), known));
    }

    #[test]
    fn parts_without_timing_run_beside_the_kernel_part_and_no_part_runs_beside_a_lab() {
        let together: Vec<&[Part]> = shifts(&Part::ALL).filter(|shift| shift.len() > 1).collect();
        let expected = [Part::Programs, Part::Deny, Part::Go, Part::Clippy, Part::Kernel];
        assert_eq!(together, [expected]);
        assert!(expected.iter().all(|part| !part.makes_a_lab()));
        // The parts that run only if requested.
        let asked = [Part::Go, Part::Kernel, Part::Api];
        let shifts: Vec<&[Part]> = shifts(&asked).collect();
        assert_eq!(shifts, [&asked[..2], &asked[2..]]);
    }

    #[test]
    fn each_part_has_a_time_limit() {
        for part in Part::ALL {
            let usual = part.is_usual();
            assert_eq!(part.limit() < Duration::from_hours(1), usual, "{part:?}");
        }
    }
}
