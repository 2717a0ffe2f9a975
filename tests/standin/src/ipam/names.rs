//! Names that Calico derives.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use sha3::Sha3_256;

/// Handle of a node's tunnel address.
pub fn tunnel_handle(node: &str) -> String {
    format!("vxlan-tunnel-addr-{node}")
}

/// Handle of a pod's address: the network's name and the sandbox's identifier.
pub fn pod_handle(network: &str, container: &str) -> String {
    format!("{network}.{container}")
}

/// A range as the name of an object: `10-244-1-0-26`.
pub fn cidr(range: Ipv4Net) -> String {
    range.to_string().replace(['.', ':', '/'], "-")
}

/// Name of a node's claim on a block. The middle of a long name is replaced by a hash.
pub fn affinity(node: &str, range: Ipv4Net) -> String {
    let block = cidr(range);
    let name = format!("{node}-{block}");
    if name.len() < 253 {
        return name;
    }
    let kept: String = node.chars().take(252 - block.len() - 13).collect();
    let hash = hexadecimal(&Sha256::digest(format!("{node}+{block}")));
    format!("{kept}-{block}-{}", &hash[..11])
}

/// Value of the label `hostname-hash` on a claim.
pub fn hostname_hash(node: &str) -> String {
    base32(&Sha3_256::digest(node))
}

/// Name of a pod's device on the host.
pub fn host_device(namespace: &str, pod: &str) -> String {
    let hash = hexadecimal(&Sha1::digest(format!("{namespace}.{pod}")));
    format!("cali{}", &hash[..11])
}

/// Hardware address of a tunnel device whose node has no annotation for it.
pub fn tunnel_mac(node: &str) -> String {
    let hash = Sha1::digest(node);
    let bytes: Vec<String> = std::iter::once(b'f')
        .chain(hash.iter().take(5).copied())
        .map(|byte| format!("{byte:02x}"))
        .collect();
    bytes.join(":")
}

/// A stable number for a node's name: FNV-1, 32 bits.
pub fn hash(node: &str) -> u32 {
    node.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        hash.wrapping_mul(0x0100_0193) ^ u32::from(byte)
    })
}

/// A range's n-th address.
pub fn nth(range: Ipv4Net, ordinal: usize) -> Option<Ipv4Addr> {
    let offset = u32::try_from(ordinal).ok()?;
    u32::from(range.network()).checked_add(offset).map(Ipv4Addr::from)
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Standard base 32 without padding.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut text = String::new();
    let (mut buffer, mut bits) = (0_u32, 0_u32);
    for byte in bytes {
        buffer = (buffer << 8) | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(ALPHABET[(buffer >> bits & 31) as usize]));
        }
        buffer &= (1 << bits) - 1;
    }
    if bits > 0 {
        text.push(char::from(ALPHABET[(buffer << (5 - bits) & 31) as usize]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_calico() {
        let range = "10.244.1.0/26".parse().unwrap();
        assert_eq!(cidr(range), "10-244-1-0-26");
        assert_eq!(affinity("n1", range), "n1-10-244-1-0-26");
        assert_eq!(tunnel_handle("n1"), "vxlan-tunnel-addr-n1");
        let long = affinity(&"n".repeat(253), range);
        assert!(long.len() < 253, "{long} has {} characters", long.len());
        assert!(long.contains("-10-244-1-0-26-"));
    }

    #[test]
    fn derived_values_agree_with_other_programs() {
        // printf default.web-0 | sha1sum
        assert_eq!(host_device("default", "web-0"), "cali0d7763386da");
        // printf n1 | sha1sum, after the byte 0x66
        assert_eq!(tunnel_mac("n1"), "66:40:b3:ea:b6:3f");
        // printf foobar | base32
        assert_eq!(base32(b"foobar"), "MZXW6YTBOI");
        assert_eq!(base32(b"foob"), "MZXW6YQ");
        assert_eq!(
            hostname_hash("n1"),
            "DM7EHBDU4L3ELKRER4A46T6QMKAGARQI4CVWBO26S4I2IDAAW6CA"
        );
        assert_eq!(hash("foobar"), 0x31f0_b262);
    }
}
