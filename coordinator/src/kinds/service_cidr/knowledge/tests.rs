use engine::found::Found;
use serde_json::json;
use service_cidr::host::HostFacts;

use super::super::answers::Answer;
use super::*;

fn asked_for(known: Vec<ServicePort>) -> ExpectedPorts {
    ExpectedPorts {
        service_ports: known,
        load_balancer_ports: Vec::new(),
    }
}

fn question(ports: &ExpectedPorts, second: i64) -> Question {
    Question {
        asked_at: Timestamp::from_second(second).unwrap(),
        ports: ports.clone(),
    }
}

fn facts(unknown: Found<Vec<ServicePort>>) -> HostFacts {
    HostFacts {
        missing_ports: unknown,
        ..HostFacts::default()
    }
}

fn is_whole(known: &Known) -> bool {
    known
        .confirmed
        .values()
        .all(|progress| *progress == Progress::Whole)
}

/// The wait for a Service, and the results.
fn ask(
    service: &Value,
    by: RulesOf,
    answers: &Answers<'_>,
    before: &Confirmed,
    expected: &ExpectedPorts,
) -> (Option<String>, Known) {
    let question = question(expected, 1);
    let knowledge = Knowledge::new(answers, before, Some(&question));
    let wait = knowledge.missing_rules(service, by);
    (wait.map(|wait| wait.message), knowledge.finish())
}

#[test]
fn an_address_is_known_after_all_nodes_have_reported_it() {
    let service = json!({
        "metadata": { "namespace": "shop", "name": "web", "uid": "u-1" },
        "spec": { "clusterIPs": ["172.30.0.5"], "ports": [{ "port": 80 }, { "port": 53, "protocol": "UDP" }] },
    });
    let all = ports(&service);
    assert_eq!(all.len(), 2);
    let no_results = Confirmed::new();
    let expected = asked_for(all.clone());
    let ask = |answers: &Answers<'_>, before: &Confirmed, expected: &ExpectedPorts| {
        ask(&service, RulesOf::Address, answers, before, expected)
    };
    let (knows, lacks) = (
        facts(Found::Present(Vec::new())),
        facts(Found::Present(vec![all[1].clone()])),
    );
    let answer = |said| {
        Some(Answer {
            is_newest: true,
            reports_users: false,
            said,
        })
    };

    let (wait, known) = ask(&Answers::from([("a", None)]), &no_results, &expected);
    assert!(wait.unwrap().starts_with("node a has not reported whether"));
    assert_eq!(
        (known.asking.needed.service_ports.len(), known.asking.is_answered),
        (2, false)
    );

    // Ports that no agent was asked about, and ports that this one was not.
    let older = Answer {
        is_newest: false,
        reports_users: false,
        said: &knows,
    };
    let all_know = Answers::from([("a", answer(&knows))]);
    let (wait, known) = ask(&all_know, &no_results, &asked_for(vec![all[0].clone()]));
    assert!(wait.unwrap().starts_with("every node will be asked whether"));
    assert!(known.asking.is_answered && !is_whole(&known));
    let (wait, known) = ask(&Answers::from([("a", Some(older))]), &no_results, &expected);
    assert!(wait.unwrap().starts_with("node a is being asked whether"));
    assert!(!known.asking.is_answered);

    let (wait, known) = ask(
        &Answers::from([("a", answer(&knows)), ("b", answer(&lacks))]),
        &no_results,
        &expected,
    );
    assert_eq!(
        wait.unwrap(),
        "node b: kube-proxy has no rule yet for 172.30.0.5:53/UDP, an address of Service shop/web"
    );
    assert!(known.asking.is_answered && !is_whole(&known));

    let (wait, known) = ask(&all_know, &no_results, &expected);
    assert_eq!((wait, is_whole(&known)), (None, true));
    let (wait, known) = ask(&Answers::from([("a", None)]), &known.confirmed, &expected);
    assert_eq!((wait, known.asking.needed), (None, ExpectedPorts::default()));

    let blind = facts(Found::Malformed("iptables-save: no such program".to_owned()));
    let (wait, known) = ask(&Answers::from([("a", answer(&blind))]), &no_results, &expected);
    assert!(wait.unwrap().contains("cannot report (iptables-save"));
    assert!(!known.asking.is_answered);
}

