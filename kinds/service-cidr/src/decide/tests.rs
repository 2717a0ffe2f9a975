//! Which Services change together, which wait for others, and which addresses load balancers keep.

use crate::objects::BridgePolicy;
use std::net::IpAddr;
use std::sync::LazyLock;

use rstest::rstest;

use super::*;
use crate::covers::Kept;
use crate::exchange::Role;
use crate::ranges::DEFAULT;
use crate::settings::Settings;
use crate::step::Missing;
use engine::evict::PodName;
use engine::sourced::Sourced;

fn settings() -> Settings {
    fn sourced<T: Clone>(value: T) -> Sourced<T> {
        Sourced::choose(Some(value.clone()), None, value)
    }
    Settings {
        from: sourced(vec!["10.96.0.0/16".parse().unwrap()]),
        to: sourced(vec!["172.30.0.0/16".parse().unwrap()]),
        domain: sourced("cluster.local".to_owned()),
        bridge_policy: sourced(BridgePolicy::Local),
    }
}

fn range(name: &str, range: &str, terminating: bool) -> ServiceCidr {
    ServiceCidr {
        name: name.to_owned(),
        ranges: vec![range.parse().unwrap()],
        ready: !terminating,
        terminating,
    }
}

/// Both ranges assign addresses.
fn both() -> Vec<ServiceCidr> {
    vec![
        range(DEFAULT, "10.96.0.0/16", false),
        range("replumb-new", "172.30.0.0/16", false),
    ]
}

fn service(name: &str, turn: Turn, decision: Decision<exchange::Step>) -> ServiceView {
    ServiceView {
        name: name.to_owned(),
        turn,
        has_target_address: decision == Decision::Settled,
        has_no_address: false,
        is_rolled_back: false,
        is_slow: false,
        is_late: false,
        uncovered: Vec::new(),
        is_served: true,
        decision: Some(decision),
    }
}

/// A Service in `spec.serviceCidr.rollbackServices`.
fn wanted_back(name: &str, turn: Turn, decision: Decision<exchange::Step>) -> ServiceView {
    ServiceView {
        has_target_address: false,
        is_rolled_back: true,
        ..service(name, turn, decision)
    }
}

#[test]
fn a_service_in_rollback_services_goes_back_during_a_pause_and_no_other_moves() {
    let services = [
        wanted_back("shop/web", Turn::Other, SWAP),
        service("shop/a", Turn::Other, SWAP),
    ];
    let paused = with(&services, |_, policy| policy.hold = Some(missing("paused")));
    let Decision::Run(Step::Exchange(steps)) = paused.decision else {
        panic!("{paused:?}");
    };
    assert_eq!(steps, [("shop/web".to_owned(), exchange::Step::Swap)]);
    let goes_on = [
        wanted_back("shop/web", Turn::Other, Decision::Settled),
        services[1].clone(),
    ];
    assert_eq!(written(&goes_on), ["shop/a"], "the others continue");
}

#[test]
fn source_addresses_are_not_released_while_a_service_is_kept() {
    let kubernetes = "default/kubernetes";
    let services = [
        wanted_back(kubernetes, Turn::Kubernetes, Decision::Settled),
        service("shop/a", Turn::Other, Decision::Settled),
    ];
    let next = with(&services, |view, _| view.soak = None);
    let Decision::Wait(wait) = &next.decision else {
        panic!("{next:?}");
    };
    assert_eq!((next.stage, wait.reason), (Stage::Exchange, WaitReason::Paused));
    assert!(wait.message.contains(kubernetes), "{}", wait.message);
    let waiting = [services[0].clone(), service("shop/a", Turn::Other, SWAP)];
    assert_eq!(
        written(&waiting),
        ["shop/a"],
        "a kept service delays no other turn"
    );
}

fn missing(message: &str) -> Wait {
    waits(WaitReason::ConfigurationFollowUp, message.to_owned())
}

fn halted() -> Decision<exchange::Step> {
    Decision::Halt(Halt {
        reason: HaltReason::Drift,
        message: "its address is in use".to_owned(),
    })
}

