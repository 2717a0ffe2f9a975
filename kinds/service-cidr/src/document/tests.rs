use super::*;
use crate::assignment::{AssignmentInputs, assign_addresses};
use crate::checks::fixture;
use crate::facts::Mention;
use crate::side::Side;
use engine::owner::Owner;

fn planned(change: impl FnOnce(&mut ClusterFacts), keep_load_balancers: bool, order: &[&str]) -> Document {
    let mut facts = fixture::cluster();
    change(&mut facts);
    let settings = fixture::settings(&facts);
    let services: Vec<Entry> = facts.services.iter().map(Entry::of).collect();
    let book = assign_addresses(
        &AssignedAddresses::new(),
        &services,
        &AssignmentInputs {
            goal: Side::New,
            settings: &settings,
            since: None,
            holder: &|_| None,
        },
    )
    .book;
    let order: Vec<String> = order.iter().map(|name| (*name).to_owned()).collect();
    let options = Options {
        book: &book,
        order: &order,
        services_at_once: 10,
        soak_seconds: 86400,
        keep_load_balancers,
    };
    document(&settings, &facts, &options)
}

fn text(document: &Document) -> String {
    let nodes = document.nodes.iter().flat_map(|node| &node.actions);
    let all = document.before_first_node().chain(nodes).chain(&document.finish);
    let lines: Vec<String> = all
        .map(|action| format!("{} {}: {}", action.verb, action.object, action.detail))
        .collect();
    lines.join("\n")
}

#[test]
fn the_plan_of_a_good_cluster() {
    insta::assert_snapshot!(text(&planned(|_| {}, true, &[])), @r#"
    create ServiceCIDR replumb-new: 172.31.0.0/16: Services can get addresses of it, beside those of 10.96.0.0/16
    wait API server 192.168.0.100: you restart it with --service-cluster-ip-range=172.31.0.0/16 and a certificate for the new first address (and the controller manager likewise): kubeadm: networking.serviceSubnet in ConfigMap kube-system/kubeadm-config, /etc/kubernetes/manifests/kube-apiserver.yaml; kops: spec.serviceClusterIPRange, then a rolling update of the control plane. No Service changes before all API servers have it
    create helpers of each Service, for its exchange: SERVICE-replumb-new and SERVICE-replumb-old have its addresses, SERVICE-replumb-bridge and SERVICE-replumb-bridge-ports answer meanwhile: these are of type LoadBalancer, of class replumb.dev/bridge, for which no load balancer is created
    exchange Service default/kubernetes: 10.96.0.1 → 172.31.0.1; both answer until the end
    exchange Service kube-system/kube-dns: 10.96.0.10 → 172.31.0.10; both answer until the end
    exchange Service shop/door: 10.96.3.8 → 172.31.3.8, clients of the old address may reach another pod once; both answer until the end
    exchange Service shop/near: 10.96.3.9 → 172.31.3.9, for some seconds pods of any node answer; both answer until the end
    exchange Service shop/web: 10.96.3.7 → 172.31.3.7; both answer until the end
    wait kubelet of Node a: you write the new address of the cluster DNS to clusterDNS (now 10.96.0.10), and restart the kubelet
    wait kubelet of Node b: you write the new address of the cluster DNS to clusterDNS (now 10.96.0.10), and restart the kubelet
    delete ServiceCIDR kubernetes: no more addresses of 10.96.0.0/16 are assigned; addresses in use stay
    evict pods that have received old addresses: some at a time, within their PodDisruptionBudgets, name servers first; running pods: 2
    wait 86400 s: without any connection to an address of 10.96.0.0/16; all these addresses still answer
    wait objects of tenants: none contains an address of 10.96.0.0/16 now
    delete Services that answer at old addresses: the point of no return for clients of addresses of 10.96.0.0/16
    create ServiceCIDR replumb-keep-10-96-200-8-30: reserves addresses of load balancers (shop/front), and is deleted at once: it assigns none, and is removed with the last
    wait ServiceCIDR kubernetes: its deletion completes once no address of it is in use, and an API server creates it again: 172.31.0.0/16
    delete ServiceCIDR replumb-new: the default ServiceCIDR has the same range by then
    "#);
}

#[test]
fn services_of_the_order_come_after_kubernetes_and_name_servers() {
    let plan = planned(|_| {}, true, &["shop/web"]);
    let exchanges = plan.prepare.iter().filter(|action| action.verb == "exchange");
    let names: Vec<&str> = exchanges.map(|action| action.object.as_str()).collect();
    assert_eq!(
        names,
        [
            "Service default/kubernetes",
            "Service kube-system/kube-dns",
            "Service shop/web",
            "Service shop/door",
            "Service shop/near",
        ]
    );
}

#[test]
fn load_balancers_that_are_not_kept_have_no_cover() {
    assert!(text(&planned(|_| {}, true, &[])).contains("ServiceCIDR replumb-keep-"));
    assert!(!text(&planned(|_| {}, false, &[])).contains("ServiceCIDR replumb-keep-"));
}

#[test]
fn a_change_by_the_user_is_listed_with_both_ranges() {
    let plan = planned(
        |facts| {
            facts.mentions.push(Mention {
                object: "ConfigMap kube-system/kubeadm-config: networking.serviceSubnet".to_owned(),
                owner: Owner::Cluster,
                addresses: vec![fixture::FROM.parse().unwrap()],
                more: 0,
                fix: "write {new}.".to_owned(),
            });
        },
        true,
        &[],
    );
    let waits = plan.finish.iter().filter(|action| action.verb == "wait");
    let found: Vec<String> = waits
        .filter(|action| action.object.contains("kubeadm-config"))
        .map(|action| action.detail.clone())
        .collect();
    assert_eq!(found.len(), 1);
    assert!(
        found[0].contains(fixture::FROM) && found[0].contains(fixture::TO),
        "{found:?}"
    );
}

/// Objects of tenants change at any time, and must not change a reviewed plan.
#[test]
fn a_change_by_a_tenant_is_listed_and_not_hashed() {
    let plan = planned(
        |facts| {
            facts.mentions.push(Mention {
                object: "Deployment shop/web: its pod template".to_owned(),
                owner: Owner::Tenant("shop".to_owned()),
                addresses: vec!["10.96.0.1/32".parse().unwrap()],
                more: 0,
                fix: "write {new}.".to_owned(),
            });
        },
        true,
        &[],
    );
    let words = "wait objects of tenants: 1 contains an address of 10.96.0.0/16 now, and delays only this step: Deployment \
                 shop/web: its pod template: found 10.96.0.1";
    assert!(text(&plan).contains(words), "{}", text(&plan));
    assert_eq!(plan.hash(), planned(|_| {}, true, &[]).hash());
}