#[test]
fn a_known_address_is_not_known_as_a_load_balancers() {
    let service = json!({
        "metadata": { "namespace": "shop", "name": "web-replumb-bridge", "uid": "u-2" },
        "spec": { "clusterIPs": ["172.30.255.9"], "ports": [{ "port": 80 }] },
    });
    let knows = facts(Found::Present(Vec::new()));
    let mut expected = asked_for(ports(&service));
    let said = |expected: &ExpectedPorts| {
        let answer = Answer {
            is_newest: true,
            reports_users: false,
            said: &knows,
        };
        let answers = Answers::from([("a", Some(answer))]);
        ask(&service, RulesOf::Balancer, &answers, &Confirmed::new(), expected)
    };
    let (wait, known) = said(&expected);
    assert!(wait.unwrap().contains("will be asked"));
    assert_eq!(known.asking.needed.load_balancer_ports, ports(&service));
    expected.load_balancer_ports = known.asking.needed.load_balancer_ports;
    assert_eq!(said(&expected).0, None);
}
/// A Service whose ports kube-proxy knows on every node, once agents are asked about them.
fn service(name: &str, address: &str, ports: u16) -> Value {
    let ports: Vec<Value> = (1..=ports).map(|port| json!({ "port": port })).collect();
    json!({
        "metadata": { "namespace": "shop", "name": name, "uid": name },
        "spec": { "clusterIPs": [address], "ports": ports },
    })
}

/// The round in which each of these Services is known.
fn rounds(services: &[(Value, RulesOf)], most: usize) -> BTreeMap<String, usize> {
    let knows = facts(Found::Present(Vec::new()));
    let (mut confirmed, mut asked) = (Confirmed::new(), None);
    let mut done = BTreeMap::new();
    for number in 0..most {
        let answer = Answer {
            is_newest: true,
            reports_users: false,
            said: &knows,
        };
        let answers = Answers::from([("a", Some(answer))]);
        let knowledge = Knowledge::new(&answers, &confirmed, asked.as_ref());
        for (service, by) in services {
            if knowledge.missing_rules(service, *by).is_none() {
                done.entry(key(service)).or_insert(number);
            }
        }
        let known = knowledge.finish();
        let ports = known.asking.needed;
        assert!(ports.service_ports.len() + ports.load_balancer_ports.len() <= MOST_PORTS);
        asked = Some(question(&ports, i64::try_from(number).unwrap()));
        confirmed = known.confirmed;
    }
    done
}

#[test]
fn a_service_with_many_ports_delays_no_other_service() {
    let mut services = vec![(service("flood", "172.30.0.9", 20_000), RulesOf::Address)];
    for name in ["a", "b", "c"] {
        services.push((service(name, "172.30.0.5", 2), RulesOf::Balancer));
    }
    let done = rounds(&services, 20);
    for name in ["shop/a", "shop/b", "shop/c"] {
        assert_eq!(done[name], 1, "{name}");
    }
    // The rounds have all the room that the other Services do not need.
    assert_eq!(done["shop/flood"], 14);
}

#[test]
fn services_with_many_ports_take_turns_with_all_others() {
    let large = |number: u8| {
        (
            service(&format!("flood-{number}"), &format!("172.30.1.{number}"), 1000),
            RulesOf::Address,
        )
    };
    let small = |number: u8| {
        (
            service(&format!("web-{number}"), &format!("172.30.0.{number}"), 1),
            RulesOf::Balancer,
        )
    };
    let services: Vec<(Value, RulesOf)> = (1..=60).map(large).chain((1..=20).map(small)).collect();
    let done = rounds(&services, 60);
    assert_eq!(done.len(), 80, "every Service is known in the end");
    let last = (1..=20).map(|number| done[&format!("shop/web-{number}")]).max();
    assert!(last.is_some_and(|round| round <= 5), "{last:?}");
}

/// A port that a node does not learn is asked again after the ports of other Services.
#[test]
fn ports_that_a_node_does_not_learn_delay_no_other_service() {
    let stuck: Vec<Value> = (1..=20)
        .map(|number| service(&format!("stuck-{number}"), &format!("172.30.1.{number}"), 100))
        .collect();
    let web = service("web", "172.30.0.5", 1);
    let all_stuck: Vec<ServicePort> = stuck.iter().flat_map(ports).collect();
    let lacks = facts(Found::Present(all_stuck));
    let (mut confirmed, mut asked) = (Confirmed::new(), None);
    let mut known_in = None;
    for number in 0..4 {
        let answer = Answer {
            is_newest: true,
            reports_users: false,
            said: &lacks,
        };
        let answers = Answers::from([("a", Some(answer))]);
        let knowledge = Knowledge::new(&answers, &confirmed, asked.as_ref());
        for service in &stuck {
            assert!(knowledge.missing_rules(service, RulesOf::Address).is_some());
        }
        if knowledge.missing_rules(&web, RulesOf::Address).is_none() {
            known_in.get_or_insert(number);
        }
        let known = knowledge.finish();
        asked = Some(question(&known.asking.needed, number));
        confirmed = known.confirmed;
    }
    assert_eq!(known_in, Some(2));
}
