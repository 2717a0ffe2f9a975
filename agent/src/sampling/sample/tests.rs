use super::*;
use crate::sampling::fixture::{
    CLIENTS, POD, SERVER, TCP, UDP, address, at, direct, spec, to_service, unreplied,
};

fn listen(sample: &mut Sample, connections: &[TrackedConnection], second: i64) {
    sample.begin(CLIENTS);
    for connection in connections {
        sample.see(connection, at(second));
    }
    sample.end(Ok(at(second)));
}

fn sample(capacity: u32) -> Sample {
    Sample::new(&spec(capacity, &[SERVER], &[]))
}

/// The port and the count of each kind.
fn counts(sample: &Sample) -> Vec<(Option<u16>, u64)> {
    let seen = sample.status().connections;
    seen.iter().map(|seen| (seen.port, seen.count)).collect()
}

#[test]
fn connections_of_one_kind_are_one_item() {
    let mut sample = sample(9);
    let connections: Vec<_> = (40000..40005)
        .map(|port| direct(TCP, (POD, port), (SERVER, 80)))
        .chain([
            unreplied(direct(UDP, (POD, 40000), (SERVER, 53))),
            direct(TCP, (SERVER, 40000), (POD, 80)),
        ])
        .collect();
    listen(&mut sample, &connections, 7);
    let seen = |protocol, port, count, replied| SeenConnection {
        protocol,
        source: address(POD),
        source_port: None,
        destination: address(SERVER),
        port: Some(port),
        is_translated: false,
        count,
        replied,
        first: at(7),
        last: at(7),
    };
    let expected = ConnectionSampleStatus {
        since: Some(at(7)),
        last: Some(at(7)),
        client_ports: Some(CLIENTS),
        connections: vec![seen(TCP, 80, 5, 5), seen(UDP, 53, 1, 0)],
        ..ConnectionSampleStatus::default()
    };
    assert_eq!(sample.status(), expected);
}

#[test]
fn a_connection_counts_once_in_all_readings() {
    let mut sample = sample(9);
    let long = direct(TCP, (POD, 40000), (SERVER, 80));
    listen(&mut sample, &[unreplied(long)], 10);
    for second in [20, 30, 40] {
        listen(&mut sample, &[long], second);
    }
    let status = sample.status();
    assert_eq!((status.since, status.last), (Some(at(10)), Some(at(40))));
    let seen = &status.connections[0];
    assert_eq!((seen.count, seen.replied), (1, 1));
    assert_eq!((seen.first, seen.last), (at(10), at(40)));
}

#[test]
fn a_connection_that_ended_between_two_readings_counts() {
    let mut sample = sample(9);
    let (long, short) = (
        direct(TCP, (POD, 40000), (SERVER, 80)),
        direct(TCP, (POD, 40001), (SERVER, 80)),
    );
    listen(&mut sample, &[unreplied(long)], 10);
    sample.see_end(&short, at(12));
    sample.see_end(&long, at(13));
    listen(&mut sample, &[], 20);
    let seen = &sample.status().connections[0];
    assert_eq!((seen.count, seen.replied, seen.last), (2, 2, at(13)));
}

#[test]
fn an_answer_that_is_seen_first_has_the_port_of_its_sender() {
    let mut sample = sample(9);
    listen(&mut sample, &[direct(TCP, (SERVER, 80), (POD, 40000))], 10);
    let seen = &sample.status().connections[0];
    assert_eq!((seen.source, seen.destination), (address(SERVER), address(POD)));
    assert_eq!((seen.source_port, seen.port), (Some(80), None));
}

#[test]
fn a_connection_to_a_service_has_the_pod_behind_it() {
    let mut sample = sample(9);
    listen(
        &mut sample,
        &[to_service((POD, 45000), ("10.96.0.60", 80), (SERVER, 8080))],
        10,
    );
    let seen = &sample.status().connections[0];
    assert_eq!((seen.destination, seen.port), (address(SERVER), Some(8080)));
    assert!(seen.is_translated);
}

#[test]
fn beyond_the_capacity_the_most_frequent_kinds_stay_and_the_others_are_counted() {
    let mut sample = sample(2);
    let client = |port, server_port| direct(TCP, (POD, port), (SERVER, server_port));
    let connections: Vec<_> = (40000..40010)
        .map(|port| client(port, 80))
        .chain((40010..40015).map(|port| client(port, 443)))
        .chain([client(40020, 1), client(40021, 2)])
        .collect();
    listen(&mut sample, &connections, 10);
    let status = sample.status();
    assert_eq!(status.connections.len(), 2);
    assert_eq!(counts(&sample)[0], (Some(80), 10));
    assert_eq!(status.replaced, 2);
    assert_eq!((sample.kinds(), sample.replaced()), (2, 2));
}

#[test]
fn another_capacity_keeps_what_was_seen() {
    let mut sample = sample(2);
    let connections = [
        direct(TCP, (POD, 40000), (SERVER, 80)),
        direct(TCP, (POD, 40001), (SERVER, 80)),
        direct(TCP, (POD, 40002), (SERVER, 443)),
    ];
    listen(&mut sample, &connections, 10);
    sample.set(&spec(3, &[SERVER], &[]));
    assert_eq!(counts(&sample), [(Some(80), 2), (Some(443), 1)]);
    assert_eq!(sample.replaced(), 0);
    sample.set(&spec(1, &[SERVER], &[]));
    assert_eq!(counts(&sample), [(Some(80), 2)]);
    assert_eq!(sample.replaced(), 1);
    listen(&mut sample, &connections, 20);
    assert_eq!(
        counts(&sample),
        [(Some(80), 2)],
        "known connections count no more"
    );
}

