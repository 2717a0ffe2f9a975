use super::*;
use crate::sampling::fixture::{POD, SERVER, TCP, direct, unreplied};

fn connection(port: u16) -> TrackedConnection {
    direct(TCP, (POD, port), (SERVER, 80))
}

#[test]
fn a_connection_is_seen_first_once() {
    let mut known = KnownConnections::new(9);
    known.begin();
    assert_eq!(known.see(&connection(1)), Sighting::First);
    assert_eq!(known.see(&connection(1)), Sighting::Again, "twice in one listing");
    known.end(true);
    known.begin();
    assert_eq!(known.see(&connection(1)), Sighting::Again);
    assert_eq!(known.see(&connection(2)), Sighting::First);
}

#[test]
fn the_first_reply_is_seen_once() {
    let mut known = KnownConnections::new(9);
    let mut listing = |connection| {
        known.begin();
        let sighting = known.see(&connection);
        known.end(true);
        sighting
    };
    assert_eq!(listing(unreplied(connection(1))), Sighting::First);
    assert_eq!(listing(unreplied(connection(1))), Sighting::Again);
    assert_eq!(listing(connection(1)), Sighting::FirstReply);
    assert_eq!(listing(connection(1)), Sighting::Again);
    assert_eq!(known.count(), 1);
}

#[test]
fn number_zone_and_protocol_tell_connections_apart() {
    let mut known = KnownConnections::new(9);
    let first = connection(1);
    for other in [
        first,
        TrackedConnection { id: 77, ..first },
        TrackedConnection { zone: 5, ..first },
        TrackedConnection {
            protocol: 132,
            ..first
        },
    ] {
        assert_eq!(known.see(&other), Sighting::First);
    }
}

#[test]
fn what_a_complete_listing_does_not_have_is_forgotten() {
    let mut known = KnownConnections::new(9);
    known.see(&connection(1));
    known.begin();
    known.see(&connection(2));
    known.end(true);
    assert_eq!(known.count(), 1);
    assert_eq!(known.see(&connection(1)), Sighting::First);
    assert_eq!(known.see(&connection(2)), Sighting::Again);
}

#[test]
fn an_incomplete_listing_forgets_nothing() {
    let mut known = KnownConnections::new(9);
    known.see(&connection(1));
    known.begin();
    known.see(&connection(2));
    known.end(false);
    // A listing that was never ended is not complete.
    known.begin();
    known.see(&connection(3));
    known.begin();
    for port in [1, 2, 3] {
        assert_eq!(known.see(&connection(port)), Sighting::Again);
    }
}

#[test]
fn an_ended_connection_is_forgotten_at_once() {
    let mut known = KnownConnections::new(9);
    known.see(&unreplied(connection(1)));
    assert_eq!(known.see_end(&connection(1)), Sighting::FirstReply);
    assert_eq!(known.see_end(&connection(2)), Sighting::First);
    assert_eq!(known.count(), 0);
}

#[test]
fn a_listing_may_have_a_connection_that_has_just_ended() {
    let mut known = KnownConnections::new(9);
    known.begin();
    assert_eq!(known.see_end(&connection(1)), Sighting::First);
    assert_eq!(known.see(&connection(1)), Sighting::Again, "not counted twice");
    known.end(true);
    known.begin();
    known.end(true);
    assert_eq!(known.count(), 0);
}

#[test]
fn the_number_of_remembered_connections_is_bounded() {
    let mut known = KnownConnections::new(3);
    for round in 0..4 {
        known.begin();
        let sightings: Vec<Sighting> = (0..10).map(|port| known.see(&connection(port))).collect();
        let unknown = sightings.iter().filter(|one| **one == Sighting::Unknown).count();
        assert_eq!(unknown, 7, "round {round}: {sightings:?}");
        assert!(known.count() <= 6);
        known.end(round % 2 == 0);
        assert_eq!(known.count(), 3);
    }
    // Nothing has to be remembered of a connection that has ended.
    assert_eq!(known.see_end(&connection(9)), Sighting::First);
    assert_eq!(known.see_end(&connection(0)), Sighting::Again);
    assert_eq!(known.count(), 2);
}

#[test]
fn the_largest_table_is_not_larger_than_needed() {
    // The next connection would double the table.
    assert_eq!(HashSet::<u64>::with_capacity(MOST).capacity(), MOST);
}
