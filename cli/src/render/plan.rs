//! The plan: settings, cluster-wide actions, every action of every node in order, and failed checks.

use api::{Migration, MigrationRecord, NodeMigration};
use engine::document::{Action, Document, NodeActions};
use kube::ResourceExt;
use serde::Serialize;

use super::checks;
use crate::kinds::{self, Settings};
use crate::planned::document;
use crate::table::table;

/// The plan as text; `None` if there is none.
pub fn plan(migration: &Migration, nodes: &[NodeMigration], records: &[MigrationRecord]) -> Option<String> {
    let status = migration.status.as_ref()?;
    let plan = status.plan.as_ref()?;
    let whole = document(plan, nodes, records);
    let prepare: Vec<&Action> = whole.before_first_node().collect();
    let Document {
        nodes: of_nodes,
        finish,
        ..
    } = &whole;
    let mut text = format!("Plan of Migration {}\nhash {}\n", migration.name_any(), plan.hash);
    if let Some(settings) = Settings::of(status) {
        text.push_str("\nSettings\n");
        text.push_str(&indent(&table(&[], &settings.rows())));
    }
    if let Some(part) = kinds::of(&migration.spec).plan_part(status) {
        text.push_str(&format!("\n{}\n{}", part.title, indent(&part.text)));
    }
    let (first, last) = if of_nodes.is_empty() {
        ("Until every pod has moved", "Then")
    } else {
        ("Before the first node", "After the last node")
    };
    text.push_str(&format!("\n{first}\n"));
    text.push_str(&actions(prepare));
    let all = of_nodes.len();
    for (
        index,
        NodeActions {
            node, actions: steps, ..
        },
    ) in of_nodes.iter().enumerate()
    {
        text.push_str(&format!("\nNode {node} ({} of {all})\n", index + 1));
        text.push_str(&actions(steps));
    }
    text.push_str(&format!("\n{last}\n"));
    text.push_str(&actions(finish));
    text.push_str(&format!("\nBlockers ({})\n", checks::count(&status.checks)));
    let refusals = checks::refusals(&status.checks);
    text.push_str(&if refusals.is_empty() {
        "  none\n".to_owned()
    } else {
        indent(&refusals)
    });
    Some(text)
}

fn actions<'plan>(actions: impl IntoIterator<Item = &'plan Action>) -> String {
    let rows: Vec<Vec<String>> = actions
        .into_iter()
        .enumerate()
        .map(|(index, action)| {
            let as_of_now = if action.as_of_now { " (as of now)" } else { "" };
            vec![
                format!("{:>3}", index + 1),
                action.verb.clone(),
                action.object.clone(),
                format!("{}{as_of_now}", action.detail),
            ]
        })
        .collect();
    if rows.is_empty() {
        "  nothing\n".to_owned()
    } else {
        indent(&table(&[], &rows))
    }
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// The plan as JSON output.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanDocument<'read> {
    /// Name of the Migration.
    pub migration: String,
    /// The phase.
    pub phase: api::migration::MigrationPhase,
    /// Whether every check allows the migration.
    pub allowed: bool,
    /// Hash of the plan; null without a plan.
    pub hash: Option<&'read str>,
    /// The settings.
    pub settings: Option<Settings<'read>>,
    /// Cluster-wide actions before the first node.
    pub prepare: Vec<Action>,
    /// Nodes in order, with their actions.
    pub nodes: Vec<NodePlan>,
    /// Cluster-wide actions after the last node.
    pub finish: Vec<Action>,
    /// Checks that refuse the migration.
    pub blockers: Vec<&'read engine::check::Check>,
    /// The message of the status.
    pub message: &'read str,
    /// The part of the plan that only its kind has.
    #[serde(flatten)]
    pub of_kind: serde_json::Map<String, serde_json::Value>,
}

/// One node of the plan.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePlan {
    /// Name of the node.
    pub node: String,
    /// Its actions in order.
    pub actions: Vec<Action>,
}

