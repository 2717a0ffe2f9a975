use crate::objects::BridgePolicy;
use ipnet::IpNet;
use serde_json::json;

use super::*;
use crate::exchange::ROLE_LABEL;
use crate::objects::SERVICE_LABEL;
use engine::sourced::Sourced;

fn settings() -> Settings {
    fn sourced<T: Clone>(value: T) -> Sourced<T> {
        Sourced::choose(Some(value.clone()), None, value)
    }
    let range = |text: &str| -> IpNet { text.parse().unwrap() };
    Settings {
        from: sourced(vec![range("10.96.0.0/16"), range("fd00:96::/112")]),
        to: sourced(vec![range("172.30.0.0/16")]),
        domain: sourced("cluster.local".to_owned()),
        bridge_policy: sourced(BridgePolicy::Local),
    }
}

fn service(name: &str, kind: &str, addresses: &[&str]) -> Value {
    let (namespace, name) = name.split_once('/').unwrap();
    json!({
        "metadata": { "namespace": namespace, "name": name },
        "spec": { "type": kind, "clusterIP": addresses.first(), "clusterIPs": addresses },
    })
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn entries(services: &[Value]) -> Vec<Entry> {
    services.iter().map(Entry::of).collect()
}

/// The assigned addresses of a migration that started at this time, by the addresses of the Services.
fn book_at(
    before: &AssignedAddresses,
    services: &[Value],
    goal: Side,
    settings: &Settings,
    since: &str,
) -> Assignment {
    let services = entries(services);
    let holder = |address: &IpAddr| {
        services
            .iter()
            .find(|service| service.addresses.contains(address))
    };
    let ground = AssignmentInputs {
        goal,
        settings,
        since: Some(since.parse().unwrap()),
        holder: &holder,
    };
    assign_addresses(before, &services, &ground)
}

const START: &str = "2026-03-01T10:00:00Z";

fn booked(before: &AssignedAddresses, services: &[Value], goal: Side) -> AssignedAddresses {
    let booked = book_at(before, services, goal, &settings(), START);
    assert_eq!(booked.without_room, Vec::<String>::new());
    booked.book
}

#[test]
fn services_without_a_free_address_are_listed_and_displace_no_other() {
    let range = |text: &str| -> IpNet { text.parse().unwrap() };
    let mut settings = settings();
    settings.from.value = vec![range("10.96.0.0/16")];
    settings.to.value = vec![range("172.30.0.0/28")];
    let mut services: Vec<Value> = (0..10)
        .map(|number| {
            service(
                &format!("shop/web-{number}"),
                "ClusterIP",
                &[&format!("10.96.1.{number}")],
            )
        })
        .collect();
    let first = book_at(&AssignedAddresses::new(), &services, Side::New, &settings, START);
    assert_eq!((first.book.len(), first.without_room.len()), (10, 0));
    for number in 0..200 {
        let name = format!("tenant/flood-{number:03}");
        services.push(service(&name, "ClusterIP", &[&format!("10.96.0.{number}")]));
    }
    let second = book_at(&first.book, &services, Side::New, &settings, START);
    assert!(first.book.iter().all(|(name, both)| second.book[name] == *both));
    // Of sixteen addresses two are unusable, and two are reserved for the API servers and the cluster DNS; here Services of the
    // old range have these two places.
    assert_eq!(second.book.len() + second.without_room.len(), 210);
    assert_eq!(second.book.len(), 14);
    assert!(second.without_room.contains(&"tenant/flood-199".to_owned()));
}

#[test]
fn labels_of_replumb_on_foreign_services_hide_nothing() {
    let settings = settings();
    let labelled = |name: &str, labels: serde_json::Value| {
        let mut service = service(name, "ClusterIP", &["10.96.0.7"]);
        service["metadata"]["labels"] = labels;
        service
    };
    for stranger in [
        labelled("shop/db", json!({ ROLE_LABEL: "new" })),
        labelled("shop/db", json!({ ROLE_LABEL: "new", SERVICE_LABEL: "db" })),
        labelled(
            "shop/db",
            json!({ ROLE_LABEL: "no such role", SERVICE_LABEL: "db" }),
        ),
        labelled(
            "shop/db-replumb-new",
            json!({ ROLE_LABEL: "old", SERVICE_LABEL: "db" }),
        ),
        labelled("shop/db-replumb-new", json!({})),
    ] {
        let services = [stranger];
        let found = book_at(&AssignedAddresses::new(), &services, Side::New, &settings, START).book;
        assert_eq!(found.len(), 1, "{services:?}");
    }
    let helper = labelled(
        "shop/db-replumb-new",
        json!({ ROLE_LABEL: "new", SERVICE_LABEL: "db" }),
    );
    let found = book_at(&AssignedAddresses::new(), &[helper], Side::New, &settings, START).book;
    assert_eq!(found, AssignedAddresses::new());
}

#[test]
fn assigned_addresses_stay_and_new_services_are_added() {
    let mut helper = service("shop/web-replumb-new", "ClusterIP", &["172.30.0.5"]);
    helper["metadata"]["labels"] = json!({ ROLE_LABEL: "new", SERVICE_LABEL: "web" });
    let mut services = vec![
        service("shop/web", "ClusterIP", &["fd00:96::5", "10.96.0.5"]),
        service("shop/front", "LoadBalancer", &["10.96.0.6"]),
        service("shop/none", "ClusterIP", &["None"]),
        helper,
    ];
    let first = booked(&AssignedAddresses::new(), &services, Side::New);
    let web = Sides {
        old: addresses(&["10.96.0.5"]),
        new: addresses(&["172.30.0.5"]),
    };
    assert_eq!(
        first,
        AssignedAddresses::from([("shop/web".to_owned(), web.clone())])
    );

    // The Service has its new address, and a new Service gets its old address.
    services[0] = service("shop/web", "ClusterIP", &["fd00:96::5", "172.30.0.5"]);
    services.push(service("shop/late", "NodePort", &["10.96.0.5"]));
    let second = booked(&first, &services, Side::New);
    assert_eq!(second["shop/web"], web);
    assert_ne!(second["shop/late"].new, web.new, "{second:?}");

    // In a rollback a Service that was created in the new range gets an old address.
    services.push(service("shop/born", "ClusterIP", &["172.30.7.7"]));
    let back = booked(&second, &services, Side::Old);
    assert_eq!(back["shop/born"].old, addresses(&["10.96.7.7"]));

    services.remove(0);
    let gone = booked(&second, &services, Side::New);
    assert!(!gone.contains_key("shop/web"));
}

#[test]
fn kubernetes_comes_first_then_name_servers_then_the_order_of_the_spec() {
    let mut dns = service("kube-system/kube-dns", "ClusterIP", &["10.96.0.10"]);
    dns["metadata"]["labels"] = json!({ "k8s-app": "kube-dns" });
    let services = [
        service("a/a", "ClusterIP", &["10.96.0.3"]),
        service("b/b", "ClusterIP", &["10.96.0.4"]),
        dns,
        service("default/kubernetes", "ClusterIP", &["10.96.0.1"]),
    ];
    let mut ordered: Vec<(Turn, String)> = services
        .iter()
        .map(|service| (Entry::of(service).turn(), key(service)))
        .collect();
    sort(&mut ordered, &["b/b".to_owned()], Clone::clone);
    let names: Vec<&str> = ordered.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(
        names,
        ["default/kubernetes", "kube-system/kube-dns", "b/b", "a/a"]
    );
}

#[test]
fn spare_addresses_are_free() {
    let settings = settings();
    let book = AssignedAddresses::from([(
        "shop/web".to_owned(),
        Sides {
            old: addresses(&["10.96.255.254"]),
            new: addresses(&["172.30.255.254"]),
        },
    )]);
    let taken: BTreeSet<IpAddr> = addresses(&["172.30.255.253"]).into_iter().collect();
    assert_eq!(
        spare(2, Side::New, &book, |address| taken.contains(address), &settings),
        [addresses(&["172.30.255.252"]), addresses(&["172.30.255.251"])]
    );
    assert_eq!(
        counts(
            &entries(&[service("shop/web", "ClusterIP", &["172.30.0.5"])]),
            &settings
        )
        .new,
        1
    );
}

fn created(mut service: Value, at: &str) -> Value {
    service["metadata"]["creationTimestamp"] = json!(at);
    service
}

#[test]
fn an_assigned_address_that_a_foreign_service_takes_is_replaced() {
    let web = |address: &str| service("shop/web", "ClusterIP", &[address]);
    let first = booked(&AssignedAddresses::new(), &[web("10.96.0.5")], Side::New);
    assert_eq!(first["shop/web"].new, addresses(&["172.30.0.5"]));
    let thief = service("tenant/thief", "ClusterIP", &["172.30.0.5"]);
    let second = booked(&first, &[web("10.96.0.5"), thief.clone()], Side::New);
    assert_eq!(second["shop/web"].old, addresses(&["10.96.0.5"]));
    assert_ne!(second["shop/web"].new, first["shop/web"].new);
    // Its own helper may have the address, and a Service in the middle of its exchange keeps its assignment.
    let mut helper = service("shop/web-replumb-new", "ClusterIP", &["172.30.0.5"]);
    helper["metadata"]["labels"] = json!({ ROLE_LABEL: "new", SERVICE_LABEL: "web" });
    assert_eq!(booked(&first, &[web("10.96.0.5"), helper], Side::New), first);
    let mut away = service("shop/web", "ExternalName", &[]);
    away["metadata"]["annotations"] = json!({ crate::objects::BEFORE_ANNOTATION: "{}" });
    assert_eq!(booked(&first, &[away, thief], Side::New), first);
}

#[test]
fn default_kubernetes_gets_the_first_address_only() {
    let kubernetes = service("default/kubernetes", "ClusterIP", &["10.96.0.1"]);
    let first = booked(
        &AssignedAddresses::new(),
        std::slice::from_ref(&kubernetes),
        Side::New,
    );
    let thief = service("tenant/thief", "ClusterIP", &["172.30.0.1"]);
    assert_eq!(booked(&first, &[kubernetes, thief], Side::New), first);
}

#[test]
fn in_a_rollback_an_old_service_gets_its_own_address_and_a_new_one_any() {
    let thief = |address: &str| service("tenant/thief", "ClusterIP", &[address]);
    let before = created(
        service("shop/web", "ClusterIP", &["172.30.0.5"]),
        "2026-03-01T09:00:00Z",
    );
    let after = created(
        service("shop/late", "ClusterIP", &["172.30.0.6"]),
        "2026-03-01T11:00:00Z",
    );
    let both = |last: u8| Sides {
        old: vec![IpAddr::from([10, 96, 0, last])],
        new: vec![IpAddr::from([172, 30, 0, last])],
    };
    let book = AssignedAddresses::from([
        ("shop/web".to_owned(), both(5)),
        ("shop/late".to_owned(), both(6)),
    ]);
    let back = booked(
        &book,
        &[before.clone(), after.clone(), thief("10.96.0.5")],
        Side::Old,
    );
    assert_eq!(back, book, "the user has to free the address that clients know");
    let back = booked(&book, &[before, after, thief("10.96.0.6")], Side::Old);
    assert_eq!(back["shop/web"], both(5));
    assert_ne!(back["shop/late"].old, both(6).old);
}

#[test]
fn a_recreated_service_is_assigned_by_its_new_address() {
    let first = booked(
        &AssignedAddresses::new(),
        &[service("shop/web", "ClusterIP", &["10.96.0.5"])],
        Side::New,
    );
    let again = booked(
        &first,
        &[service("shop/web", "ClusterIP", &["10.96.0.77"])],
        Side::New,
    );
    assert_eq!(again["shop/web"].old, addresses(&["10.96.0.77"]));
    assert_eq!(again["shop/web"].new, addresses(&["172.30.0.77"]));
}

#[test]
fn a_tenant_with_thousands_of_services_does_not_delay_other_tenants() {
    let crowd = (0..5000).map(|number| (Turn::Other, format!("crowd/many-{number:04}")));
    let shop = (0..3).map(|number| (Turn::Other, format!("shop/web-{number}")));
    let mut services: Vec<(Turn, String)> = crowd.chain(shop).collect();
    sort(&mut services, &[], Clone::clone);
    let names: Vec<&str> = services.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(
        names[..6],
        [
            "crowd/many-0000",
            "shop/web-0",
            "crowd/many-0001",
            "shop/web-1",
            "crowd/many-0002",
            "shop/web-2"
        ]
    );
}
