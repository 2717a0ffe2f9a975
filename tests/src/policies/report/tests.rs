use traffic::ask::{Means, Question};

use super::super::rounds::ROUNDS;
use super::super::trial::Class;
use super::*;

fn trial(client: &str, server: &str) -> Trial {
    Trial {
        class: Class::Tcp,
        client: client.to_owned(),
        is_from_pod: true,
        server: server.to_owned(),
        pods: vec![server.to_owned()],
        question: Question {
            means: Means::Tcp,
            server: "10.244.1.5:8080".parse().unwrap(),
        },
        planned: Vec::new(),
        name: None,
    }
}

fn selection(policy: &str, ingress: &[&str], egress: &[&str]) -> Selection {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Selection {
        policy: policy.to_owned(),
        ingress: names(ingress),
        egress: names(egress),
    }
}

fn reported(results: &[(Trial, Preview, Measured)]) -> Report {
    let mut report = Report::default();
    let selections = [
        selection("shop/of-db", &["shop/db"], &[]),
        selection("shop/of-web", &[], &["shop/web"]),
        selection("shop/of-none", &[], &[]),
    ];
    report.add(ROUNDS[1], &selections, results, 1.0, Some(0.5));
    report.finish(false);
    report
}

#[test]
fn a_policy_has_the_connections_of_the_sides_that_it_judges() {
    let refused = || Preview::Refused("Ingress".to_owned());
    let report = reported(&[
        (trial("shop/web", "shop/db"), refused(), Measured::Refused),
        (
            trial("shop/db", "shop/web"),
            Preview::Allowed("Rule"),
            Measured::Allowed,
        ),
        (trial("shop/api", "shop/db"), refused(), Measured::Refused),
    ]);
    let counts = |name: &str| {
        let row = report.by_policy.iter().find(|row| row.name == name).unwrap();
        row.counts.connections
    };
    assert_eq!(
        [
            counts("shop/of-db"),
            counts("shop/of-web"),
            counts("shop/of-none")
        ],
        [2, 1, 0]
    );
    assert_eq!((report.pairs, report.policies), (3, 3));
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(report.text().contains("agree: 3 of 3"), "{}", report.text());
}

#[test]
fn a_difference_is_a_line_and_a_problem() {
    let report = reported(&[
        (
            trial("shop/web", "shop/db"),
            Preview::Allowed("Rule"),
            Measured::Refused,
        ),
        (
            trial("shop/api", "shop/db"),
            Preview::Unknown("UnreadableSelector"),
            Measured::Allowed,
        ),
    ]);
    let text = report.text();
    assert!(
        text.contains("differs: default-deny: shop/web → shop/db (10.244.1.5:8080, TCP to a pod): preview allowed (Rule), Felix refused"),
        "{text}"
    );
    assert_eq!(report.problems, ["preview and Felix differ in 1 connections"]);
    assert_eq!(report.unknown.get("UnreadableSelector"), Some(&1));
    assert!(text.contains("agree: 0 of 1; not decided: 1"), "{text}");
}

#[test]
fn policies_without_an_effect_and_too_few_pairs_are_problems() {
    let allowed = [(
        trial("shop/web", "shop/db"),
        Preview::Allowed("Rule"),
        Measured::Allowed,
    )];
    let mut report = reported(&allowed);
    assert!(
        report.problems[0].contains("Felix refused no connection"),
        "{:?}",
        report.problems
    );
    report.problems.clear();
    report.finish(true);
    assert_eq!(report.problems.len(), 2, "{:?}", report.problems);
}
