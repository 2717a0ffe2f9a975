//! Check that no network policy that begins to hold refuses a connection that was seen.

use super::{CheckName, CheckPolicy};
use crate::api::PolicyPreview;
use crate::facts::{ClusterFacts, PreviewState};
use crate::preview::{Completeness, Observation, Preview, accepted_name, connection};
use engine::check::{Check, Finding, Report, Verdict, names};
use engine::words::{LISTED, number};
use policy::tally::{Doubt, Refusal};
use policy::{RefuseReason, UnknownReason};

/// The object of a finding about the whole preview.
const OBJECT: &str = "network policies";
/// What the user does about a preview that takes too long or cannot be made.
const WITHOUT: &str = "start without it: --policy-preview-seconds 0";

pub(super) fn check(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::PolicyPreview);
    let spec = &policy.policy_preview;
    let PreviewState::Known(preview) = &facts.policy_preview else {
        let finding = Finding::new(
            "",
            "not read",
            "a list of the network policies",
            "see the coordinator's log",
        );
        report.unknown("", OBJECT, finding);
        return report.finish(OBJECT, "");
    };
    for unread in &preview.unread {
        let finding = Finding::new(
            "",
            unread,
            "a complete list",
            "correct the cause: for a denied request apply the coordinator's roles again (deploy/base)",
        );
        report.unknown("", OBJECT, finding);
    }
    if preview.unjudged > 0 {
        let verdict = if spec.observe_seconds == 0 {
            Verdict::Warn
        } else {
            Verdict::Unknown
        };
        let finding = Finding::new(
            "",
            format!("more policies than are judged: {} left out", preview.unjudged),
            "at most 50000 policies with 64 MiB",
            WITHOUT,
        );
        report.add(verdict, "", OBJECT, finding);
    }
    if preview.selected_pods > 0 {
        observation(preview, spec, &mut report);
    }
    report.finish(OBJECT, passed(preview))
}

/// What is found if there is no finding.
fn passed(preview: &Preview) -> String {
    let policies = number(preview.policies, "policy begins", "policies begin");
    let pods = number(preview.selected_pods, "pod", "pods");
    match (preview.policies, preview.selected_pods, &preview.observation) {
        (0, ..) => "no policy begins to hold".to_owned(),
        (_, 0, _) => format!("{policies} to hold, for no pod"),
        (_, _, None) => format!("{policies} to hold, for {pods}"),
        (_, _, Some(observation)) => format!(
            "{policies} to hold, for {pods}; of {} in {} s none would be refused",
            number(observation.tally.counts().allowed, "connection", "connections"),
            observation.shortest()
        ),
    }
}

fn observation(preview: &Preview, spec: &PolicyPreview, report: &mut Report) {
    let needed = u64::from(spec.observe_seconds);
    if needed == 0 {
        let finding = Finding::new(
            "",
            format!(
                "{} to hold, for {}; not observed what they would refuse (observeSeconds is 0)",
                number(preview.policies, "policy begins", "policies begin"),
                number(preview.selected_pods, "pod", "pods")
            ),
            "",
            "read `kubectl replumb plan`, or observe connections: --policy-preview-seconds 600",
        );
        report.warn("", OBJECT, finding);
        return;
    }
    let Some(observation) = &preview.observation else {
        if preview.unread.is_empty() {
            short(0, needed, report, "", OBJECT);
        }
        return;
    };
    refused(observation, spec, report);
    incomplete(observation, needed, report);
    unknown(observation, report);
}

fn refused(observation: &Observation, spec: &PolicyPreview, report: &mut Report) {
    for (pair, refusal, sum) in observation.tally.refused() {
        let found = format!(
            "would be refused: {}, seen {}; {}",
            connection(pair, sum),
            number(sum.count, "time", "times"),
            cause(refusal)
        );
        add_refusal(refusal, spec, found, report);
    }
    let (unnamed, untold) = observation.tally.unnamed();
    for (refusal, count) in unnamed {
        let found = format!("would be refused: {count} more connections; {}", cause(refusal));
        add_refusal(refusal, spec, found, report);
    }
    if untold > 0 {
        let finding = Finding::new(
            "",
            format!("would be refused: {untold} more connections, by too many policies to name"),
            "policies that allow the connections that are in use",
            format!("accept or change the policies that are named; or {WITHOUT}"),
        );
        report.fail("", OBJECT, finding);
    }
}

fn add_refusal(refusal: &Refusal, spec: &PolicyPreview, found: String, report: &mut Report) {
    let policies: Vec<String> = refusal.policies.iter().map(ToString::to_string).collect();
    if spec.accepts(refusal) {
        let finding = Finding::new("", format!("{found}; accepted"), "", "");
        report.warn("", names(&policies), finding);
        return;
    }
    let mut accepted: Vec<String> = refusal.policies.iter().map(accepted_name).collect();
    let more = accepted.len().saturating_sub(LISTED);
    accepted.truncate(LISTED);
    let more = if more > 0 {
        format!(",… and {more} more of this pod")
    } else {
        String::new()
    };
    let (object, fix) = match refusal.why {
        RefuseReason::NoRuleMatches | RefuseReason::AdminRule => (
            names(&policies),
            format!(
                "change the policy, or accept the denial: --accept-policy-denials {}{more}",
                accepted.join(",")
            ),
        ),
        RefuseReason::Encapsulation => (
            "FelixConfiguration default".to_owned(),
            "set allowVXLANPacketsFromWorkloads (for IPIP allowIPIPPacketsFromWorkloads) to true".to_owned(),
        ),
        RefuseReason::EndpointToHost => (
            "FelixConfiguration default".to_owned(),
            "set FELIX_DEFAULTENDPOINTTOHOSTACTION of calico-node to ACCEPT".to_owned(),
        ),
    };
    let finding = Finding::new("", found, "a policy that allows the connection", fix);
    report.fail("", object, finding);
}

