//! Proving a node's pod network: a pod on it, reached from other nodes.

use std::net::IpAddr;

use sha2::{Digest as _, Sha256};

use crate::decision::{Wait, WaitReason};

/// The pod that proves the node's pod network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePod {
    /// UID.
    pub uid: String,
    /// Its address, once it runs and is Ready.
    pub address: Option<IpAddr>,
    /// Why it does not run, as far as its status tells.
    pub message: String,
}

/// One other node that was asked to reach the probe pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prober {
    /// Name of the node that probes.
    pub node: String,
    /// `old` when it is on the old network, `new` when on the new one.
    pub side: &'static str,
    /// Whether the newest result for this very pod says reached; `None` without a result.
    pub reached: Option<bool>,
    /// The words of the result.
    pub message: String,
}

/// One of these nodes, as if by chance: which one, follows from the seed alone, so that each look at the same attempt chooses the same
/// node, as long as it is there. The seed has something that nothing in the cluster chooses (the UID of the probe pod of this
/// attempt): a node cannot be named so that it proves others.
pub fn chosen<'name>(seed: &str, names: impl Iterator<Item = &'name str>) -> Option<&'name str> {
    let rank = |name: &&str| -> [u8; 32] { Sha256::digest(format!("{seed}/{name}")).into() };
    names.min_by_key(rank)
}

/// What is missing until the node's pod network is proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The probe pod.
    Pod,
    /// What this waits for.
    Answer(Wait),
}

/// What is missing; `None` once a pod on the node was reached by everybody who was asked.
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
    fn which_node_proves_is_chance_between_attempts_and_none_within_one() {
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
            "it stays while others come and go"
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

    /// A result that is on its way passes by itself; one that says no is what people have to see, from whichever node.
    #[test]
    fn a_probe_without_an_answer_is_named_before_one_without_a_result() {
        let pod = ProbePod {
            uid: "p".to_owned(),
            address: Some("10.244.1.9".parse().unwrap()),
            message: String::new(),
        };
        let reason = |probers: &[Prober]| match missing("a", Some(&pod), probers) {
            Some(Missing::Answer(wait)) => Some(wait.reason),
            Some(Missing::Pod) => panic!("there is a pod"),
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
        assert_eq!(reason(&[]), Some(WaitReason::ProbeUnanswered), "nobody was asked");
        assert!(WaitReason::ProbeUnanswered.needs_a_person() && !WaitReason::ProbePending.needs_a_person());
        assert_eq!(missing("a", None, &[]), Some(Missing::Pod));
    }
}
