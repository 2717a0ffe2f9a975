//! Which Services go together, who waits for whom, and what a load balancer keeps.

use crate::objects::BridgePolicy;
use std::net::IpAddr;
use std::sync::LazyLock;

use rstest::rstest;

use super::*;
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

/// Both ranges give addresses.
fn both() -> Vec<ServiceCidr> {
    vec![
        range(DEFAULT, "10.96.0.0/16", false),
        range("replumb-new", "172.30.0.0/16", false),
    ]
}

fn service(name: &str, turn: Turn, decision: Decision<swap::Step>) -> ServiceView {
    ServiceView {
        name: name.to_owned(),
        turn,
        is_there: decision == Decision::Settled,
        is_away: false,
        is_held_back: false,
        is_slow: false,
        is_late: false,
        uncovered: Vec::new(),
        is_served: true,
        decision: Some(decision),
    }
}

/// One that somebody wants back.
fn wanted_back(name: &str, turn: Turn, decision: Decision<swap::Step>) -> ServiceView {
    ServiceView {
        is_there: false,
        is_held_back: true,
        ..service(name, turn, decision)
    }
}

#[test]
fn who_is_wanted_back_goes_although_all_is_paused_and_nobody_else_does() {
    let services = [
        wanted_back("shop/web", Turn::Other, SWAP),
        service("shop/a", Turn::Other, SWAP),
    ];
    let paused = with(&services, |_, policy| policy.hold = Some(missing("paused")));
    let Decision::Run(Step::Exchange(steps)) = paused.decision else {
        panic!("{paused:?}");
    };
    assert_eq!(steps, [("shop/web".to_owned(), swap::Step::Swap)]);
    let goes_on = [
        wanted_back("shop/web", Turn::Other, Decision::Settled),
        services[1].clone(),
    ];
    assert_eq!(written(&goes_on), ["shop/a"], "the others go on");
}

#[test]
fn as_long_as_one_is_kept_nothing_is_given_up() {
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
        "who is kept holds up nobody's turn"
    );
}

fn missing(message: &str) -> Wait {
    waits(WaitReason::ConfigurationFollowUp, message.to_owned())
}

fn halted() -> Decision<swap::Step> {
    Decision::Halt(Halt {
        reason: HaltReason::Drift,
        message: "somebody has its address".to_owned(),
    })
}

const SWAP: Decision<swap::Step> = Decision::Run(swap::Step::Swap);
const MAKE: Decision<swap::Step> = Decision::Run(swap::Step::MakeHome(Side::New));

/// What is done about these, two at once.
fn with(services: &[ServiceView], change: impl FnOnce(&mut View<'_>, &mut Policy)) -> Next {
    let (settings, ranges, kept) = (settings(), both(), Kept::default());
    let mut view = View {
        goal: Side::New,
        settings: &settings,
        ranges: &ranges,
        api_servers: None,
        services,
        without_room: &[],
        kept: &kept,
        addresses: &[],
        follow_up: None,
        carriers: None,
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
            service.is_there = true;
        }
    }
}

/// One that came when the exchange had begun.
fn late(name: &str, decision: Decision<swap::Step>) -> ServiceView {
    ServiceView {
        is_late: true,
        ..service(name, Turn::Other, decision)
    }
}

#[test]
fn the_range_is_closed_although_owners_make_services_without_pause() {
    let mut services = vec![service("shop/a", Turn::Other, SWAP)];
    services.extend((0..1000).map(|number| late(&format!("crowd/{number}"), SWAP)));
    assert_eq!(
        written(&services).len(),
        2,
        "all go while the others are on their way"
    );
    services[0] = service("shop/a", Turn::Other, Decision::Settled);
    let next = with(&services, |_, _| {});
    assert_eq!(
        next.decision,
        Decision::Run(Step::DeleteRange(DEFAULT.to_owned()))
    );
    assert_eq!((next.stage, next.beside.len()), (Stage::Close, 2));
    // People change the API servers' flag first; those that came late do not wait for people.
    let next = with(&services, |view, _| view.api_servers = Some(missing("the flag")));
    assert!(matches!(next.decision, Decision::Wait(_)));
    assert_eq!((next.stage, next.beside.len()), (Stage::ControlPlane, 2));
    let paused = with(&services, |_, policy| policy.hold = Some(missing("paused")));
    assert!(matches!(paused.decision, Decision::Wait(_)) && paused.beside.is_empty());
}

#[test]
fn what_came_late_leaves_a_closed_range_by_a_cover_of_its_address() {
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
        "it is not Ready yet"
    );
    let exchange = Step::Exchange(vec![("crowd/1".to_owned(), swap::Step::Swap)]);
    assert_eq!(
        on(&late("crowd/1", SWAP), &closed, &held),
        Decision::Run(exchange)
    );
    let arrived = late("crowd/1", Decision::Settled);
    let gone = Step::DeleteRange(closed[2].name.clone());
    assert_eq!(
        on(&arrived, &closed, &held),
        Decision::Run(gone),
        "it gives out addresses"
    );
    assert!(
        matches!(on(&arrived, &closed, &held[..1]), Decision::Wait(_)),
        "both would go, and the address were held by none"
    );
}

