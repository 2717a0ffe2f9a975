use crate::service_cidr::objects::BridgePolicy;
use ipnet::IpNet;
use serde_json::json;

use super::*;
use crate::service_cidr::objects::SERVICE_LABEL;
use crate::service_cidr::swap::ROLE_LABEL;
use crate::sourced::Sourced;

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

fn booked(before: &Book, services: &[Value], goal: Side) -> Book {
    let booked = book(before, services, &BTreeSet::new(), goal, &settings());
    assert_eq!(booked.without_room, Vec::<String>::new());
    booked.book
}

#[test]
fn who_comes_when_there_is_no_room_is_named_and_takes_no_others_place() {
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
    let nobody = BTreeSet::new();
    let first = book(&Book::new(), &services, &nobody, Side::New, &settings);
    assert_eq!((first.book.len(), first.without_room.len()), (10, 0));
    for number in 0..200 {
        let name = format!("tenant/flood-{number:03}");
        services.push(service(&name, "ClusterIP", &[&format!("10.96.0.{number}")]));
    }
    let second = book(&first.book, &services, &nobody, Side::New, &settings);
    assert!(first.book.iter().all(|(name, both)| second.book[name] == *both));
    // Of sixteen addresses two are nobody's, and the places of the API servers and of the name server are kept for them; here
    // somebody of the old range has these places.
    assert_eq!(second.book.len() + second.without_room.len(), 210);
    assert_eq!(second.book.len(), 14);
    assert!(second.without_room.contains(&"tenant/flood-199".to_owned()));
}

#[test]
fn a_label_of_ours_on_a_strangers_service_hides_nothing() {
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
        let found = book(&Book::new(), &services, &BTreeSet::new(), Side::New, &settings).book;
        assert_eq!(found.len(), 1, "{services:?}");
    }
    let helper = labelled(
        "shop/db-replumb-new",
        json!({ ROLE_LABEL: "new", SERVICE_LABEL: "db" }),
    );
    let found = book(&Book::new(), &[helper], &BTreeSet::new(), Side::New, &settings).book;
    assert_eq!(found, Book::new());
}

#[test]
fn what_is_written_once_stays_and_who_comes_is_added() {
    let mut helper = service("shop/web-replumb-new", "ClusterIP", &["172.30.0.5"]);
    helper["metadata"]["labels"] = json!({ ROLE_LABEL: "new", SERVICE_LABEL: "web" });
    let mut services = vec![
        service("shop/web", "ClusterIP", &["fd00:96::5", "10.96.0.5"]),
        service("shop/front", "LoadBalancer", &["10.96.0.6"]),
        service("shop/none", "ClusterIP", &["None"]),
        helper,
    ];
    let first = booked(&Book::new(), &services, Side::New);
    let web = Sides {
        old: addresses(&["10.96.0.5"]),
        new: addresses(&["172.30.0.5"]),
    };
    assert_eq!(first, Book::from([("shop/web".to_owned(), web.clone())]));

    // It has its new address, and somebody comes with the old one's place.
    services[0] = service("shop/web", "ClusterIP", &["fd00:96::5", "172.30.0.5"]);
    services.push(service("shop/late", "NodePort", &["10.96.0.5"]));
    let second = booked(&first, &services, Side::New);
    assert_eq!(second["shop/web"], web);
    assert_ne!(second["shop/late"].new, web.new, "{second:?}");

    // On the way back who was made in the new range gets one of the old.
    services.push(service("shop/born", "ClusterIP", &["172.30.7.7"]));
    let back = booked(&second, &services, Side::Old);
    assert_eq!(back["shop/born"].old, addresses(&["10.96.7.7"]));

    services.remove(0);
    let gone = booked(&second, &services, Side::New);
    assert!(!gone.contains_key("shop/web"));
}

#[test]
fn kubernetes_goes_first_then_name_servers_then_as_somebody_wrote() {
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
        .map(|service| (turn(&key(service), service), key(service)))
        .collect();
    sort(&mut ordered, &["b/b".to_owned()], Clone::clone);
    let names: Vec<&str> = ordered.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(
        names,
        ["default/kubernetes", "kube-system/kube-dns", "b/b", "a/a"]
    );
}

#[test]
fn spare_addresses_are_nobodys() {
    let settings = settings();
    let book = Book::from([(
        "shop/web".to_owned(),
        Sides {
            old: addresses(&["10.96.255.254"]),
            new: addresses(&["172.30.255.254"]),
        },
    )]);
    let taken: BTreeSet<IpAddr> = addresses(&["172.30.255.253"]).into_iter().collect();
    assert_eq!(
        spare(2, Side::New, &book, &taken, &settings),
        [addresses(&["172.30.255.252"]), addresses(&["172.30.255.251"])]
    );
    assert_eq!(
        counts(&[service("shop/web", "ClusterIP", &["172.30.0.5"])], &settings).new,
        1
    );
}
