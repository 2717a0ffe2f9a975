//! The traffic pods of a node: one in each network that pods of the node use.

use super::Generation;

/// The state of a node that its traffic pods depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The progress of the node.
    pub progress: NodeProgress,
    /// Whether pods of the old network continue to run beside the new network.
    pub in_place: bool,
    /// Whether the Node is on the old network by its label.
    pub on_old: bool,
    /// Whether the Node is Ready, and its agent, which the pod reports to.
    pub usable: bool,
    /// Whether other pods of the old network run on the node; `None` while its agent has not reported.
    pub others_of_old: Option<bool>,
}

/// The progress of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeProgress {
    /// The node is not being migrated.
    Idle,
    /// The node is being moved to the new network.
    There,
    /// The node is being rolled back.
    Back,
    /// The node is on the new network.
    Done,
}

/// The decision about the traffic pod of one network on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodDecision {
    /// The pod is needed: it is created if it is missing.
    Wanted,
    /// An existing pod is kept; no pod is created.
    Kept,
    /// The pod is deleted.
    Unwanted,
}

/// The decision about the node's traffic pod of this network.
pub fn decide(generation: Generation, place: Place) -> PodDecision {
    let make = if place.usable {
        PodDecision::Wanted
    } else {
        PodDecision::Kept
    };
    match (generation, place.progress) {
        (Generation::Old, NodeProgress::Idle) if place.on_old => make,
        (Generation::New, NodeProgress::Done) => make,
        // In place the pods of the old network survive the change, and the traffic pod, too. The old network must not stay
        // only because of its traffic pod.
        (Generation::Old, NodeProgress::There | NodeProgress::Back) if place.in_place => PodDecision::Kept,
        (Generation::Old, NodeProgress::Done) if place.in_place && place.others_of_old != Some(false) => {
            PodDecision::Kept
        }
        (Generation::Old, NodeProgress::Idle | NodeProgress::Back) => PodDecision::Kept,
        // With a drain they leave. And a pod cannot use an address of the new network before the node has that network.
        (Generation::Old, NodeProgress::There | NodeProgress::Done) | (Generation::New, _) => {
            PodDecision::Unwanted
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const PLACE: Place = Place {
        progress: NodeProgress::Idle,
        in_place: true,
        on_old: true,
        usable: true,
        others_of_old: Some(true),
    };

    #[rstest]
    #[case::before(PLACE, PodDecision::Wanted, PodDecision::Unwanted)]
    #[case::not_ready(Place { usable: false, ..PLACE }, PodDecision::Kept, PodDecision::Unwanted)]
    #[case::moved_by_another_client(Place { on_old: false, ..PLACE }, PodDecision::Kept, PodDecision::Unwanted)]
    #[case::being_migrated(Place { progress: NodeProgress::There, ..PLACE }, PodDecision::Kept, PodDecision::Unwanted)]
    #[case::drained(Place { progress: NodeProgress::There, in_place: false, ..PLACE }, PodDecision::Unwanted, PodDecision::Unwanted)]
    #[case::done(Place { progress: NodeProgress::Done, on_old: false, ..PLACE }, PodDecision::Kept, PodDecision::Wanted)]
    #[case::done_silent(Place { progress: NodeProgress::Done, others_of_old: None, ..PLACE }, PodDecision::Kept, PodDecision::Wanted)]
    #[case::last_of_old(Place { progress: NodeProgress::Done, others_of_old: Some(false), ..PLACE }, PodDecision::Unwanted, PodDecision::Wanted)]
    #[case::done_by_drain(Place { progress: NodeProgress::Done, in_place: false, ..PLACE }, PodDecision::Unwanted, PodDecision::Wanted)]
    #[case::back(Place { progress: NodeProgress::Back, ..PLACE }, PodDecision::Kept, PodDecision::Unwanted)]
    fn the_state_of_a_node_decides_its_traffic_pods(
        #[case] place: Place,
        #[case] old: PodDecision,
        #[case] new: PodDecision,
    ) {
        assert_eq!(
            (decide(Generation::Old, place), decide(Generation::New, place)),
            (old, new)
        );
    }
}