#[test]
fn whoever_has_no_room_waits_alone_and_the_range_is_not_left() {
    static FLOOD: LazyLock<Vec<String>> = LazyLock::new(|| {
        (0..20_000)
            .map(|number| format!("tenant/flood-{number}"))
            .collect()
    });
    let flood = |view: &mut View<'_>| view.without_room = &FLOOD;
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
        panic!("the range is left: {:?}", next.decision);
    };
    assert_eq!(found.reason, WaitReason::ServiceRanges);
    let start = "172.30.0.0/16 has no room for 20000 Services, the first: tenant/flood-0, ";
    assert!(found.message.starts_with(start), "{}", found.message);
    assert!(found.message.len() < 1000);
}

#[test]
fn whoever_is_ready_does_not_wait_for_others() {
    let mut services = vec![
        service("shop/a", Turn::Other, SWAP),
        service("shop/b", Turn::Other, Decision::Wait(missing("endpoints"))),
        service("shop/c", Turn::Other, MAKE),
    ];
    assert_eq!(written(&services), ["shop/a"], "two at once are on the way");
    services[0] = service("shop/a", Turn::Other, Decision::Settled);
    assert_eq!(written(&services), ["shop/c"]);
    services[2].decision = Some(Decision::Wait(missing("rules")));
    let next = with(&services, |_, _| {});
    assert_eq!(next.decision, Decision::Wait(missing("endpoints")));
}

#[test]
fn a_service_that_cannot_go_on_is_named_and_keeps_no_other_from_it() {
    let mut services = vec![
        service("shop/a", Turn::Other, halted()),
        service("shop/b", Turn::Other, MAKE),
        service("shop/c", Turn::Other, Decision::Run(swap::Step::Finish)),
    ];
    services[2].is_away = true;
    assert_eq!(written(&services), ["shop/c", "shop/b"]);
    let next = with(&services, |_, _| {});
    let words = "1 Service cannot go on: somebody has its address";
    assert_eq!(next.aside.unwrap().message, words);
    // Once it alone is left, it is what the migration halts for.
    for service in &mut services[1..] {
        (service.is_there, service.is_away) = (true, false);
        service.decision = Some(Decision::Settled);
    }
    let next = with(&services, |_, _| {});
    let Decision::Halt(halt) = &next.decision else {
        panic!("{next:?}");
    };
    assert_eq!((halt.message.as_str(), next.aside), (words, None));
    services[1] = service("shop/b", Turn::Other, halted());
    let Decision::Halt(halt) = with(&services, |_, _| {}).decision else {
        panic!("both are left");
    };
    assert_eq!(
        halt.message,
        "2 Services cannot go on; the first: somebody has its address"
    );
}

#[test]
fn services_that_wait_for_long_leave_their_places_to_others_and_go_on_when_they_can() {
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
    assert_eq!(written(&services), ["shop/c", "shop/d"], "two places");
}

#[test]
fn whoever_stopped_it_does_not_leave_a_service_without_an_address() {
    let mut services = vec![
        service("shop/a", Turn::Other, SWAP),
        service("shop/b", Turn::Other, Decision::Run(swap::Step::Own(Side::Old))),
    ];
    let stop = |view: &[ServiceView]| with(view, |_, policy| policy.hold = Some(missing("paused"))).decision;
    assert_eq!(stop(&services), Decision::Wait(missing("paused")));
    services[1].is_away = true;
    let Decision::Run(Step::Exchange(steps)) = stop(&services) else {
        panic!("{:?}", stop(&services));
    };
    assert_eq!(steps, [("shop/b".to_owned(), swap::Step::Own(Side::Old))]);
}

#[rstest]
#[case::there(Side::New, Stage::ControlPlane)]
#[case::back(Side::Old, Stage::Exchange)]
fn api_servers_have_the_flag_before_anybody_moves_there(#[case] goal: Side, #[case] stage: Stage) {
    let services = [service("default/kubernetes", Turn::Kubernetes, SWAP)];
    let next = with(&services, |view, _| {
        view.goal = goal;
        view.api_servers = Some(missing("the flag"));
    });
    assert_eq!(next.stage, stage, "{next:?}");
    // Whoever has begun goes on: an API server that was started again with the old flag changes nothing of that.
    let services = [
        service("default/kubernetes", Turn::Kubernetes, Decision::Settled),
        service("shop/a", Turn::Other, SWAP),
    ];
    let next = with(&services, |view, _| view.api_servers = Some(missing("the flag")));
    assert_eq!(next.stage, Stage::Exchange, "{next:?}");
    // But nothing is deleted that it would make again.
    let services = [service("default/kubernetes", Turn::Kubernetes, Decision::Settled)];
    let next = with(&services, |view, _| view.api_servers = Some(missing("the flag")));
    assert_eq!(next.decision, Decision::Wait(missing("the flag")));
}

#[test]
fn a_load_balancer_keeps_its_address_by_a_cover_that_gives_out_nothing_in_the_end() {
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
    // The default range goes, and an API server makes it again.
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
        "it holds what it has"
    );
}

