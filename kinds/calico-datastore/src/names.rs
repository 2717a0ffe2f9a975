//! Names of v3 objects. A name that v3 does not allow is normalized and, except for nodes, gets a hash of the old name, so that
//! two names stay different (libcalico-go, `lib/upgrade/converters/names.go`).

use std::net::IpAddr;

use data_encoding::HEXLOWER;
use sha1::{Digest as _, Sha1};

use super::go_values::lower;
use super::network::Network;
use super::report::Cause;

/// Number of digits of the hash.
const HASH_LENGTH: usize = 8;

/// Normalizes a name: lower case; `/` becomes a dot; runs of other characters become a dash; a dot has no other dots or dashes
/// beside it; dots and dashes at the ends are removed. A name without valid characters becomes empty.
fn normal(name: &str) -> String {
    let mut normal = String::new();
    // Separator between two letters: none, a number of dashes, or one dot.
    let mut dashes = 0;
    let mut dot = false;
    let mut other = false;
    for letter in lower(name).chars() {
        match letter {
            'a'..='z' | '0'..='9' => {
                if !normal.is_empty() {
                    if dot {
                        normal.push('.');
                    } else {
                        normal.extend(std::iter::repeat_n('-', dashes));
                    }
                }
                normal.push(letter);
                (dashes, dot, other) = (0, false, false);
            }
            '.' | '/' => (dot, other) = (true, false),
            '-' => (dashes, other) = (dashes + 1, false),
            _ => {
                if !other {
                    dashes += 1;
                }
                other = true;
            }
        }
    }
    normal
}

/// The name of a node: only normalized, because it is the name of the host. Two hosts can get the same name.
pub fn node(name: &str) -> String {
    normal(name)
}

/// A name that can have dots.
pub fn name(original: &str) -> String {
    qualified(original, normal(original))
}

/// A name without dots, for policies.
pub fn name_without_dots(original: &str) -> String {
    qualified(original, normal(original).replace('.', "-"))
}

/// The name of a profile. Profiles of namespaces have another prefix in v3.
pub fn profile(original: &str) -> String {
    match original.strip_prefix("k8s_ns.") {
        Some(namespace) => name(&format!("kns.{namespace}")),
        None => name(original),
    }
}

/// An address inside a name: `10-0-0-1`, `fd00-0000-…-0001`; empty for no address.
pub fn address(address: Option<IpAddr>) -> String {
    match address {
        Some(IpAddr::V4(address)) => address.to_string().replace('.', "-"),
        Some(IpAddr::V6(address)) => address.segments().map(|group| format!("{group:04x}")).join("-"),
        None => String::new(),
    }
}

/// The name of a pool: its network with a dash for every dot, colon and slash.
pub fn network(network: &Network) -> String {
    network.to_string().replace(['.', ':', '/'], "-")
}

/// A part of the name of a workload endpoint: its field and its value.
pub type Segment<'text> = (&'static str, &'text str);

/// The name of a workload endpoint: all parts with doubled dashes, separated by dashes. A part that is empty, or has a dash at an
/// end, would be ambiguous and is an error.
pub fn workload_endpoint(segments: &[Segment<'_>]) -> Result<String, Cause> {
    let escaped: Result<Vec<String>, Cause> = segments
        .iter()
        .map(|(field, value)| {
            if value.is_empty() || value.starts_with('-') || value.ends_with('-') {
                return Err(Cause::Segment {
                    field,
                    value: (*value).to_owned(),
                });
            }
            Ok(value.replace('-', "--"))
        })
        .collect();
    Ok(escaped?.join("-"))
}

fn qualified(original: &str, name: String) -> String {
    if name == original {
        return name;
    }
    let mut hash = HEXLOWER.encode(&Sha1::digest(original));
    hash.truncate(HASH_LENGTH);
    format!("{name}-{hash}")
}

#[cfg(test)]
mod tests;
