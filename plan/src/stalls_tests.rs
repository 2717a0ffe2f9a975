use super::*;
use crate::drain::Pod;
use crate::moves::{Movers, Resident, Role};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn workload(namespace: &str, name: &str) -> Workload {
    Workload {
        kind: "Deployment".to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// A cluster in which pods of these namespaces have moved and are not Ready, and others have to move still.
struct World {
    pods: Vec<(Pod, Workload)>,
    stalls: Stalls,
    goes_back: bool,
}

impl World {
    fn of(ill: &[&str]) -> Self {
        let pod = |namespace: &str, name: &str, address: &str, ready: bool| {
            let pod = Pod {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                controller: Some(("ReplicaSet".to_owned(), name.to_owned())),
                addresses: vec![address.parse().unwrap()],
                ready,
                ..Pod::default()
            };
            (pod, workload(namespace, name))
        };
        let mut pods: Vec<(Pod, Workload)> = ill
            .iter()
            .map(|namespace| pod(namespace, "ill", "10.200.0.7", false))
            .collect();
        pods.extend(
            ill.iter()
                .map(|namespace| pod(namespace, "next", "10.244.0.7", true)),
        );
        Self {
            pods,
            stalls: Stalls::default(),
            goes_back: false,
        }
    }

    fn look(&mut self, seconds: i64) -> Vec<String> {
        let residents: Vec<Resident<'_>> = self
            .pods
            .iter()
            .map(|(pod, workload)| Resident {
                pod,
                workload: Some(workload),
                role: Role::Any,
                made_since: false,
            })
            .collect();
        let wanted = |(_, workload): &(Pod, Workload)| {
            let health = Health {
                wanted: 1,
                ..Health::default()
            };
            (workload.clone(), health)
        };
        let workloads = self.pods.iter().map(wanted).collect();
        let view = View {
            residents: &residents,
            movers: Movers::OutOf(&["10.200.0.0/16".parse().unwrap()]),
            budgets: &[],
            refusals: &BTreeMap::new(),
            workloads: &workloads,
            only: None,
        };
        let found = self.stalls.look(&view, self.goes_back, at(seconds));
        found.keys().map(Workload::key).collect()
    }
}

const NONE: [&str; 0] = [];

#[test]
fn a_namespace_of_which_nothing_moves_is_waited_for_for_some_minutes() {
    let mut world = World::of(&["tenant"]);
    assert_eq!(world.look(0), NONE);
    assert_eq!(world.look(299), NONE);
    assert_eq!(world.look(300), ["Deployment tenant/ill"]);
    // Another of its workloads in its place makes no difference: its owner does not begin the time again.
    world.pods[0].1.name = "worse".to_owned();
    assert_eq!(world.look(301), ["Deployment tenant/worse"]);
    world.pods[0].0.ready = true;
    assert_eq!(world.look(302), NONE);
    world.pods[0].0.ready = false;
    assert_eq!(world.look(303), NONE, "the time begins again");
}

#[test]
fn while_its_pods_move_a_namespace_does_not_stall() {
    let mut world = World::of(&["tenant"]);
    assert_eq!(world.look(0), NONE);
    world.pods[1].0.addresses = vec!["10.200.0.8".parse().unwrap()];
    assert_eq!(world.look(290), NONE);
    assert_eq!(world.look(310), NONE);
    assert_eq!(world.look(590), ["Deployment tenant/ill"]);
}

#[test]
fn many_namespaces_at_once_may_be_the_network() {
    let mut world = World::of(&["a", "b", "c", "d"]);
    assert_eq!(world.look(0), NONE);
    assert_eq!(world.look(300), NONE);
    world.goes_back = true;
    assert_eq!(world.look(301).len(), 4, "the way back leads out of it");
    let mut world = World::of(&["a", "b", "c"]);
    world.look(0);
    assert_eq!(world.look(300).len(), 3);
}

#[test]
fn what_all_others_need_is_waited_for() {
    let mut world = World::of(&["kube-system", "calico-system"]);
    world.look(0);
    assert_eq!(world.look(3000), NONE);
}

#[test]
fn a_clock_that_was_set_makes_nothing_stall_at_once() {
    let mut world = World::of(&["tenant"]);
    world.look(0);
    assert_eq!(world.look(-5000), NONE);
    assert_eq!(world.look(-4701), NONE);
    assert_eq!(world.look(-4700), ["Deployment tenant/ill"]);
}
