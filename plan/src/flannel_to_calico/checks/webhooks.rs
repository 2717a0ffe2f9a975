//! Fail-closed webhooks: no pod starts while nobody answers them.

use std::collections::BTreeSet;

use super::report::{Finding, Report, names};
use super::{CheckName, CheckPolicy};
use crate::check::{Check, Verdict};
use crate::flannel_to_calico::cluster::{ClusterFacts, Webhook};

pub(super) fn check(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::Webhooks);
    let watched: Vec<&Webhook> = facts
        .webhooks
        .iter()
        .filter(|webhook| webhook.covers_pods_or_nodes)
        .collect();
    for webhook in &watched {
        judge(webhook, policy, &mut report);
    }
    report.finish(
        "every fail-closed webhook on pods, nodes or DaemonSets",
        format!("{} of them, none served from the pod network", watched.len()),
    )
}

fn judge(webhook: &Webhook, policy: &CheckPolicy, report: &mut Report) {
    let (namespace, service) = &webhook.service;
    let needed = "answers while any node is in work";
    if webhook.backends.is_empty() {
        let finding = Finding::new(
            "",
            format!("no pod behind Service {namespace}/{service}"),
            needed,
            "no pod can start already: repair it, or set its failurePolicy to Ignore",
        );
        report.fail("", &webhook.object, finding);
        return;
    }
    if webhook
        .backends
        .iter()
        .any(|(_, _, _, on_pod_network)| !on_pod_network)
    {
        return;
    }
    let nodes: BTreeSet<&str> = webhook
        .backends
        .iter()
        .map(|(_, _, node, _)| node.as_str())
        .filter(|node| !node.is_empty())
        .collect();
    let pods: Vec<String> = webhook
        .backends
        .iter()
        .map(|(namespace, name, node, _)| format!("{namespace}/{name} on {node}"))
        .collect();
    let (verdict, fix) = if nodes.len() > policy.max_unavailable {
        (
            Verdict::Warn,
            "a pod on another node answers while one is in work; keep them on different nodes",
        )
    } else {
        (
            Verdict::Fail,
            "while those nodes are in work nobody answers, and no pod can start, its own included: run its pods on \
             more nodes than rollout.maxUnavailable, give them hostNetwork, or set failurePolicy Ignore while the \
             migration runs",
        )
    };
    let found = format!(
        "failurePolicy Fail, served from the pod network by {}",
        names(&pods)
    );
    report.add(verdict, "", &webhook.object, Finding::new("", found, needed, fix));
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::fixture::{self, verdicts};
    use super::*;
    use crate::check::Verdict::{Fail, Pass, Warn};

    fn judge_backends(backends: &[(&str, bool)], covers: bool, max_unavailable: usize) -> Vec<Check> {
        let webhook = Webhook {
            object: "ValidatingWebhookConfiguration policy, webhook pods.example".to_owned(),
            service: ("policy".to_owned(), "webhook".to_owned()),
            covers_pods_or_nodes: covers,
            backends: backends
                .iter()
                .enumerate()
                .map(|(number, (node, on_pod_network))| {
                    (
                        "policy".to_owned(),
                        format!("webhook-{number}"),
                        (*node).to_owned(),
                        *on_pod_network,
                    )
                })
                .collect(),
        };
        let facts = ClusterFacts {
            webhooks: vec![webhook],
            ..fixture::cluster()
        };
        check(
            &facts,
            &CheckPolicy {
                max_unavailable,
                ..fixture::policy()
            },
        )
    }

    #[rstest]
    #[case::no_pod(&[], 1, Fail)]
    #[case::one_node(&[("a", true)], 1, Fail)]
    #[case::two_on_one_node(&[("a", true), ("a", true)], 1, Fail)]
    #[case::two_nodes(&[("a", true), ("b", true)], 1, Warn)]
    #[case::two_nodes_at_once(&[("a", true), ("b", true)], 2, Fail)]
    #[case::pending(&[("a", true), ("", true)], 1, Fail)]
    #[case::host_network(&[("a", false)], 1, Pass)]
    #[case::both(&[("a", true), ("b", false)], 1, Pass)]
    fn webhooks(
        #[case] backends: &[(&str, bool)],
        #[case] max_unavailable: usize,
        #[case] expected: crate::check::Verdict,
    ) {
        let checks = judge_backends(backends, true, max_unavailable);
        assert_eq!(verdicts(&checks), [("Webhooks", expected)]);
        if expected != Pass {
            assert_eq!(
                checks[0].object,
                "ValidatingWebhookConfiguration policy, webhook pods.example"
            );
        }
    }

    #[test]
    fn webhooks_on_other_objects_do_not_matter() {
        assert_eq!(
            verdicts(&judge_backends(&[("a", true)], false, 1)),
            [("Webhooks", Pass)]
        );
    }

    #[test]
    fn no_webhook_at_all() {
        assert_eq!(
            verdicts(&check(&fixture::cluster(), &fixture::policy())),
            [("Webhooks", Pass)]
        );
    }
}
