//! The network policies that begin to hold, as a part of the plan.

use engine::words::{names_of, number};
use flannel_to_calico::api::{DormantPolicy, PolicyPreviewStatus, PreviewCounts, RefusedConnections};
use serde_json::{Map, json};

use crate::kinds::kind::PlanPart;
use crate::table::table;

/// The part of the plan.
pub fn part(preview: &PolicyPreviewStatus) -> PlanPart {
    PlanPart {
        title: "Network policies",
        text: text(preview),
        fields: Map::from_iter([("policyPreview".to_owned(), json!(preview))]),
    }
}

fn text(preview: &PolicyPreviewStatus) -> String {
    let mut text = String::new();
    for unread in &preview.unread {
        text.push_str(&format!("not read: {unread}\n"));
    }
    if preview.policies == 0 && preview.unread.is_empty() {
        return "none begins to hold\n".to_owned();
    }
    text.push_str(&format!(
        "{} to hold once Calico has the pods, for {}\n",
        number(preview.policies, "policy begins", "policies begin"),
        number(preview.selected_pods, "pod", "pods")
    ));
    let rows: Vec<Vec<String>> = preview.dormant_policies.iter().map(policy).collect();
    text.push_str(&indent(&table(&[], &rows)));
    more(&mut text, preview.policies, rows.len());
    if preview.since.is_some() {
        observed(preview, &mut text);
    }
    text
}

fn observed(preview: &PolicyPreviewStatus, text: &mut String) {
    let PreviewCounts {
        allowed,
        refused,
        unknown,
        unanswered,
    } = preview.connections;
    text.push_str(&format!(
        "connections seen in {} s: {allowed} would be allowed, {refused} refused, {unknown} unknown; {unanswered} without an answer\n",
        preview.observed_seconds
    ));
    if !preview.refused.is_empty() {
        text.push_str("would be refused\n");
        let rows: Vec<Vec<String>> = preview.refused.iter().map(refusal).collect();
        text.push_str(&indent(&table(&[], &rows)));
        more(text, preview.refused_kinds, rows.len());
    }
    if !preview.unknown.is_empty() {
        text.push_str("not known\n");
        let rows = preview.unknown.iter().map(|unknown| {
            vec![
                unknown.reason.clone(),
                number(unknown.count, "time", "times"),
                format!("such as {}", unknown.example),
            ]
        });
        text.push_str(&indent(&table(&[], &rows.collect::<Vec<_>>())));
    }
    if preview.missing_kinds > 0 {
        text.push_str(&format!(
            "kinds of connections that the agents have left out: at most {}\n",
            preview.missing_kinds
        ));
    }
    if preview.incomplete_node_count > 0 {
        let count = usize::try_from(preview.incomplete_node_count).unwrap_or(usize::MAX);
        text.push_str(&format!(
            "not observed for long enough: {}\n",
            names_of(&preview.incomplete_nodes, count)
        ));
    }
}

fn more(text: &mut String, all: u32, shown: usize) {
    let all = usize::try_from(all).unwrap_or(usize::MAX);
    if all > shown {
        text.push_str(&format!("  and {} more\n", all - shown));
    }
}

fn policy(policy: &DormantPolicy) -> Vec<String> {
    let directions = match (policy.ingress, policy.egress) {
        (true, true) => "ingress, egress",
        (true, false) => "ingress",
        (false, true) => "egress",
        (false, false) => "no direction",
    };
    let pods = policy
        .pods
        .map_or_else(|| "unknown pods".to_owned(), |pods| number(pods, "pod", "pods"));
    vec![policy.policy.clone(), pods, directions.to_owned()]
}

fn refusal(refused: &RefusedConnections) -> Vec<String> {
    let port = refused.port.map_or_else(String::new, |port| format!(":{port}"));
    let cause = if refused.policies.is_empty() {
        refused.reason.clone()
    } else {
        let count = usize::try_from(refused.policy_count).unwrap_or(usize::MAX);
        let more = count.saturating_sub(refused.policies.len());
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        format!("{}{more}", refused.policies.join(", "))
    };
    vec![
        format!(
            "{} → {}{port} {}",
            refused.client, refused.server, refused.protocol
        ),
        number(refused.count, "time", "times"),
        format!("last {:.0}", refused.last),
        if refused.is_accepted {
            format!("{cause} (accepted)")
        } else {
            cause
        },
    ]
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preview() -> PolicyPreviewStatus {
        serde_json::from_value(json!({
            "policies": 52, "selectedPods": 14,
            "dormantPolicies": [
                { "policy": "NetworkPolicy shop/db-only-api", "pods": 12, "ingress": true },
                { "policy": "GlobalNetworkPolicy odd", "ingress": true, "egress": true },
            ],
            "since": "2026-03-01T10:00:00Z", "observedSeconds": 600,
            "connections": { "allowed": 1234, "refused": 215, "unknown": 3, "unanswered": 5 },
            "refusedKinds": 3,
            "refused": [
                {
                    "client": "shop/web", "server": "shop/db", "protocol": "TCP", "port": 5432, "direction": "Ingress",
                    "policies": ["NetworkPolicy shop/db-only-api"], "policyCount": 3, "reason": "NoRuleMatches", "count": 214,
                    "last": "2026-03-01T10:04:00.5Z",
                },
                {
                    "client": "crm/cli", "server": "198.51.100.9 outside of the cluster", "protocol": "ICMP", "direction": "Egress",
                    "policies": ["NetworkPolicy crm/deny"], "reason": "NoRuleMatches", "count": 1, "last": "2026-03-01T10:05:00Z",
                    "isAccepted": true,
                },
            ],
            "unknown": [{ "reason": "AddressWithoutPod", "count": 3, "example": "10.244.1.9 → shop/db:5432 TCP" }],
            "missingKinds": 7, "incompleteNodeCount": 3, "incompleteNodes": ["worker-1", "worker-2"],
        }))
        .unwrap()
    }

    #[test]
    fn a_preview_shows_policies_refusals_and_what_is_not_known() {
        insta::assert_snapshot!(text(&preview()), @r"
        52 policies begin to hold once Calico has the pods, for 14 pods
          NetworkPolicy shop/db-only-api  12 pods       ingress
          GlobalNetworkPolicy odd         unknown pods  ingress, egress
          and 50 more
        connections seen in 600 s: 1234 would be allowed, 215 refused, 3 unknown; 5 without an answer
        would be refused
          shop/web → shop/db:5432 TCP                         214 times  last 2026-03-01T10:04:00Z  NetworkPolicy shop/db-only-api and 2 more
          crm/cli → 198.51.100.9 outside of the cluster ICMP  1 time     last 2026-03-01T10:05:00Z  NetworkPolicy crm/deny (accepted)
          and 1 more
        not known
          AddressWithoutPod  3 times  such as 10.244.1.9 → shop/db:5432 TCP
        kinds of connections that the agents have left out: at most 7
        not observed for long enough: worker-1, worker-2 and 1 more
        ");
    }

    #[test]
    fn a_cluster_without_policies_says_so_and_an_unread_list_does_not() {
        assert_eq!(text(&PolicyPreviewStatus::default()), "none begins to hold\n");
        let unread = PolicyPreviewStatus {
            unread: vec!["listing NetworkPolicies: forbidden".to_owned()],
            ..PolicyPreviewStatus::default()
        };
        assert!(text(&unread).starts_with("not read: listing NetworkPolicies: forbidden\n0 policies"));
    }

    #[test]
    fn the_json_output_has_the_fields_of_the_status() {
        let part = part(&preview());
        assert_eq!(part.fields["policyPreview"]["refused"][0]["client"], "shop/web");
    }
}
