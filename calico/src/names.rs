//! Names that Calico derives for its stored objects.

use super::family::{self, Family};
use data_encoding::{BASE32_NOPAD, HEXLOWER};
use ipnet::IpNet;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use sha3::Sha3_256;

/// Calico shortens longer names.
const LONGEST_NAME: usize = 252;
/// Characters of the hash in a shortened name.
const HASH_LENGTH: usize = 11;

/// Name of a block: its range in the form of an object name: `10-244-1-0-26`, `fd00-10-244--40-122`.
pub fn block_name(block: IpNet) -> String {
    block.to_string().replace(['.', ':', '/'], "-")
}

/// Name of the affinity of a node for a block. A long node name is cut and a hash is appended, as Calico does it, so that Calico
/// finds the object.
pub fn affinity_name(node: &str, block: IpNet) -> String {
    let block = block_name(block);
    let name = format!("{node}-{block}");
    if name.len() <= LONGEST_NAME {
        return name;
    }
    // Two dashes and the hash have to fit as well.
    let kept = LONGEST_NAME - block.len() - HASH_LENGTH - 2;
    let start: String = node.chars().take(kept).collect();
    let mut hash = HEXLOWER.encode(&Sha256::digest(format!("{node}+{block}")));
    hash.truncate(HASH_LENGTH);
    format!("{start}-{block}-{hash}")
}

/// Name of the link on the host that leads to a pod, as Calico's CNI plugin names it.
pub fn pod_link(namespace: &str, pod: &str) -> String {
    let mut hash = HEXLOWER.encode(&Sha1::digest(format!("{namespace}.{pod}")));
    hash.truncate(HASH_LENGTH);
    format!("cali{hash}")
}

/// Handle of a node's tunnel address in this family.
pub fn tunnel_handle(family: &Family, node: &str) -> String {
    format!("{}{node}", family.tunnel_handle)
}

/// The handles of a node's tunnel addresses in every family.
pub fn tunnel_handles(node: &str) -> Vec<String> {
    family::ALL
        .iter()
        .map(|family| tunnel_handle(family, node))
        .collect()
}

/// Name of a handle's object: the handle in lower case.
pub fn handle_name(handle: &str) -> String {
    handle.to_lowercase()
}

/// Value of the label `hostname-hash` on a block affinity: the name of a node can be longer than the value of a label.
pub fn hostname_hash(node: &str) -> String {
    BASE32_NOPAD.encode(&Sha3_256::digest(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range() -> IpNet {
        "10.244.1.0/26".parse().unwrap()
    }

    #[test]
    fn a_short_node_name_is_kept_whole() {
        assert_eq!(block_name(range()), "10-244-1-0-26");
        assert_eq!(affinity_name("n1", range()), "n1-10-244-1-0-26");
        // Two colons and a slash: each becomes a dash.
        let first: IpNet = "fd00:10:244::/122".parse().unwrap();
        assert_eq!(block_name(first), "fd00-10-244---122");
        assert_eq!(tunnel_handle(&family::IPV4, "n1"), "vxlan-tunnel-addr-n1");
        assert_eq!(tunnel_handle(&family::IPV6, "n1"), "vxlan-v6-tunnel-addr-n1");
        assert_eq!(handle_name("k8s-pod-network.AbC"), "k8s-pod-network.abc");
    }

    #[test]
    fn a_long_node_name_is_cut_at_calicos_length() {
        let longest = "n".repeat(252 - "-10-244-1-0-26".len());
        assert_eq!(
            affinity_name(&longest, range()),
            format!("{longest}-10-244-1-0-26")
        );
        let name = affinity_name(&format!("{longest}n"), range());
        // Calico: 252 - 13 (block) - 13 characters of the node, the block, 11 digits of the hash.
        assert_eq!(name.len(), 226 + 1 + 13 + 1 + 11);
        // printf '%s+10-244-1-0-26' "$(printf 'n%.0s' $(seq 239))" | sha256sum
        assert!(name.ends_with("-10-244-1-0-26-62826fd7a47"), "{name}");
    }

    #[test]
    fn base32_agrees_with_rfc_4648() {
        for (text, expected) in [
            ("", ""),
            ("f", "MY"),
            ("fo", "MZXQ"),
            ("foo", "MZXW6"),
            ("foob", "MZXW6YQ"),
            ("fooba", "MZXW6YTB"),
            ("foobar", "MZXW6YTBOI"),
        ] {
            assert_eq!(BASE32_NOPAD.encode(text.as_bytes()), expected);
        }
    }

    #[test]
    fn hostname_hash_agrees_with_another_program() {
        // python3: base64.b32encode(hashlib.sha3_256(b"n1").digest()).rstrip(b"=")
        assert_eq!(
            hostname_hash("n1"),
            "DM7EHBDU4L3ELKRER4A46T6QMKAGARQI4CVWBO26S4I2IDAAW6CA"
        );
    }
}