/// What is done once nobody uses an address that is left.
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
        without_room: &[],
        kept: &kept,
        addresses,
        follow_up: None,
        carriers: None,
        soak: None,
    };
    let policy = Policy {
        services_at_once: 1,
        hold: None,
    };
    decide(&view, &policy).decision
}

#[test]
fn a_crowd_without_endpoints_takes_no_place_of_others() {
    let crowd = (0..1000).map(|number| ServiceView {
        is_served: false,
        ..service(
            &format!("crowd/{number}"),
            Turn::Other,
            Decision::Run(swap::Step::Move),
        )
    });
    let shop = ["shop/a", "shop/b", "shop/c"].map(|name| service(name, Turn::Other, MAKE));
    let services: Vec<ServiceView> = crowd.chain(shop).collect();
    let written = written(&services);
    assert_eq!(written.len(), LIGHT_AT_ONCE + 2);
    assert_eq!(written[LIGHT_AT_ONCE..], ["shop/a", "shop/b"], "two at once");
}

#[test]
fn a_crowd_of_latecomers_goes_slowly_until_the_others_have_gone() {
    let crowd = (0..1000).map(|number| ServiceView {
        is_served: false,
        is_late: true,
        ..service(
            &format!("crowd/{number}"),
            Turn::Other,
            Decision::Run(swap::Step::Move),
        )
    });
    let services: Vec<ServiceView> = crowd.chain([service("shop/a", Turn::Other, MAKE)]).collect();
    assert_eq!(
        written(&services),
        ["crowd/0", "crowd/1", "shop/a"],
        "two at once"
    );
}

/// The addresses that the others have left are given up sooner so. The latecomers go beside, or wait.
#[rstest]
#[case::they_go(Some(Decision::Run(swap::Step::Move)), 2)]
#[case::they_wait(Some(Decision::Wait(missing("endpoints"))), 0)]
fn the_users_of_an_address_that_is_left_do_not_wait_for_latecomers(
    #[case] decision: Option<Decision<swap::Step>>,
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
    let next = |follow_up: Option<Wait>, carriers: Option<Missing>, is_open: bool| {
        with(&services, |view, _| {
            if !is_open {
                view.ranges = &CLOSED;
            }
            (view.follow_up, view.carriers) = (follow_up, carriers);
        })
    };
    let found = next(Some(missing("people")), Some(pods()), false);
    assert_eq!(found.decision, Decision::Wait(missing("people")));
    assert_eq!((found.stage, found.beside.len()), (Stage::FollowUp, beside));
    let found = next(None, Some(pods()), false);
    assert_eq!(found.decision, Decision::Run(Step::Evict(vec![pod.clone()])));
    assert_eq!((found.stage, found.beside.len()), (Stage::Restart, beside));
    // No address that is left goes before the last Service has left it; and more may come before the range is closed.
    assert_eq!(next(None, None, false).stage, Stage::Close);
    assert_eq!(next(None, Some(pods()), true).stage, Stage::Close);
}

#[test]
fn helpers_that_go_take_no_place_of_others() {
    let mut done = service(
        "shop/a",
        Turn::Other,
        Decision::Run(swap::Step::Remove(Role::Address(Side::Old))),
    );
    done.is_there = true;
    let going = [
        done,
        service("shop/b", Turn::Other, SWAP),
        service("shop/c", Turn::Other, SWAP),
    ];
    assert_eq!(written(&going), ["shop/a", "shop/b", "shop/c"]);
}

#[test]
fn an_owner_who_edits_a_service_for_ever_keeps_no_stage_from_ending() {
    let mut edited = service(
        "shop/a",
        Turn::Other,
        Decision::Run(swap::Step::Refresh(Role::Address(Side::Old))),
    );
    edited.is_there = true;
    let services = [edited, service("shop/b", Turn::Other, Decision::Settled)];
    let next = with(&services, |_, _| {});
    assert_eq!(next.stage, Stage::Close, "{next:?}");
    let told = ("shop/a".to_owned(), swap::Step::Refresh(Role::Address(Side::Old)));
    assert_eq!(next.beside, [told]);
    let paused = with(&services, |_, policy| policy.hold = Some(missing("paused")));
    assert_eq!(paused.beside, []);
}

#[test]
fn what_was_not_looked_at_keeps_the_exchange_going_and_no_later_stage_from_beginning() {
    let unseen = |is_there| ServiceView {
        is_there,
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
    // Addresses are given up once the last helper is gone.
    let next = with(&[there, unseen(true)], |view, _| view.soak = None);
    assert_eq!(
        (next.stage, next.decision),
        (Stage::Release, Decision::Run(Step::Exchange(Vec::new())))
    );
}

#[test]
fn a_stranger_who_has_the_first_address_keeps_only_kubernetes_waiting() {
    let services = [
        service("default/kubernetes", Turn::Kubernetes, halted()),
        service("kube-system/kube-dns", Turn::NameServer, Decision::Settled),
        service("shop/a", Turn::Other, MAKE),
    ];
    assert_eq!(written(&services), ["shop/a"]);
}