#[test]
fn the_capacity_has_a_limit() {
    for (asked, given) in [(0, 1), (MAX_CAPACITY + 1, MAX_CAPACITY), (u32::MAX, MAX_CAPACITY)] {
        let mut sample = sample(asked);
        let connections: Vec<_> = (1..=3000)
            .map(|port| direct(TCP, (POD, 40000), (SERVER, port)))
            .collect();
        listen(&mut sample, &connections, 10);
        assert_eq!(sample.status().connections.len(), given as usize);
    }
}

#[test]
fn an_address_takes_part_in_one_complete_reading_at_least() {
    let mut sample = sample(9);
    let of_other = direct(TCP, (POD, 40000), ("10.244.2.7", 80));
    let is_seen = |sample: &Sample| {
        let seen = sample.status().connections;
        seen.iter().any(|seen| seen.destination == address("10.244.2.7"))
    };
    // A pod that lives between two readings.
    sample.set(&spec(9, &[SERVER, "10.244.2.7"], &[]));
    sample.set(&spec(9, &[SERVER], &[]));
    sample.begin(CLIENTS);
    sample.end(Err("interrupted".to_owned()));
    assert!(!is_seen(&sample));
    listen(&mut sample, &[of_other], 10);
    assert!(is_seen(&sample));
    assert_eq!(counts(&sample), [(Some(80), 1)]);
    let another = direct(TCP, (POD, 40001), ("10.244.2.7", 80));
    listen(&mut sample, &[of_other, another], 20);
    assert_eq!(
        counts(&sample),
        [(Some(80), 1)],
        "its address is not sampled any more"
    );
    assert!(is_seen(&sample), "what was seen stays");
}

#[test]
fn a_reading_that_is_not_complete_is_a_problem_and_no_reading() {
    let mut sample = sample(9);
    let connection = direct(TCP, (POD, 40000), (SERVER, 80));
    sample.begin(CLIENTS);
    sample.see(&connection, at(10));
    sample.end(Err("the table changed".to_owned()));
    let status = sample.status();
    assert_eq!((status.since, status.last), (None, None));
    assert_eq!(status.problem.as_deref(), Some("the table changed"));
    assert_eq!(counts(&sample), [(Some(80), 1)], "what was seen exists");
    listen(&mut sample, &[connection], 20);
    let status = sample.status();
    assert_eq!((status.since, status.problem), (Some(at(20)), None));
    assert_eq!(counts(&sample), [(Some(80), 1)], "counted once");
    sample.begin(CLIENTS);
    sample.end(Err("x".repeat(9000)));
    let status = sample.status();
    assert_eq!(status.last, Some(at(20)));
    assert!(status.problem.unwrap().len() <= TEXT);
}

#[test]
fn gaps_are_counted_and_stay() {
    let mut sample = sample(9);
    listen(&mut sample, &[direct(TCP, (POD, 40000), (SERVER, 80))], 0);
    assert_eq!(sample.status().limitation, None);
    sample.miss(at(0), "the kernel dropped events");
    sample.miss(at(3600), &"x".repeat(9000));
    listen(&mut sample, &[], 4000);
    let text = sample.status().limitation.unwrap();
    let start = "connections that began and ended between two readings may be missing: 2 gaps, \
                 the last one at 1970-01-01T01:00:00Z: xxx";
    assert!(text.starts_with(start), "{text}");
    assert!(text.len() <= TEXT, "{}", text.len());
}

#[test]
fn a_family_without_a_single_connection_may_be_untracked() {
    let mut sample = Sample::new(&spec(9, &["fd00::7"], &[POD]));
    let limitation = |sample: &Sample| sample.status().limitation;
    assert_eq!(limitation(&sample), None, "before the first reading");
    listen(&mut sample, &[direct(TCP, (POD, 40000), (SERVER, 80))], 10);
    let text = limitation(&sample).unwrap();
    assert!(text.contains("no IPv6 connection was seen on the host"), "{text}");
    listen(
        &mut sample,
        &[direct(TCP, ("fd00::8", 40000), ("fd00::9", 80))],
        20,
    );
    assert_eq!(limitation(&sample), None);
    assert_eq!(sample.kinds(), 1);
    listen(&mut sample, &[], 30);
    assert_eq!(limitation(&sample), None, "seen once");
}

#[test]
fn connections_beyond_memory_lose_no_kind() {
    let mut sample = sample(9);
    sample.known = KnownConnections::new(2);
    let of_kind = |port| (40000..40010).map(move |client| direct(TCP, (POD, client), (SERVER, port)));
    let connections: Vec<_> = of_kind(80).chain(of_kind(443)).collect();
    for second in [10, 20, 30] {
        listen(&mut sample, &connections, second);
    }
    assert_eq!(counts(&sample), [(Some(80), 2), (Some(443), 1)]);
    let text = sample.status().limitation.unwrap();
    assert!(text.contains("counts may be too small"), "{text}");
    for connection in &connections {
        sample.see_end(connection, at(31));
    }
    assert_eq!(counts(&sample), [(Some(443), 11), (Some(80), 10)]);
}
