//! Checks of fail-closed webhooks: while such a webhook does not answer, no pod can start.

use super::CheckName;
use crate::facts::ClusterFacts;
use engine::check::{Check, Finding, Report, names};
use engine::cluster::Webhook;

pub(super) fn check(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Webhooks);
    let watched: Vec<&Webhook> = facts
        .webhooks
        .iter()
        .filter(|webhook| webhook.covers_pods_or_nodes)
        .collect();
    for webhook in &watched {
        judge(webhook, &mut report);
    }
    report.finish(
        "every fail-closed webhook on pods, nodes or DaemonSets",
        format!("{}, none served only from the pod network", watched.len()),
    )
}

fn judge(webhook: &Webhook, report: &mut Report) {
    let (namespace, service) = &webhook.service;
    let needed = "a webhook that answers while any node is being migrated";
    if webhook.backends.is_empty() {
        let finding = Finding::new(
            "",
            format!("failurePolicy Fail, and no pod behind Service {namespace}/{service}"),
            needed,
            "repair the Service, or set failurePolicy to Ignore: no pod can start now",
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
    let pods: Vec<String> = webhook
        .backends
        .iter()
        .map(|(namespace, name, node, _)| match node.as_str() {
            "" => format!("{namespace}/{name}, pending"),
            node => format!("{namespace}/{name} on {node}"),
        })
        .collect();
    report.fail(
        "",
        &webhook.object,
        Finding::new(
            "",
            format!("failurePolicy Fail, served from the pod network by {}", names(&pods)),
            needed,
            "set hostNetwork for the pods of the webhook, or failurePolicy Ignore during the migration: an API server \
             on a node being migrated does not reach the pod network, and calico-node could not start there",
        ),
    );
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::fixture::{self, verdicts};
    use super::*;
    use engine::check::Verdict::{Fail, Pass};

    fn judge_backends(backends: &[(&str, bool)], covers: bool) -> Vec<Check> {
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
        check(&ClusterFacts {
            webhooks: vec![webhook],
            ..fixture::cluster()
        })
    }

    #[rstest]
    #[case::no_pod(&[], Fail, "no pod behind Service policy/webhook")]
    #[case::one_node(&[("a", true)], Fail, "policy/webhook-0 on a")]
    #[case::two_nodes(&[("a", true), ("b", true)], Fail, "policy/webhook-0 on a, policy/webhook-1 on b")]
    #[case::pending(&[("", true)], Fail, "policy/webhook-0, pending")]
    #[case::host_network(&[("a", false)], Pass, "")]
    #[case::both(&[("a", true), ("b", false)], Pass, "")]
    fn a_webhook_without_a_pod_on_the_host_network_fails(
        #[case] backends: &[(&str, bool)],
        #[case] expected: engine::check::Verdict,
        #[case] found: &str,
    ) {
        let checks = judge_backends(backends, true);
        assert_eq!(verdicts(&checks), [("Webhooks", expected)]);
        if expected != Pass {
            assert_eq!(
                checks[0].object,
                "ValidatingWebhookConfiguration policy, webhook pods.example"
            );
            assert!(checks[0].found.ends_with(found), "{}", checks[0].found);
        }
    }

    #[test]
    fn a_webhook_for_other_objects_passes() {
        assert_eq!(
            verdicts(&judge_backends(&[("a", true)], false)),
            [("Webhooks", Pass)]
        );
    }

    #[test]
    fn a_cluster_without_webhooks_passes() {
        assert_eq!(verdicts(&check(&fixture::cluster())), [("Webhooks", Pass)]);
    }
}
