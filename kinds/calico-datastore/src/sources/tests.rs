use rstest::rstest;

use super::*;
use crate::awaited::Awaited;
use crate::controller_objects::ControllerObjects;

fn namespace(name: &str, labels: &[(String, String)]) -> Source {
    let labels = labels.iter().cloned().collect();
    Source::of_namespace(name.to_owned(), format!("uid of {name}"), &labels)
}

fn named(namespace: &str, name: &str) -> PolicyName {
    PolicyName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn policy(name: &str, shape: &PolicyShape) -> Source {
    Source::of_policy(named("shop", name), format!("uid of {name}"), shape)
}

fn plain(name: &str) -> Source {
    policy(name, &PolicyShape::default())
}

fn is_of(value: &str) -> Selector {
    Selector {
        match_expressions: vec![(
            "app".to_owned(),
            "In".to_owned(),
            vec![value.to_owned(), "b".to_owned()],
        )],
        ..Selector::default()
    }
}

#[rstest]
#[case::plain("a", 58, false)]
#[case::too_long("a", 59, true)]
#[case::with_a_prefix("example.com/a", 63, false)]
fn a_label_too_long_for_a_profile_is_a_flaw(
    #[case] start: &str,
    #[case] characters: usize,
    #[case] is_flawed: bool,
) {
    let prefix = start.trim_end_matches('a');
    let label = (format!("{prefix}{}", "a".repeat(characters)), "x".to_owned());
    let source = namespace("shop", std::slice::from_ref(&label));
    let flaw = is_flawed.then_some(Flaw::Labels(label.0));
    assert_eq!(source.flaw, flaw);
}

#[test]
fn a_label_prefix_too_long_for_a_profile_is_a_flaw() {
    let of = |length: usize| namespace("shop", &[(format!("{}/a", "a".repeat(length)), String::new())]).flaw;
    assert_eq!(of(248), None);
    assert!(matches!(of(249), Some(Flaw::Labels(_))));
}

/// v3 adds a prefix of 12 characters to the name, and accepts 253.
#[test]
fn a_policy_name_too_long_for_v3_is_a_flaw() {
    assert_eq!(plain(&"a".repeat(241)).flaw, None);
    assert_eq!(plain(&"a".repeat(242)).flaw, Some(Flaw::Name(242)));
    assert_eq!(plain(&"a".repeat(253)).flaw, Some(Flaw::Name(253)));
}

#[rstest]
#[case("a", false)]
#[case("a_b.C-9", false)]
#[case("", false)]
// Invalid in a label, but accepted by an old Kubernetes and by v3.
#[case("a b", false)]
#[case("a'b", true)]
#[case("it's", true)]
fn a_selector_that_v3_refuses_is_a_flaw(#[case] value: &str, #[case] is_flawed: bool) {
    let of_pods = PolicyShape {
        selector: is_of(value),
        ..PolicyShape::default()
    };
    let of_a_peer = PolicyShape {
        rules: vec![RuleShape {
            peers: vec![Peer {
                selectors: vec![Selector::default(), is_of(value)],
                networks: Vec::new(),
            }],
            ports: 1,
        }],
        ..PolicyShape::default()
    };
    for shape in [of_pods, of_a_peer] {
        let flaw = policy("web", &shape).flaw;
        assert_eq!(matches!(flaw, Some(Flaw::Selector(_))), is_flawed, "{flaw:?}");
    }
}

/// Every operator, and labels that are also keywords in selectors of v3.
#[test]
fn every_selector_of_kubernetes_is_valid_in_v3() {
    let words = [
        "in",
        "not",
        "has",
        "all",
        "contains",
        "1a",
        "example.com/in",
        "A_b.c",
    ];
    let terms = ["In", "NotIn", "Exists", "DoesNotExist"];
    let selector = Selector {
        match_labels: words.map(|word| (word.to_owned(), word.replace('/', "."))).into(),
        match_expressions: words
            .iter()
            .flat_map(|word| {
                let values = || vec!["in".to_owned(), "b".to_owned()];
                terms.map(|term| ((*word).to_owned(), term.to_owned(), values()))
            })
            .collect(),
    };
    assert_eq!(
        selector::parse(&written(&selector)),
        Ok(()),
        "{}",
        written(&selector)
    );
    let shape = PolicyShape {
        selector,
        ..PolicyShape::default()
    };
    assert_eq!(policy("web", &shape).flaw, None);
}

/// A small policy of Kubernetes can become a large one: each peer once for each port.
#[test]
fn an_object_too_large_for_etcd_is_a_flaw() {
    let rules = |peers: usize, ports: usize| {
        let peer = Peer {
            selectors: Vec::new(),
            networks: vec!["192.0.2.1/32".to_owned()],
        };
        PolicyShape {
            rules: vec![RuleShape {
                peers: vec![peer; peers],
                ports,
            }],
            ..PolicyShape::default()
        }
    };
    for (peers, ports, is_flawed) in [
        (0, 0, false),
        (100, 50, false),
        (1000, 1, false),
        (0, 1000, false),
        (200, 200, true),
        (3000, usize::MAX, true),
    ] {
        let flaw = policy("web", &rules(peers, ports)).flaw;
        assert_eq!(
            matches!(flaw, Some(Flaw::Size(_))),
            is_flawed,
            "{peers}, {ports}: {flaw:?}"
        );
        assert!(flaw.is_none_or(|flaw| !flaw.is_certain()));
    }
    let labels: Vec<(String, String)> = (0..100_000)
        .map(|number| (format!("label-{number}"), String::new()))
        .collect();
    assert!(matches!(namespace("shop", &labels).flaw, Some(Flaw::Size(_))));
}

fn names_of(sources: &[&Source]) -> Vec<String> {
    sources.iter().map(|source| source.origin.name()).collect()
}

/// Objects that v3 cannot have are not waited for, except those of system namespaces, whose labels no tenant can write.
#[test]
fn an_object_that_v3_cannot_have_is_reported_and_not_awaited() {
    let long = [("a".repeat(60), String::new())];
    let sources = [
        plain("web"),
        plain(&"b".repeat(250)),
        namespace("shop", &long),
        namespace("kube-system", &long),
        namespace("replumb-system", &long),
        namespace("bank", &[]),
    ];
    let system = ["replumb-system"];
    let awaited = Awaited::default().remaining_of(&sources, &system);
    assert_eq!(
        names_of(&awaited),
        ["shop/web", "kube-system", "replumb-system", "bank"]
    );
    let told: Vec<(String, String)> = warnings(&sources, &system).collect();
    let about: Vec<&str> = told.iter().map(|(about, _)| about.as_str()).collect();
    assert_eq!(
        about,
        [
            "namespace shop",
            "namespace shop",
            "namespace kube-system",
            "namespace replumb-system"
        ]
    );
    for (place, words) in [
        (0, "NetworkPolicy shop/bbb"),
        (
            0,
            "and is opened without it: metadata.name is 250 characters, needed at most 241 characters",
        ),
        (
            1,
            "Namespace shop: v3 cannot have this object, and is opened without it",
        ),
        (
            2,
            "Namespace kube-system: v3 cannot have this object, and is not opened without it",
        ),
    ] {
        assert!(told[place].1.contains(words), "{told:#?}");
    }
}

/// The controllers write a moment after the creation of an object, so constantly created objects are always missing for a moment.
#[test]
fn constantly_created_objects_do_not_delay_the_migration() {
    let mut awaited = Awaited::default();
    let mut sources = vec![namespace("shop", &[]), plain("web")];
    for round in 0..10 {
        awaited.begin(Some("conversion"));
        sources.push(plain(&format!("new-{round}")));
        let asked = awaited.remaining_of(&sources, &[]);
        // All except the newest.
        let missing = ControllerObjects::of_sources(
            asked
                .iter()
                .copied()
                .filter(|source| **source == sources[sources.len() - 1]),
        );
        assert_eq!(missing.policies.len(), usize::from(round == 0), "round {round}");
        awaited.remember(&asked, &missing);
    }
    // An object that is deleted and created again is another one.
    let mut awaited = Awaited::default();
    for round in 0..3 {
        let again = Source {
            uid: format!("round {round}"),
            ..plain("again")
        };
        let sources = [again];
        let asked = awaited.remaining_of(&sources, &[]);
        assert_eq!(asked.len(), usize::from(round == 0), "round {round}");
        let missing = ControllerObjects::of_sources(asked.iter().copied());
        awaited.remember(&asked, &missing);
    }
}

#[test]
fn an_existing_object_is_awaited_until_it_is_written_or_deleted() {
    let mut awaited = Awaited::default();
    awaited.begin(Some("first"));
    let sources = [plain("slow"), plain("web")];
    for _ in 0..3 {
        let asked = awaited.remaining_of(&sources, &[]);
        let missing = ControllerObjects::of_sources([&sources[0]]);
        assert!(names_of(&asked).contains(&"shop/slow".to_owned()));
        awaited.remember(&asked, &missing);
        awaited.begin(Some("first"));
    }
    assert_eq!(names_of(&awaited.remaining_of(&sources, &[])), ["shop/slow"]);
    assert!(
        awaited.remaining_of(&sources[1..], &[]).is_empty(),
        "the object was deleted"
    );
    // Another conversion awaits all objects again.
    awaited.begin(Some("second"));
    assert_eq!(awaited.remaining_of(&sources, &[]).len(), 2);
}
