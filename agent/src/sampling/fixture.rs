//! Connections that several files of tests share.

use std::net::IpAddr;

use api::connection_sample::{ConnectionSampleSpec, PortRange};
use jiff::Timestamp;
use policy::conntrack::Tuple;

use crate::host::netlink::conntrack::TrackedConnection;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const CLIENTS: PortRange = PortRange {
    first: 32768,
    last: 60999,
};
pub const POD: &str = "10.244.1.7";
pub const SERVER: &str = "10.244.2.6";

pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn tuple((source, source_port): (&str, u16), (destination, destination_port): (&str, u16)) -> Tuple {
    Tuple {
        source: address(source),
        destination: address(destination),
        source_port,
        destination_port,
    }
}

/// A connection without NAT, with a reply. Its number is the port of the client.
pub fn direct(protocol: u8, client: (&str, u16), server: (&str, u16)) -> TrackedConnection {
    TrackedConnection {
        id: u32::from(client.1),
        zone: 0,
        protocol,
        original: tuple(client, server),
        reply: tuple(server, client),
        is_replied: true,
    }
}

/// A connection that the client sent to a Service, and that a pod answers.
pub fn to_service(client: (&str, u16), service: (&str, u16), pod: (&str, u16)) -> TrackedConnection {
    TrackedConnection {
        original: tuple(client, service),
        ..direct(TCP, client, pod)
    }
}

pub fn unreplied(connection: TrackedConnection) -> TrackedConnection {
    TrackedConnection {
        is_replied: false,
        ..connection
    }
}

pub fn spec(capacity: u32, ingress: &[&str], egress: &[&str]) -> ConnectionSampleSpec {
    let addresses = |texts: &[&str]| texts.iter().map(|text| address(text)).collect();
    ConnectionSampleSpec {
        node_name: "a".to_owned(),
        migration: "m".to_owned(),
        capacity,
        ingress: addresses(ingress),
        egress: addresses(egress),
    }
}
