use api::connection_sample::PortRange;
use rstest::rstest;

use super::*;
use crate::sampling::fixture::at;

fn status() -> ConnectionSampleStatus {
    ConnectionSampleStatus {
        since: Some(at(10)),
        last: Some(at(20)),
        client_ports: Some(PortRange {
            first: 32768,
            last: 60999,
        }),
        connections: vec![seen(80), seen(443)],
        ..ConnectionSampleStatus::default()
    }
}

fn seen(port: u16) -> SeenConnection {
    SeenConnection {
        protocol: 6,
        source: "10.244.1.7".parse().unwrap(),
        source_port: None,
        destination: "10.244.2.6".parse().unwrap(),
        port: Some(port),
        is_translated: false,
        count: 3,
        replied: 1,
        first: at(10),
        last: at(20),
    }
}

#[rstest]
#[case::time(|new: &mut ConnectionSampleStatus| new.last = Some(at(30)), SLOW_PACE)]
#[case::count(|new: &mut ConnectionSampleStatus| new.connections[0].count = 9, SLOW_PACE)]
#[case::more_replies(|new: &mut ConnectionSampleStatus| new.connections[0].replied = 2, SLOW_PACE)]
#[case::order(|new: &mut ConnectionSampleStatus| new.connections.reverse(), SLOW_PACE)]
#[case::first_reply(|new: &mut ConnectionSampleStatus| new.connections[0].replied = 0, PACE)]
#[case::new_kind(|new: &mut ConnectionSampleStatus| new.connections.push(seen(22)), PACE)]
#[case::problem(|new: &mut ConnectionSampleStatus| new.problem = Some("x".to_owned()), PACE)]
#[case::limitation(|new: &mut ConnectionSampleStatus| new.limitation = Some("x".to_owned()), PACE)]
#[case::first_replaced(|new: &mut ConnectionSampleStatus| new.replaced = 1, PACE)]
#[case::ports(|new: &mut ConnectionSampleStatus| new.client_ports = None, PACE)]
fn times_and_counts_alone_are_written_seldom(
    #[case] change: fn(&mut ConnectionSampleStatus),
    #[case] expected: Duration,
) {
    let mut new = status();
    change(&mut new);
    assert_eq!(pace(Some(&status()), &new), expected);
}

#[test]
fn a_sample_beyond_its_capacity_is_written_seldom() {
    let old = ConnectionSampleStatus {
        replaced: 1,
        ..status()
    };
    let new = ConnectionSampleStatus {
        replaced: 2,
        connections: vec![seen(22)],
        ..status()
    };
    assert_eq!(pace(Some(&old), &new), SLOW_PACE);
    assert_eq!(pace(None, &new), PACE);
}

#[test]
fn a_patch_names_the_object_and_removes_what_is_unset() {
    let object = serde_json::from_value::<ConnectionSample>(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "ConnectionSample",
        "metadata": { "name": "a", "uid": "u1" }, "spec": { "nodeName": "a", "migration": "m", "capacity": 9 },
        "status": { "problem": "x", "replaced": 0 },
    }))
    .unwrap();
    let wanted = ConnectionSampleStatus {
        replaced: 2,
        ..ConnectionSampleStatus::default()
    };
    let expected = json!({ "metadata": { "uid": "u1" }, "status": { "problem": null, "replaced": 2 } });
    assert_eq!(patch(&object, &wanted).unwrap(), expected);
}
