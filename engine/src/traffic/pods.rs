//! The traffic pods of a node: one in each network that pods of the node use.

use super::Generation;

/// The state of a node that its traffic pods depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The progress of the node.
    pub stand: Stand,
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
pub enum Stand {
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
pub enum Fate {
    /// The pod is needed: it is created if it is missing.
    Wanted,
    /// An existing pod is kept; no pod is created.
    Kept,
    /// The pod is deleted.
    Unwanted,
}

/// The decision about the node's traffic pod of this network.
pub fn fate(generation: Generation, place: Place) -> Fate {
    let make = if place.usable { Fate::Wanted } else { Fate::Kept };
    match (generation, place.stand) {
        (Generation::Old, Stand::Idle) if place.on_old => make,
        (Generation::New, Stand::Done) => make,
        // In place the pods of the old network survive the change, and the traffic pod, too. The old network must not stay
        // only because of its traffic pod.
        (Generation::Old, Stand::There | Stand::Back) if place.in_place => Fate::Kept,
        (Generation::Old, Stand::Done) if place.in_place && place.others_of_old != Some(false) => Fate::Kept,
        (Generation::Old, Stand::Idle | Stand::Back) => Fate::Kept,
        // With a drain they leave. And a pod cannot use an address of the new network before the node has that network.
        (Generation::Old, Stand::There | Stand::Done) | (Generation::New, _) => Fate::Unwanted,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const PLACE: Place = Place {
        stand: Stand::Idle,
        in_place: true,
        on_old: true,
        usable: true,
        others_of_old: Some(true),
    };

    #[rstest]
    #[case::before(PLACE, Fate::Wanted, Fate::Unwanted)]
    #[case::not_ready(Place { usable: false, ..PLACE }, Fate::Kept, Fate::Unwanted)]
    #[case::moved_by_another_client(Place { on_old: false, ..PLACE }, Fate::Kept, Fate::Unwanted)]
    #[case::being_migrated(Place { stand: Stand::There, ..PLACE }, Fate::Kept, Fate::Unwanted)]
    #[case::drained(Place { stand: Stand::There, in_place: false, ..PLACE }, Fate::Unwanted, Fate::Unwanted)]
    #[case::done(Place { stand: Stand::Done, on_old: false, ..PLACE }, Fate::Kept, Fate::Wanted)]
    #[case::done_silent(Place { stand: Stand::Done, others_of_old: None, ..PLACE }, Fate::Kept, Fate::Wanted)]
    #[case::last_of_old(Place { stand: Stand::Done, others_of_old: Some(false), ..PLACE }, Fate::Unwanted, Fate::Wanted)]
    #[case::done_by_drain(Place { stand: Stand::Done, in_place: false, ..PLACE }, Fate::Unwanted, Fate::Wanted)]
    #[case::back(Place { stand: Stand::Back, ..PLACE }, Fate::Kept, Fate::Unwanted)]
    fn the_state_of_a_node_decides_its_traffic_pods(
        #[case] place: Place,
        #[case] old: Fate,
        #[case] new: Fate,
    ) {
        assert_eq!(
            (fate(Generation::Old, place), fate(Generation::New, place)),
            (old, new)
        );
    }
}