impl<'read> PlanDocument<'read> {
    /// The JSON output of a Migration with its nodes and records.
    pub fn of(migration: &'read Migration, nodes: &[NodeMigration], records: &[MigrationRecord]) -> Self {
        let status = migration.status.as_ref();
        let plan = status.and_then(|status| status.plan.as_ref());
        let document = plan
            .map(|plan| document(plan, nodes, records))
            .unwrap_or_default();
        let phase = status.map(|status| status.phase).unwrap_or_default();
        Self {
            migration: migration.name_any(),
            phase,
            allowed: phase != api::migration::MigrationPhase::Refused,
            hash: plan.map(|plan| plan.hash.as_str()),
            settings: status.and_then(Settings::of),
            prepare: document.before_first_node().cloned().collect(),
            nodes: document
                .nodes
                .into_iter()
                .map(|NodeActions { node, actions, .. }| NodePlan { node, actions })
                .collect(),
            finish: document.finish,
            blockers: status
                .into_iter()
                .flat_map(|status| &status.checks)
                .filter(|check| !check.verdict.allows())
                .collect(),
            message: status.map(|status| status.message.as_str()).unwrap_or_default(),
            of_kind: status
                .and_then(|status| kinds::of(&migration.spec).plan_part(status))
                .map(|part| part.fields)
                .unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn a_plan_has_every_action_of_every_node_in_order_then_failed_checks() {
        let (migration, nodes) = fixture::planned();
        let text = plan(&migration, &nodes, &[]).unwrap();
        // The hash has its own test.
        let text = text.replace(&migration.status.unwrap().plan.unwrap().hash, "HASH");
        insta::assert_snapshot!(text, @r"
        Plan of Migration flannel-to-calico
        hash HASH

        Settings
          flannel network        10.244.0.0/16             (detected from ConfigMap kube-flannel/kube-flannel-cfg)
          flannel DaemonSet      kube-flannel-ds           (spec)
            namespace            kube-flannel              (spec)
          flannel MTU            1450                      (detected from Node worker-1: subnet.env)
          flannel masquerade     true                      (detected from Node worker-1: subnet.env)
          flannel subnet length  24                        (default)
          flannel annotations    flannel.alpha.coreos.com  (default)
          flannel VNI            1                         (default)
          flannel port           8472                      (default)
          Calico DaemonSet       calico-node               (default)
            namespace            kube-system               (default)
          IPPool block size      26                        (default)
          CNI directory          /etc/cni/net.d            (default)

        Before the first node
            1  create  IPPool default-ipv4-ippool  cidr 10.244.0.0/16

        Node worker-1 (1 of 2)
            1  cordon    Node worker-1          cordon (uncordoned afterwards)
            2  evict     pods of node worker-1  default/web-1 (as of now)
            3  uncordon  Node worker-1          unschedulable removed

        Node worker-2 (2 of 2)
            1  cordon    Node worker-2          cordon (uncordoned afterwards)
            2  evict     pods of node worker-2  default/web-1 (as of now)
            3  uncordon  Node worker-2          unschedulable removed

        After the last node
            1  delete  DaemonSet kube-flannel/kube-flannel-ds  the point of no return

        Blockers (1 PASS)
          none
        ");
    }

    #[test]
    fn actions_in_records_and_nodes_are_in_order() {
        let (migration, nodes, records) = fixture::long_plan();
        let text = plan(&migration, &nodes, &records).unwrap();
        let place = |part: &str| {
            text.find(part)
                .unwrap_or_else(|| panic!("{part} is not in\n{text}"))
        };
        let order = [
            "IPPool default-ipv4-ippool",
            "Service shop/1",
            "Service shop/2",
            "Service shop/3",
            "IPAM blocks of node worker-1",
            "IPAM blocks of node worker-2",
            "Node worker-1 (1 of 2)",
            "DaemonSet kube-flannel/kube-flannel-ds",
            "ServiceCIDR kubernetes",
        ];
        let places = order.map(place);
        assert!(places.is_sorted(), "{places:?}\n{text}");
        let value = serde_json::to_value(PlanDocument::of(&migration, &nodes, &records)).unwrap();
        assert_eq!(value["prepare"].as_array().unwrap().len(), 6);
        assert_eq!(value["finish"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn the_json_output_has_the_same_actions() {
        let (migration, nodes) = fixture::planned();
        let value = serde_json::to_value(PlanDocument::of(&migration, &nodes, &[])).unwrap();
        assert_eq!(value["nodes"][0]["node"], "worker-1");
        assert_eq!(value["nodes"][0]["actions"][0]["verb"], "cordon");
        assert_eq!(value["allowed"], true);
        assert_eq!(value["hash"].as_str().unwrap().len(), 64);
    }

    #[test]
    fn no_plan_is_not_an_empty_plan() {
        let (mut migration, nodes) = fixture::planned();
        migration.status.as_mut().unwrap().plan = None;
        assert_eq!(plan(&migration, &nodes, &[]), None);
    }

    #[test]
    fn a_plan_of_pod_cidr_by_workload_has_no_nodes() {
        let (migration, nodes) = fixture::range_planned();
        let text = plan(&migration, &nodes, &[]).unwrap();
        let text = text.replace(&migration.status.unwrap().plan.unwrap().hash, "HASH");
        insta::assert_snapshot!(text, @r"
        Plan of Migration pod-cidr
        hash HASH

        Settings
          old range         10.244.0.0/16        (spec)
            IPPool          default-ipv4-ippool  (detected from IPPool default-ipv4-ippool)
          new range         10.200.0.0/16        (spec)
            IPPool          ipv4-10-200-0-0-16   (default)
            block size      26                   (detected from IPPool default-ipv4-ippool)
          Calico DaemonSet  calico-node          (detected from DaemonSet kube-system/calico-node)
            namespace       kube-system          (detected from DaemonSet kube-system/calico-node)
          Calico datastore  the Kubernetes API   (default)

        Until every pod has moved
            1  create  IPPool ipv4-10-200-0-0-16   cidr 10.200.0.0/16; disabled
            2  close   IPPool default-ipv4-ippool  disabled true
            3  evict   name servers: 2 pods        one at a time: kube-system/coredns-1 (as of now)

        Then
            1  delete  IPPool default-ipv4-ippool  the point of no return

        Blockers (1 PASS)
          none
        ");
    }
}
