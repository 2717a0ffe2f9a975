//! Which traffic pods a node has: one of each network that pods of the node live on.

use super::Generation;

/// Where a node is, as far as its traffic pods care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// What is done with the node.
    pub stand: Stand,
    /// Whether pods of the old network live on beside the new one.
    pub in_place: bool,
    /// Whether the Node is on the old network by its label.
    pub on_old: bool,
    /// Whether the Node is Ready, and the agent that a pod would report to.
    pub usable: bool,
    /// Whether other pods of the old network live on it; `None` while its agent has not said.
    pub others_of_old: Option<bool>,
}

/// What is done with the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// Nothing yet, or nothing any more.
    Idle,
    /// It goes to the new network.
    There,
    /// It goes back.
    Back,
    /// It is on the new network.
    Done,
}

/// What becomes of the traffic pod of one network on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has to be there.
    Wanted,
    /// It may stay where it is, and is not made.
    Kept,
    /// It has to go.
    Unwanted,
}

/// What becomes of the node's traffic pod of this network.
pub fn fate(generation: Generation, place: Place) -> Fate {
    let make = if place.usable { Fate::Wanted } else { Fate::Kept };
    match (generation, place.stand) {
        (Generation::Old, Stand::Idle) if place.on_old => make,
        (Generation::New, Stand::Done) => make,
        // In place the pods of the old network live through the change, and this one with them. It must not be the last
        // one for whose sake that network stays.
        (Generation::Old, Stand::There | Stand::Back) if place.in_place => Fate::Kept,
        (Generation::Old, Stand::Done) if place.in_place && place.others_of_old != Some(false) => Fate::Kept,
        (Generation::Old, Stand::Idle | Stand::Back) => Fate::Kept,
        // By drain they leave. And an address of the new network's is worth nothing where that is not there.
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
    #[case::another_moved_it(Place { on_old: false, ..PLACE }, Fate::Kept, Fate::Unwanted)]
    #[case::in_work(Place { stand: Stand::There, ..PLACE }, Fate::Kept, Fate::Unwanted)]
    #[case::drained(Place { stand: Stand::There, in_place: false, ..PLACE }, Fate::Unwanted, Fate::Unwanted)]
    #[case::done(Place { stand: Stand::Done, on_old: false, ..PLACE }, Fate::Kept, Fate::Wanted)]
    #[case::done_silent(Place { stand: Stand::Done, others_of_old: None, ..PLACE }, Fate::Kept, Fate::Wanted)]
    #[case::last_of_old(Place { stand: Stand::Done, others_of_old: Some(false), ..PLACE }, Fate::Unwanted, Fate::Wanted)]
    #[case::done_by_drain(Place { stand: Stand::Done, in_place: false, ..PLACE }, Fate::Unwanted, Fate::Wanted)]
    #[case::back(Place { stand: Stand::Back, ..PLACE }, Fate::Kept, Fate::Unwanted)]
    fn which_pods_a_node_has(#[case] place: Place, #[case] old: Fate, #[case] new: Fate) {
        assert_eq!(
            (fate(Generation::Old, place), fate(Generation::New, place)),
            (old, new)
        );
    }
}