/// Why a connection would be refused: `policy shop/db-only-api`.
fn cause(refusal: &Refusal) -> String {
    let policies: Vec<String> = refusal.policies.iter().map(accepted_name).collect();
    match refusal.why {
        RefuseReason::NoRuleMatches | RefuseReason::AdminRule if policies.len() == 1 => {
            format!("policy {}", policies[0])
        }
        RefuseReason::NoRuleMatches | RefuseReason::AdminRule => format!("policies {}", names(&policies)),
        RefuseReason::Encapsulation => "Calico drops packets of a tunnel from a pod".to_owned(),
        RefuseReason::EndpointToHost => "Calico drops packets from a pod to its own node".to_owned(),
    }
}

fn incomplete(observation: &Observation, needed: u64, report: &mut Report) {
    // One line for all nodes: with the shortest time.
    let shortest = observation
        .incomplete(needed)
        .filter_map(|(_, completeness)| match completeness {
            Completeness::Short(seconds) => Some(seconds),
            Completeness::Complete | Completeness::Impossible(_) => None,
        })
        .min()
        .unwrap_or_default();
    for (node, completeness) in observation.incomplete(needed) {
        match completeness {
            Completeness::Complete => {}
            Completeness::Short(_) => short(shortest, needed, report, "Node", node),
            Completeness::Impossible(problem) => {
                let finding = Finding::new(
                    "",
                    format!("connections cannot be observed: {problem}"),
                    "a sample of the connections of each node",
                    format!("correct the cause, or {WITHOUT}"),
                );
                report.unknown("Node", node, finding);
            }
        }
    }
}

fn short(seconds: u64, needed: u64, report: &mut Report, kind: &'static str, name: &str) {
    let finding = Finding::new(
        "",
        format!("observed {seconds} s of {needed} s"),
        format!("connections observed for {needed} s"),
        format!(
            "wait {} s; or observe for a shorter time: --policy-preview-seconds N",
            needed.saturating_sub(seconds)
        ),
    );
    report.fail(kind, name, finding);
}

fn unknown(observation: &Observation, report: &mut Report) {
    for (doubt, pair, sum) in observation.tally.unknown() {
        let policies: Vec<String> = doubt.objects.iter().map(ToString::to_string).collect();
        let object = if policies.is_empty() {
            OBJECT.to_owned()
        } else {
            names(&policies)
        };
        let found = format!(
            "not known whether {} would be refused: {}; such as {}",
            number(sum.count, "connection", "connections"),
            reason(doubt),
            connection(pair, sum)
        );
        let fix = "read the policies of the two ends".to_owned();
        report.warn("", object, Finding::new("", found, "", fix));
    }
    if observation.missing > 0 {
        let finding = Finding::new(
            "",
            format!(
                "the agents have seen more kinds of connections than they keep: at most {} missing",
                observation.missing
            ),
            "",
            "the most frequent ones are judged; read the policies for the others",
        );
        report.add(Verdict::Warn, "", OBJECT, finding);
    }
}

/// The reason of a doubt as a clause.
fn reason(doubt: &Doubt) -> &'static str {
    match doubt.why {
        UnknownReason::AddressWithoutPod => "an address of the pod range belongs to no known pod",
        UnknownReason::AddressOfSeveral => "several pods or nodes have one address",
        UnknownReason::AddressReused => "several pods had one address, and the policies tell them apart",
        UnknownReason::NodeMissing => "the node is not in the cluster",
        UnknownReason::NamespaceMissing => "the namespace of a pod is not in the cluster",
        UnknownReason::AmbiguousDirection => "client and server cannot be told apart",
        UnknownReason::SourceChanges => "Calico's eBPF data plane shows another source",
        UnknownReason::AddressOfNode => "the policies tell the addresses of the other node apart",
        UnknownReason::TunnelAddressMissing => "the tunnel address of the other node is not known",
        UnknownReason::EndpointToHost => {
            "the firewall of the host decides (DefaultEndpointToHostAction is RETURN)"
        }
        UnknownReason::UnreadableSelector => "Calico reads a selector of the policy in another way",
        UnknownReason::UnreadablePort => "the protocol of a port is none of TCP, UDP and SCTP",
        UnknownReason::PolicyTooLarge => "the policy is too large to be evaluated",
        UnknownReason::UnreadablePolicy => "a field of the policy cannot be read",
        UnknownReason::CalicoPolicy => "policies of Calico's own kinds are not evaluated",
    }
}

#[cfg(test)]
mod tests;
