use serde_json::{Value, json};

use super::*;
use crate::admin::AdminPolicy;
use crate::cluster::Facts;
use crate::fixture::{pod, policy};
use crate::name::ObjectKind;
use crate::pod::Life;
use crate::settings::{Settings, Version};

fn facts() -> Facts {
    let web = |name: &str| pod("shop", name, "n1", "", &[("app", "web")]);
    Facts {
        namespaces: vec![
            ("shop".into(), [("team", "a")].into()),
            ("crm".into(), Labels::default()),
        ],
        pods: vec![
            web("1"),
            web("2"),
            Pod {
                life: Life::Terminating,
                is_enforced: false,
                ..web("3")
            },
            Pod {
                life: Life::Finished,
                ..web("4")
            },
            Pod {
                is_host_network: true,
                ..web("5")
            },
            pod("shop", "db", "n1", "", &[("app", "db")]),
            pod("crm", "cli", "n1", "", &[("app", "web")]),
        ],
        ..Facts::default()
    }
}

#[test]
fn policies_count_the_endpoints_of_their_namespace() {
    let spec = |selector: Value, types: Value| json!({"podSelector": selector, "policyTypes": types, "egress": [{}]});
    let facts = Facts {
        policies: vec![
            policy(
                "shop",
                "web",
                &spec(json!({"matchLabels": {"app": "web"}}), json!(["Ingress"])),
            ),
            policy("shop", "all", &spec(json!({}), json!(["Ingress", "Egress"]))),
            policy("idle", "all", &spec(json!({}), json!(["Egress"]))),
            policy(
                "shop",
                "odd",
                &spec(json!({"matchLabels": {"app": "it's"}}), json!(["Ingress"])),
            ),
        ],
        ..facts()
    };
    let found = dormant(&Cluster::new(facts));
    let found: Vec<(String, Option<Selected>, Option<Selected>)> = found
        .into_iter()
        .map(|dormant| (dormant.object.to_string(), dormant.ingress, dormant.egress))
        .collect();
    let pods = |count| Some(Selected::Pods(count));
    let expected = [
        ("NetworkPolicy idle/all".to_owned(), None, pods(0)),
        ("NetworkPolicy shop/all".to_owned(), pods(4), pods(4)),
        (
            "NetworkPolicy shop/odd".to_owned(),
            Some(Selected::Unknown(UnknownReason::UnreadableSelector)),
            None,
        ),
        ("NetworkPolicy shop/web".to_owned(), pods(3), None),
    ];
    assert_eq!(found, expected);
}

#[test]
fn policies_of_administrators_count_if_calico_reads_them() {
    let read = |kind, object: Value| AdminPolicy::read(kind, &object).unwrap();
    let deny = json!([{"action": "Deny", "from": [{"namespaces": {}}]}]);
    let admin_policies = vec![
        read(
            ObjectKind::AdminNetworkPolicy,
            json!({"metadata": {"name": "old"}, "spec": {"subject": {"namespaces": {}}, "ingress": deny}}),
        ),
        read(
            ObjectKind::ClusterNetworkPolicy,
            json!({"metadata": {"name": "new"}, "spec": {
                "tier": "Admin",
                "subject": {"namespaces": {"matchLabels": {"team": "a"}}},
                "ingress": deny,
            }}),
        ),
        read(
            ObjectKind::GlobalNetworkPolicy,
            json!({"metadata": {"name": "calico"}, "spec": {"types": ["Egress"]}}),
        ),
    ];
    let of = |version| {
        let facts = Facts {
            settings: Settings {
                version,
                ..Settings::default()
            },
            admin_policies: admin_policies.clone(),
            ..facts()
        };
        let mut found: Vec<(String, Option<Selected>, Option<Selected>)> = dormant(&Cluster::new(facts))
            .into_iter()
            .map(|dormant| (dormant.object.name.to_string(), dormant.ingress, dormant.egress))
            .collect();
        found.sort_by(|one, other| one.0.cmp(&other.0));
        found
    };
    let unknown = Some(Selected::Unknown(UnknownReason::CalicoPolicy));
    let of_calico = ("calico".to_owned(), None, unknown);
    let new = ("new".to_owned(), Some(Selected::Pods(4)), None);
    let old = ("old".to_owned(), Some(Selected::Pods(5)), None);
    assert_eq!(of(Version::new(3, 32)), [of_calico.clone(), new]);
    assert_eq!(of(Version::new(3, 31)), [of_calico, old]);
}

#[test]
fn addresses_of_restricted_pods_are_listed_by_node_and_direction() {
    let spec = |selector: Value, types: Value| json!({"podSelector": selector, "policyTypes": types});
    let only = |name: &str| json!({"matchLabels": {"app": name}});
    let on =
        |name: &str, app: &str, node: &str, address: &str| pod("shop", name, node, address, &[("app", app)]);
    let facts = Facts {
        pods: vec![
            on("web-2", "web", "n1", "10.244.1.6"),
            on("web-1", "web", "n1", "10.244.1.5"),
            on("db", "db", "n2", "10.244.2.9"),
            on("free", "free", "n2", "10.244.2.8"),
            on("pending", "web", "n1", ""),
            Pod {
                life: Life::Finished,
                ..on("done", "web", "n1", "10.244.1.7")
            },
            pod("crm", "cli", "n2", "10.244.2.7", &[("app", "web")]),
        ],
        policies: vec![
            policy("shop", "web", &spec(only("web"), json!(["Ingress", "Egress"]))),
            policy("shop", "db", &spec(only("db"), json!(["Ingress"]))),
            policy("idle", "all", &spec(json!({}), json!(["Ingress"]))),
        ],
        ..facts()
    };
    let addresses = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| text.parse().unwrap())
            .collect::<Vec<IpAddr>>()
    };
    let both = addresses(&["10.244.1.5", "10.244.1.6"]);
    let expected = BTreeMap::from([
        (
            Arc::from("n1"),
            Restricted {
                ingress: both.clone(),
                egress: both,
                pods: 3,
            },
        ),
        (
            Arc::from("n2"),
            Restricted {
                ingress: addresses(&["10.244.2.9"]),
                egress: Vec::new(),
                pods: 1,
            },
        ),
    ]);
    assert_eq!(restricted(&Cluster::new(facts)), expected);
}

#[test]
fn a_policy_that_cannot_be_read_restricts_every_pod_of_its_namespace() {
    let odd = policy(
        "shop",
        "odd",
        &json!({"podSelector": {"matchLabels": {"app": "it's"}}}),
    );
    let facts = Facts {
        pods: vec![
            pod("shop", "web", "n1", "10.244.1.5", &[]),
            pod("crm", "cli", "n1", "10.244.1.7", &[]),
        ],
        policies: vec![odd],
        ..facts()
    };
    let found = restricted(&Cluster::new(facts));
    assert_eq!(found["n1"].ingress, ["10.244.1.5".parse::<IpAddr>().unwrap()]);
}