const SWAP: Decision<exchange::Step> = Decision::Run(exchange::Step::Swap);
const MAKE: Decision<exchange::Step> = Decision::Run(exchange::Step::MakeHome(Side::New));

/// The decision for these Services, two at once.
fn with(services: &[ServiceView], change: impl FnOnce(&mut View<'_>, &mut Policy)) -> Next {
    let (settings, ranges, kept) = (settings(), both(), Kept::default());
    let mut view = View {
        goal: Side::New,
        settings: &settings,
        ranges: &ranges,
        api_servers: None,
        services,
        without_address: &[],
        kept: &kept,
        addresses: &[],
        follow_up: None,
        pods_with_old_addresses: None,
        soak: Some(missing("soak")),
    };
    let mut policy = Policy {
        services_at_once: 2,
        hold: None,
    };
    change(&mut view, &mut policy);
    decide(&view, &policy)
}

/// Names of the Services that are written.
fn written(services: &[ServiceView]) -> Vec<String> {
    match with(services, |_, _| {}).decision {
        Decision::Run(Step::Exchange(steps)) => steps.into_iter().map(|(name, _)| name).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn kubernetes_goes_first_then_name_servers_then_two_at_a_time() {
    let mut services = vec![
        service("default/kubernetes", Turn::Kubernetes, SWAP),
        service("kube-system/kube-dns", Turn::NameServer, SWAP),
        service("shop/a", Turn::Other, SWAP),
        service("shop/b", Turn::Other, SWAP),
        service("shop/c", Turn::Other, SWAP),
    ];
    for expected in [
        vec!["default/kubernetes"],
        vec!["kube-system/kube-dns"],
        vec!["shop/a", "shop/b"],
        vec!["shop/c"],
    ] {
        assert_eq!(written(&services), expected);
        for service in services
            .iter_mut()
            .filter(|service| expected.contains(&service.name.as_str()))
        {
            service.decision = Some(Decision::Settled);
            service.has_target_address = true;
        }
    }
}

/// A Service that was created after the exchange had started.
fn late(name: &str, decision: Decision<exchange::Step>) -> ServiceView {
    ServiceView {
        is_late: true,
        ..service(name, Turn::Other, decision)
    }
}

#[test]
fn the_range_is_closed_while_owners_keep_creating_services() {
    let mut services = vec![service("shop/a", Turn::Other, SWAP)];
    services.extend((0..1000).map(|number| late(&format!("crowd/{number}"), SWAP)));
    assert_eq!(
        written(&services).len(),
        2,
        "all continue while the others are in progress"
    );
    services[0] = service("shop/a", Turn::Other, Decision::Settled);
    let next = with(&services, |_, _| {});
    assert_eq!(
        next.decision,
        Decision::Run(Step::DeleteRange(DEFAULT.to_owned()))
    );
    assert_eq!((next.stage, next.helper_updates.len()), (Stage::Close, 2));
    // The user changes the API servers' flag first; late Services do not wait for that.
    let next = with(&services, |view, _| view.api_servers = Some(missing("the flag")));
    assert!(matches!(next.decision, Decision::Wait(_)));
    assert_eq!((next.stage, next.helper_updates.len()), (Stage::ControlPlane, 2));
    let paused = with(&services, |_, policy| policy.hold = Some(missing("paused")));
    assert!(matches!(paused.decision, Decision::Wait(_)) && paused.helper_updates.is_empty());
}

#[test]
fn a_late_service_leaves_a_closed_range_with_a_cover_of_its_address() {
    let address: IpAddr = "10.96.7.9".parse().unwrap();
    let closed = [
        range(DEFAULT, "10.96.0.0/16", true),
        range("replumb-new", "172.30.0.0/16", false),
        range("replumb-keep-10-96-7-8-30", "10.96.7.8/30", false),
    ];
    let waiting = ServiceView {
        uncovered: vec![address],
        ..late(
            "crowd/1",
            Decision::Wait(waits(WaitReason::ServiceRanges, "closed".to_owned())),
        )
    };
    let there = service("shop/a", Turn::Other, Decision::Settled);
    let held: [IpAddr; 2] = [address, "10.96.0.1".parse().unwrap()];
    let on = |service: &ServiceView, ranges: &[ServiceCidr], held: &[IpAddr]| {
        decide_holding(&[there.clone(), service.clone()], &[], held, ranges)
    };
    let cover = Step::CreateRange(closed[2].name.clone(), closed[2].ranges.clone());
    assert_eq!(on(&waiting, &closed[..2], &held), Decision::Run(cover));
    assert!(
        matches!(on(&waiting, &closed, &held), Decision::Wait(_)),
        "the cover is not Ready yet"
    );
    let exchange = Step::Exchange(vec![("crowd/1".to_owned(), exchange::Step::Swap)]);
    assert_eq!(
        on(&late("crowd/1", SWAP), &closed, &held),
        Decision::Run(exchange)
    );
    let arrived = late("crowd/1", Decision::Settled);
    let gone = Step::DeleteRange(closed[2].name.clone());
    assert_eq!(
        on(&arrived, &closed, &held),
        Decision::Run(gone),
        "the cover assigns addresses"
    );
    assert!(
        matches!(on(&arrived, &closed, &held[..1]), Decision::Wait(_)),
        "both would be removed, and no range would contain the address"
    );
}

#[test]
fn services_without_a_free_address_wait_and_the_source_range_is_not_released() {
    static FLOOD: LazyLock<Vec<String>> = LazyLock::new(|| {
        (0..20_000)
            .map(|number| format!("tenant/flood-{number}"))
            .collect()
    });
    let flood = |view: &mut View<'_>| view.without_address = &FLOOD;
    let going = [
        service("shop/a", Turn::Other, SWAP),
        service("shop/b", Turn::Other, SWAP),
    ];
    match with(&going, |view, _| flood(view)).decision {
        Decision::Run(Step::Exchange(steps)) => assert_eq!(steps.len(), 2),
        other => panic!("{other:?}"),
    }
    let there = [service("shop/a", Turn::Other, Decision::Settled)];
    let next = with(&there, |view, _| {
        flood(view);
        view.soak = None;
    });
    assert_eq!(next.stage, Stage::Exchange);
    let Decision::Wait(found) = next.decision else {
        panic!("the range is released: {:?}", next.decision);
    };
    assert_eq!(found.reason, WaitReason::ServiceRanges);
    let start = "172.30.0.0/16 has no free address for 20000 Services, the first: tenant/flood-0, ";
    assert!(found.message.starts_with(start), "{}", found.message);
    assert!(found.message.len() < 1000);
}

#[test]
fn a_ready_service_does_not_wait_for_others() {
    let mut services = vec![
        service("shop/a", Turn::Other, SWAP),
        service("shop/b", Turn::Other, Decision::Wait(missing("endpoints"))),
        service("shop/c", Turn::Other, MAKE),
    ];
    assert_eq!(written(&services), ["shop/a"], "two at once are in progress");
    services[0] = service("shop/a", Turn::Other, Decision::Settled);
    assert_eq!(written(&services), ["shop/c"]);
    services[2].decision = Some(Decision::Wait(missing("rules")));
    let next = with(&services, |_, _| {});
    assert_eq!(next.decision, Decision::Wait(missing("endpoints")));
}

#[test]
fn a_halted_service_is_named_and_delays_no_other() {
    let mut services = vec![
        service("shop/a", Turn::Other, halted()),
        service("shop/b", Turn::Other, MAKE),
        service("shop/c", Turn::Other, Decision::Run(exchange::Step::Finish)),
    ];
    services[2].has_no_address = true;
    assert_eq!(written(&services), ["shop/c", "shop/b"]);
    let next = with(&services, |_, _| {});
    let words = "1 Service cannot continue: its address is in use";
    assert_eq!(next.halted_services.unwrap().message, words);
    // The migration halts once it is the only remaining one.
    for service in &mut services[1..] {
        (service.has_target_address, service.has_no_address) = (true, false);
        service.decision = Some(Decision::Settled);
    }
    let next = with(&services, |_, _| {});
    let Decision::Halt(halt) = &next.decision else {
        panic!("{next:?}");
    };
    assert_eq!((halt.message.as_str(), next.halted_services), (words, None));
    services[1] = service("shop/b", Turn::Other, halted());
    let Decision::Halt(halt) = with(&services, |_, _| {}).decision else {
        panic!("no halt for both");
    };
    assert_eq!(
        halt.message,
        "2 Services cannot continue. The first: its address is in use"
    );
}

#[test]
fn slow_services_use_no_slot_and_continue_when_they_can() {
    let slow = |name: &str, decision| {
        let mut slow = service(name, Turn::Other, decision);
        slow.is_slow = true;
        slow
    };
    let waiting = || Decision::Wait(missing("endpoints"));
    let mut services = vec![
        slow("shop/a", waiting()),
        slow("shop/b", waiting()),
        slow("shop/c", MAKE),
        service("shop/d", Turn::Other, MAKE),
        service("shop/e", Turn::Other, MAKE),
        service("shop/f", Turn::Other, MAKE),
    ];
    assert_eq!(written(&services), ["shop/c", "shop/d", "shop/e"]);
    services[0].is_slow = false;
    assert_eq!(written(&services), ["shop/c", "shop/d"], "two slots");
}

#[test]
fn a_service_without_an_address_gets_one_during_a_pause() {
    let mut services = vec![
        service("shop/a", Turn::Other, SWAP),
        service(
            "shop/b",
            Turn::Other,
            Decision::Run(exchange::Step::Own(Side::Old)),
        ),
    ];
    let stop = |view: &[ServiceView]| with(view, |_, policy| policy.hold = Some(missing("paused"))).decision;
    assert_eq!(stop(&services), Decision::Wait(missing("paused")));
    services[1].has_no_address = true;
    let Decision::Run(Step::Exchange(steps)) = stop(&services) else {
        panic!("{:?}", stop(&services));
    };
    assert_eq!(steps, [("shop/b".to_owned(), exchange::Step::Own(Side::Old))]);
}

#[rstest]
#[case::forward(Side::New, Stage::ControlPlane)]
#[case::rollback(Side::Old, Stage::Exchange)]
fn forward_no_service_moves_before_all_api_servers_have_the_flag(#[case] goal: Side, #[case] stage: Stage) {
    let services = [service("default/kubernetes", Turn::Kubernetes, SWAP)];
    let next = with(&services, |view, _| {
        view.goal = goal;
        view.api_servers = Some(missing("the flag"));
    });
    assert_eq!(next.stage, stage, "{next:?}");
    // Once started, the exchange continues, even if an API server restarts with the old flag.
    let services = [
        service("default/kubernetes", Turn::Kubernetes, Decision::Settled),
        service("shop/a", Turn::Other, SWAP),
    ];
    let next = with(&services, |view, _| view.api_servers = Some(missing("the flag")));
    assert_eq!(next.stage, Stage::Exchange, "{next:?}");
    // The default range is not deleted while that API server would create it again.
    let services = [service("default/kubernetes", Turn::Kubernetes, Decision::Settled)];
    let next = with(&services, |view, _| view.api_servers = Some(missing("the flag")));
    assert_eq!(next.decision, Decision::Wait(missing("the flag")));
}

#[test]
fn a_load_balancer_keeps_its_address_by_a_cover_that_finally_assigns_none() {
    let services = [service("default/kubernetes", Turn::Kubernetes, Decision::Settled)];
    let kept: [IpAddr; 1] = ["10.96.3.9".parse().unwrap()];
    let cover = "replumb-keep-10-96-3-8-30";
    let mut ranges = vec![
        range(DEFAULT, "10.96.0.0/16", true),
        range("replumb-new", "172.30.0.0/16", false),
    ];
    let decided = decide_on(&services, &kept, &ranges);
    let wanted = vec!["10.96.3.8/30".parse().unwrap()];
    assert_eq!(
        decided,
        Decision::Run(Step::CreateRange(cover.to_owned(), wanted))
    );
    ranges.push(range(cover, "10.96.3.8/30", false));
    assert!(
        matches!(decide_on(&services, &kept, &ranges), Decision::Wait(wait) if wait.message.contains("being deleted"))
    );
    // The default range is deleted, and an API server creates it again.
    ranges[0] = range(DEFAULT, "172.30.0.0/16", false);
    let Decision::Run(Step::DeleteRange(first)) = decide_on(&services, &kept, &ranges) else {
        panic!("{:?}", decide_on(&services, &kept, &ranges));
    };
    for range in ranges.iter_mut().filter(|range| range.name != DEFAULT) {
        (range.ready, range.terminating) = (false, true);
    }
    assert!([cover, "replumb-new"].contains(&first.as_str()));
    ranges.retain(|range| range.name != "replumb-new");
    assert_eq!(
        decide_on(&services, &kept, &ranges),
        Decision::Run(Step::Complete),
        "the cover stays for its address"
    );
}

/// The decision once no source address is in use.
fn decide_on(services: &[ServiceView], kept: &[IpAddr], ranges: &[ServiceCidr]) -> Decision<Step> {
    decide_holding(services, kept, kept, ranges)
}

/// The same while Services have these addresses.
fn decide_holding(
    services: &[ServiceView],
    kept: &[IpAddr],
    addresses: &[IpAddr],
    ranges: &[ServiceCidr],
) -> Decision<Step> {
    let (settings, kept) = (settings(), Kept::of(kept.to_vec()));
    let view = View {
        goal: Side::New,
        settings: &settings,
        ranges,
        api_servers: None,
        services,
        without_address: &[],
        kept: &kept,
        addresses,
        follow_up: None,
        pods_with_old_addresses: None,
        soak: None,
    };
    let policy = Policy {
        services_at_once: 1,
        hold: None,
    };
    decide(&view, &policy).decision
}

#[test]
fn services_without_endpoints_use_no_slot_of_others() {
    let crowd = (0..1000).map(|number| ServiceView {
        is_served: false,
        ..service(
            &format!("crowd/{number}"),
            Turn::Other,
            Decision::Run(exchange::Step::Move),
        )
    });
    let shop = ["shop/a", "shop/b", "shop/c"].map(|name| service(name, Turn::Other, MAKE));
    let services: Vec<ServiceView> = crowd.chain(shop).collect();
    let written = written(&services);
    assert_eq!(written.len(), LIGHT_AT_ONCE + 2);
    assert_eq!(written[LIGHT_AT_ONCE..], ["shop/a", "shop/b"], "two at once");
}

#[test]
fn late_services_are_limited_until_the_others_have_moved() {
    let crowd = (0..1000).map(|number| ServiceView {
        is_served: false,
        is_late: true,
        ..service(
            &format!("crowd/{number}"),
            Turn::Other,
            Decision::Run(exchange::Step::Move),
        )
    });
    let services: Vec<ServiceView> = crowd.chain([service("shop/a", Turn::Other, MAKE)]).collect();
    assert_eq!(
        written(&services),
        ["crowd/0", "crowd/1", "shop/a"],
        "two at once"
    );
}

/// The source addresses of the other Services are released sooner in this way. Late Services continue in parallel, or wait.
#[rstest]
#[case::late_ones_continue(Some(Decision::Run(exchange::Step::Move)), 2)]
#[case::late_ones_wait(Some(Decision::Wait(missing("endpoints"))), 0)]
fn uses_of_source_addresses_are_replaced_before_late_services_arrive(
    #[case] decision: Option<Decision<exchange::Step>>,
    #[case] beside: usize,
) {
    static CLOSED: LazyLock<Vec<ServiceCidr>> = LazyLock::new(|| {
        vec![
            range(DEFAULT, "10.96.0.0/16", true),
            range("replumb-new", "172.30.0.0/16", false),
        ]
    });
    let pod = PodName {
        namespace: "shop".to_owned(),
        name: "a-1".to_owned(),
        uid: "1".to_owned(),
    };
    let crowd = (0..1000).map(|number| ServiceView {
        decision: decision.clone(),
        ..late(&format!("crowd/{number}"), SWAP)
    });
    let there = service("shop/a", Turn::Other, Decision::Settled);
    let services: Vec<ServiceView> = crowd.chain([there]).collect();
    let pods = || Missing::Evict(vec![pod.clone()]);
    let next = |follow_up: Option<Wait>, with_old_addresses: Option<Missing>, is_open: bool| {
        with(&services, |view, _| {
            if !is_open {
                view.ranges = &CLOSED;
            }
            (view.follow_up, view.pods_with_old_addresses) = (follow_up, with_old_addresses);
        })
    };
    let found = next(Some(missing("people")), Some(pods()), false);
    assert_eq!(found.decision, Decision::Wait(missing("people")));
    assert_eq!(
        (found.stage, found.helper_updates.len()),
        (Stage::FollowUp, beside)
    );
    let found = next(None, Some(pods()), false);
    assert_eq!(found.decision, Decision::Run(Step::Evict(vec![pod.clone()])));
    assert_eq!(
        (found.stage, found.helper_updates.len()),
        (Stage::Restart, beside)
    );
    // No source address is released before the last Service has moved, and more Services may come before the range is closed.
    assert_eq!(next(None, None, false).stage, Stage::Close);
    assert_eq!(next(None, Some(pods()), true).stage, Stage::Close);
}

#[test]
fn the_removal_of_helpers_uses_no_slot_of_others() {
    let mut done = service(
        "shop/a",
        Turn::Other,
        Decision::Run(exchange::Step::Remove(Role::Address(Side::Old))),
    );
    done.has_target_address = true;
    let going = [
        done,
        service("shop/b", Turn::Other, SWAP),
        service("shop/c", Turn::Other, SWAP),
    ];
    assert_eq!(written(&going), ["shop/a", "shop/b", "shop/c"]);
}

#[test]
fn a_service_that_its_owner_keeps_editing_delays_no_stage() {
    let mut edited = service(
        "shop/a",
        Turn::Other,
        Decision::Run(exchange::Step::Refresh(Role::Address(Side::Old))),
    );
    edited.has_target_address = true;
    let services = [edited, service("shop/b", Turn::Other, Decision::Settled)];
    let next = with(&services, |_, _| {});
    assert_eq!(next.stage, Stage::Close, "{next:?}");
    let told = (
        "shop/a".to_owned(),
        exchange::Step::Refresh(Role::Address(Side::Old)),
    );
    assert_eq!(next.helper_updates, [told]);
    let paused = with(&services, |_, policy| policy.hold = Some(missing("paused")));
    assert_eq!(paused.helper_updates, []);
}

#[test]
fn unobserved_services_extend_the_exchange_and_delay_no_later_stage() {
    let unseen = |is_there| ServiceView {
        has_target_address: is_there,
        decision: None,
        ..service("shop/b", Turn::Other, Decision::Settled)
    };
    let there = service("shop/a", Turn::Other, Decision::Settled);
    let next = with(&[there.clone(), unseen(false)], |_, _| {});
    assert_eq!(
        (next.stage, next.decision),
        (Stage::Exchange, Decision::Run(Step::Exchange(Vec::new())))
    );
    let next = with(&[there.clone(), unseen(true)], |_, _| {});
    assert_eq!(next.stage, Stage::Close, "{next:?}");
    // Addresses are released once the last helper is removed.
    let next = with(&[there, unseen(true)], |view, _| view.soak = None);
    assert_eq!(
        (next.stage, next.decision),
        (Stage::Release, Decision::Run(Step::Exchange(Vec::new())))
    );
}

#[test]
fn a_foreign_holder_of_the_first_address_delays_only_kubernetes() {
    let services = [
        service("default/kubernetes", Turn::Kubernetes, halted()),
        service("kube-system/kube-dns", Turn::NameServer, Decision::Settled),
        service("shop/a", Turn::Other, MAKE),
    ];
    assert_eq!(written(&services), ["shop/a"]);
}
