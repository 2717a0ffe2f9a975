//! The order in which nodes are migrated. The order is the same in every pass, so a restarted coordinator continues with the same
//! node.

/// The facts of a node that its place in the order depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<'node> {
    /// Name of the node.
    pub name: &'node str,
    /// Control plane nodes come after the workers.
    pub control_plane: bool,
    /// The node that the coordinator runs on comes last: it is evicted only once.
    pub coordinator: bool,
}

/// Sorts nodes: workers by name, control plane by name, the coordinator's own node last.
pub fn sort(places: &mut [Place<'_>]) {
    places.sort_by(|left, right| {
        (left.coordinator, left.control_plane, left.name).cmp(&(
            right.coordinator,
            right.control_plane,
            right.name,
        ))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_come_first_then_control_plane_then_the_coordinators_node() {
        let place = |name, control_plane, coordinator| Place {
            name,
            control_plane,
            coordinator,
        };
        let mut places = [
            place("a-control", true, false),
            place("worker-2", false, true),
            place("worker-3", false, false),
            place("b-control", true, false),
            place("worker-1", false, false),
        ];
        sort(&mut places);
        let names: Vec<&str> = places.iter().map(|place| place.name).collect();
        assert_eq!(
            names,
            ["worker-1", "worker-3", "a-control", "b-control", "worker-2"]
        );
    }
}
