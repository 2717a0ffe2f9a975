//! What the tests consist of.

use std::time::Duration;

/// How long a usual part may take, and what it builds first: all of them together end within an hour on two cores.
const USUAL: Duration = Duration::from_mins(45);
/// How long one of the others may take.
const LONG: Duration = Duration::from_hours(2);

/// A part of the tests, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// cargo fmt --check.
    Format,
    /// Tests that need neither root nor anything else than the compiler.
    Unit,
    /// The programs of a lab are built from their modules. This part, Deny, Go and Clippy run beside Kernel, with the lowest priority.
    Programs,
    /// cargo deny check bans licenses sources.
    Deny,
    /// Tests of the lab's own Go programs.
    Go,
    /// cargo clippy with warnings as errors.
    Clippy,
    /// Tests in network namespaces of their own.
    Kernel,
    /// Calico's data from etcd v2 to etcd v3: killed at every write, two at once, refused.
    Datastore,
    /// Tests against a real API server.
    Api,
    /// Migrations of nodes that are played, and what they cost the coordinator. Only when it is asked for.
    Scale,
    /// Every refused prerequisite. Then in place, there and back: a Calico that never starts, an API server that is gone, and everything
    /// is taken back.
    Back,
    /// A migration in fair weather, pods recreated. Only when it is asked for.
    Fair,
    /// In place: nobody is moved, nothing is lost, and pods of both networks live side by side. Only when it is asked for.
    InPlace,
    /// Packets are dropped: the rollout stops, and goes on when a person says so. Only when it is asked for.
    Gate,
    /// Agent, coordinator and API server are struck in mid-step, there and back. Only when it is asked for.
    Crash,
    /// Another range for the pods of a cluster with Calico: every refused prerequisite, then the migration.
    PodCidr,
    /// The same migration where Calico keeps its pools in etcd, with VXLAN; with `--tunnel none` without a tunnel.
    PodCidrEtcd,
    /// Another range for Services: every refused prerequisite, then the migration.
    ServiceCidr,
    /// Calico v2.6 with etcd: paused, and then converted and rolled to v3.8 by hand.
    CalicoV2,
    /// The same by replumb: every refused prerequisite, taken back from each stage, and the whole way.
    CalicoDatastore,
    /// Five nodes, two at a time, never more. Only when it is asked for.
    Wide,
    /// Bad weather. Only when it is asked for.
    Storm,
    /// Objects of strangers: pods, budgets, policies, webhooks, floods. Only when it is asked for.
    Strangers,
    /// 20 000 Services of a stranger, and three that the stranger edits, while Services exchange their addresses. Only when it is asked for.
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

    /// Whether it runs where nobody names parts.
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

    /// How long it may take: several times what it takes on two cores, so that what hangs is named.
    pub fn limit(self) -> Duration {
        if self.is_usual() { USUAL } else { LONG }
    }

    /// Whether it runs beside others, with what they leave of the processor: nothing that it says depends on time.
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

    /// Whether it runs at the same time as its neighbour in the order. Kernel waits for clocks, and counts no probe.
    fn runs_with(self, next: Self) -> bool {
        let may = |part: Self| part.is_behind() || part == Self::Kernel;
        may(self) && may(next)
    }

    /// Whether it runs in a lab of its own.
    pub fn makes_a_lab(self) -> bool {
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
            | Self::Wide
            | Self::Storm
            | Self::Strangers
            | Self::StrangerServices => true,
            Self::Format
            | Self::Unit
            | Self::Programs
            | Self::Deny
            | Self::Go
            | Self::Clippy
            | Self::Kernel
            | Self::Datastore
            | Self::Api
            | Self::Scale => false,
        }
    }
}

/// Parts in their order, those together that run at the same time.
pub fn shifts(parts: &[Part]) -> impl Iterator<Item = &[Part]> {
    parts.chunk_by(|part, next| part.runs_with(*next))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_part_runs_once_and_in_its_order() {
        let all: Vec<Part> = shifts(&Part::ALL).flatten().copied().collect();
        assert_eq!(all, Part::ALL);
        let names: BTreeSet<String> = Part::ALL.iter().map(|part| format!("{part:?}")).collect();
        let known = <Part as clap::ValueEnum>::value_variants();
        assert_eq!((names.len(), Part::ALL.as_slice()), (known.len(), known));
    }

    #[test]
    fn what_depends_on_no_time_runs_beside_the_kernel_and_nothing_beside_a_lab() {
        let together: Vec<&[Part]> = shifts(&Part::ALL).filter(|shift| shift.len() > 1).collect();
        let expected = [Part::Programs, Part::Deny, Part::Go, Part::Clippy, Part::Kernel];
        assert_eq!(together, [expected]);
        assert!(expected.iter().all(|part| !part.makes_a_lab()));
        // Those that are asked for alone.
        let asked = [Part::Go, Part::Kernel, Part::Api];
        let shifts: Vec<&[Part]> = shifts(&asked).collect();
        assert_eq!(shifts, [&asked[..2], &asked[2..]]);
    }

    #[test]
    fn each_part_has_an_end() {
        for part in Part::ALL {
            let usual = part.is_usual();
            assert_eq!(part.limit() < Duration::from_hours(1), usual, "{part:?}");
        }
    }
}
