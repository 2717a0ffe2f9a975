//! The proof of a node's pod network: other nodes reach a probe pod on the node.

use std::net::IpAddr;

use sha2::{Digest as _, Sha256};

use crate::decision::{Wait, WaitReason};

/// The probe pod of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePod {
    /// UID.
    pub uid: String,
    /// Its address, once the pod is Ready.
    pub address: Option<IpAddr>,
    /// Why the pod does not run, from its status.
    pub message: String,
}

/// One other node that was asked to reach the probe pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prober {
    /// Name of the node that probes.
    pub node: String,
    /// `old` if the node is on the old network, `new` if it is on the new one.
    pub side: &'static str,
    /// Whether the newest result for this pod UID is success; `None` without a result.
    pub reached: Option<bool>,
    /// The message of the result.
    pub message: String,
}

/// A pseudorandom choice of one of these nodes. The choice depends only on the seed, so each pass of an attempt chooses the same
/// node as long as that node exists. The seed has a value that no client can choose (the UID of the probe pod of this attempt):
/// the name of a node cannot make it the prober of others.
pub fn chosen<'name>(seed: &str, names: impl Iterator<Item = &'name str>) -> Option<&'name str> {
    let rank = |name: &&str| -> [u8; 32] { Sha256::digest(format!("{seed}/{name}")).into() };
    names.min_by_key(rank)
}

/// The missing part of the proof of a node's pod network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The probe pod.
    Pod,
    /// A result, with the wait for it.
    Answer(Wait),
}

/// The missing part; `None` once every prober has reached the probe pod.
pub fn missing(node: &str, pod: Option<&ProbePod>, probers: &[Prober]) -> Option<Missing> {
    let Some(pod) = pod else {
        return Some(Missing::Pod);
    };
    let wait = |reason, message| {
        Some(Missing::Answer(Wait {
            reason,
            message,
            until: None,
        }))
    };
    if pod.address.is_none() {
        let message = format!("the probe pod on node {node} is not Ready: {}", pod.message);
        return wait(WaitReason::ProbePodNotReady, message);
    }
    let first = |reached| probers.iter().find(|prober| prober.reached == reached);
    let words = |what, prober: &Prober| {
        format!(
            "the pod network of node {node} {what} from {} node {}: {}",
            prober.side, prober.node, prober.message
        )
    };
    if let Some(prober) = first(Some(false)) {
        return wait(WaitReason::ProbeUnanswered, words("is not reached", prober));
    }
    if let Some(prober) = first(None) {
        return wait(WaitReason::ProbePending, words("is being probed", prober));
    }
    if probers.is_empty() {
        let message = format!("no other Ready node can probe node {node}");
        return wait(WaitReason::ProbeUnanswered, message);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prober(reached: Option<bool>) -> Prober {
        Prober {
            node: "b".to_owned(),
            side: "old",
            reached,
            message: String::new(),
        }
    }

    #[test]
    fn the_prober_is_random_between_attempts_and_constant_within_one() {
        let names: Vec<String> = (0..20).map(|number| format!("node-{number:02}")).collect();
        let of = |seed: &str, without: Option<&str>| {
            let names = names.iter().map(String::as_str);
            chosen(seed, names.filter(|name| Some(*name) != without)).map(str::to_owned)
        };
        let first = of("p-1/a", None).unwrap();
        assert_eq!(of("p-1/a", None).unwrap(), first);
        let other = names.iter().find(|name| **name != first).unwrap();
        assert_eq!(
            of("p-1/a", Some(other)).unwrap(),
            first,
            "the choice stays while other nodes come and go"
        );
        assert_ne!(of("p-1/a", Some(&first)).unwrap(), first);
        let mut counts = std::collections::BTreeMap::<String, u32>::new();
        for attempt in 0..2000 {
            *counts
                .entry(of(&format!("p-{attempt}/a"), None).unwrap())
                .or_default() += 1;
        }
        assert_eq!(counts.len(), 20);
        assert!(
            counts.values().all(|count| (50..200).contains(count)),
            "{counts:?}"
        );
        assert_eq!(chosen("p", std::iter::empty()), None);
    }

    /// A pending result arrives without the user; a failed probe of any node has to be reported first.
    #[test]
    fn an_unanswered_probe_is_reported_before_a_pending_one() {
        let pod = ProbePod {
            uid: "p".to_owned(),
            address: Some("10.244.1.9".parse().unwrap()),
            message: String::new(),
        };
        let reason = |probers: &[Prober]| match missing("a", Some(&pod), probers) {
            Some(Missing::Answer(wait)) => Some(wait.reason),
            Some(Missing::Pod) => panic!("the pod exists"),
            None => None,
        };
        assert_eq!(reason(&[prober(None)]), Some(WaitReason::ProbePending));
        assert_eq!(
            reason(&[prober(None), prober(Some(false))]),
            Some(WaitReason::ProbeUnanswered)
        );
        assert_eq!(
            reason(&[prober(Some(true)), prober(None)]),
            Some(WaitReason::ProbePending)
        );
        assert_eq!(reason(&[prober(Some(true))]), None);
        assert_eq!(reason(&[]), Some(WaitReason::ProbeUnanswered), "no node probes");
        assert!(WaitReason::ProbeUnanswered.needs_user() && !WaitReason::ProbePending.needs_user());
        assert_eq!(missing("a", None, &[]), Some(Missing::Pod));
    }
}
