//! The dead man's switch on a real host: the new network does not come up, or nobody can be asked, and the old one is back.

use std::time::{Duration, Instant};

use agent::kinds::flannel_to_calico::journal::Journal;
use axum::http::StatusCode;
use flannel_to_calico::phase::Goal;
use jiff::Timestamp;
use rstest::rstest;
use serde_json::{Value, json};

use crate::host::{CALICO_CONFLIST, Host, in_namespace, run};
use crate::in_place::record;
use crate::turn::{Server, beside, object, start, start_unreached};

/// How long the played coordinator lets a step take.
const SECONDS: u64 = 3;
/// The old network has to be back within this time after that; a busy machine is slow.
const BACK_WITHIN: Duration = Duration::from_secs(15);

fn patient(mut object: Value, from: &str) -> Value {
    object["spec"]["step"] = json!({
        "name": "Swap", "since": from, "message": "", "halted": false,
        "patience": { "seconds": SECONDS, "from": from },
    });
    object
}

async fn until_back(host: &Host, since: Instant) {
    while !host.is_back() {
        assert!(
            since.elapsed() < Duration::from_secs(SECONDS) + BACK_WITHIN,
            "the old network is not back: {}",
            run("ip link")
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Leads a host that begins with flannel's network to where neither network takes new pods.
async fn to_swapped(server: &mut Server) {
    server.phase("Flannel").await;
    server.set_goal(Goal::Swapped);
    server.phase("Swapped").await;
}

/// The API server answers so whatever it is told, until this ends.
async fn answering(server: &mut Server, answer: StatusCode, until: impl Future<Output = ()>) {
    let answers = async {
        loop {
            server.patch(answer).await;
        }
    };
    tokio::select! {
        () = until => {}
        () = answers => {}
    }
}

fn flannel_host() -> Host {
    let host = Host::new();
    record(&host, &json!([{ "type": "bridge" }]));
    host
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_new_network_that_does_not_come_up_gives_way_to_the_old_one() {
    in_namespace(|| async {
        let host = flannel_host();
        // A pod whose other end is down is seen as such only after a moment.
        let all_routes = || run("ip route").replace(" linkdown", "");
        let routes = all_routes();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            to_swapped(&mut server).await;
            let began = Instant::now();
            // calico-node never starts, and the coordinator says nothing more.
            server.phase("Flannel").await;
            assert!(began.elapsed() >= Duration::from_secs(SECONDS - 1), "too early");
            assert!(host.is_back());
            let status = &server.object["status"];
            let why = status["fellBack"].as_str().unwrap();
            assert!(why.contains("Swapped") && why.contains("new pods"), "{why}");
            // calico-node may still start: what the pods need then stays until the coordinator has taken notice.
            let kept: Vec<&str> = status["changes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|line| line.as_str().unwrap().split(' ').next().unwrap())
                .collect();
            assert_eq!(kept, ["UnrouteLegacyPods", "StopAnsweringForPods"]);
            assert!(run("ip route show proto 82").contains("10.244.1.2"));
            server.set_goal(Goal::Flannel);
            while server.object["status"]["fellBack"].is_string()
                || server.object["status"]["changes"].is_array()
            {
                server.patch(StatusCode::OK).await;
            }
            assert_eq!(all_routes(), routes);
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn without_an_api_server_the_old_network_is_back_and_it_is_told_when_it_can_be() {
    in_namespace(|| async {
        let host = flannel_host();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            to_swapped(&mut server).await;
            let since = Instant::now();
            let back = until_back(&host, since);
            answering(&mut server, StatusCode::INTERNAL_SERVER_ERROR, back).await;
            server.phase("Flannel").await;
            assert!(server.object["status"]["fellBack"].is_string());
        })
        .await;
    });
}

/// Waits until the old network is back, while the API server takes what it is told.
async fn until_back_told(server: &mut Server, host: &Host, since: Instant) {
    answering(server, StatusCode::OK, until_back(host, since)).await;
}

/// Something that a person, or a tool of theirs, does to the host.
type Deed = fn(&Host);

/// What concerns the switch in nothing keeps it from nothing.
#[rstest]
#[case::a_file_that_is_too_large(|host: &Host| {
    let file = std::fs::File::create(host.paths.cni_configuration.join("05-large.conflist")).unwrap();
    file.set_len(3 << 20).unwrap();
})]
#[case::a_large_file_of_another_name(|host: &Host| {
    let file = std::fs::File::create(host.paths.cni_configuration.join("backup.tar")).unwrap();
    file.set_len(64 << 20).unwrap();
})]
#[case::a_link_to_itself(|host: &Host| {
    for folder in [&host.paths.cni_configuration, &host.paths.cni_state.join("results")] {
        std::os::unix::fs::symlink("cbr0-loop.conflist", folder.join("cbr0-loop.conflist")).unwrap();
    }
})]
#[case::a_parameter_out_of_its_range(|_: &Host| {
    run("sysctl -qw net.ipv4.conf.eth0.rp_filter=300");
})]
#[ignore = "needs root and network namespaces"]
fn the_old_network_is_back_whatever_lies_beside(#[case] deed: Deed) {
    in_namespace(move || async move {
        let host = flannel_host();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            to_swapped(&mut server).await;
            let began = Instant::now();
            deed(&host);
            until_back_told(&mut server, &host, began).await;
        })
        .await;
    });
}

/// A person deletes the NodeMigration, and what is made in its place does not say yet what is wanted; or it is of another kind.
#[rstest]
#[case::without_settings(|spec: &mut Value| {
    spec["flannelToCalico"] = Value::Null;
})]
#[case::with_settings(|_: &mut Value| {})]
#[case::of_another_kind(|spec: &mut Value| {
    spec["flannelToCalico"] = Value::Null;
    spec["podCidr"] = json!({ "from": "10.244.0.0/16", "to": "10.200.0.0/16", "tunnelEnds": [] });
})]
#[ignore = "needs root and network namespaces"]
fn an_object_that_is_made_anew_does_not_end_what_is_under_way(
    #[case] change: fn(&mut Value),
    #[values(true, false)] is_back_already: bool,
) {
    in_namespace(move || async move {
        let host = flannel_host();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            to_swapped(&mut server).await;
            let began = Instant::now();
            if is_back_already {
                until_back_told(&mut server, &host, began).await;
            }
            server.object["spec"]["step"] = Value::Null;
            server.object["spec"]["goal"] = json!("Hold");
            change(&mut server.object["spec"]);
            server.bump();
            server.announce();
            until_back_told(&mut server, &host, began).await;
            let stay = tokio::time::sleep(Duration::from_secs(2));
            answering(&mut server, StatusCode::OK, stay).await;
        })
        .await;
        let journal = Journal::open(&host.state()).unwrap();
        assert!(
            journal.fell_back().is_some(),
            "the coordinator has not taken notice"
        );
    });
}

/// A tool that keeps parameters as they were is no progress of the migration.
#[test]
#[ignore = "needs root and network namespaces"]
fn what_is_undone_again_and_again_is_no_progress() {
    in_namespace(|| async {
        let host = flannel_host();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            to_swapped(&mut server).await;
            let began = Instant::now();
            let undone = async {
                while !host.is_back() {
                    run("sysctl -qw net.ipv4.conf.cni0.proxy_arp=0");
                    // What wakes the agent: the parameter itself does not announce itself.
                    std::fs::write(host.paths.cni_configuration.join("note"), "").unwrap();
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            };
            tokio::join!(undone, until_back_told(&mut server, &host, began));
        })
        .await;
    });
}

/// Calico's installer has written its conflist and calico-node runs when the coordinator falls silent: new pods have a network.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_host_that_calico_serves_is_left_alone() {
    in_namespace(|| async {
        let host = flannel_host();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            to_swapped(&mut server).await;
            let program = host.folder.path().join("calico-node");
            std::fs::copy("/bin/sleep", &program).unwrap();
            let node = crate::path::Process::start(&[&program.display().to_string(), "600"]);
            let conflist = host.paths.cni_configuration.join("10-calico.conflist");
            std::fs::write(&conflist, CALICO_CONFLIST).unwrap();
            // What Felix writes once it has read everything.
            run("ip route add blackhole 10.244.1.0/26 proto 80");
            let stay = tokio::time::sleep(Duration::from_secs(3 * SECONDS));
            answering(&mut server, StatusCode::OK, stay).await;
            assert!(conflist.exists() && !host.is_back(), "{}", run("ip link"));
            // Once it serves no more, the host goes back.
            drop(node);
            until_back_told(&mut server, &host, Instant::now()).await;
        })
        .await;
    });
}

/// An agent that is killed every second, by its memory limit or a probe of its health, is one that goes back.
#[test]
#[ignore = "needs root and network namespaces"]
fn lives_that_are_too_short_do_not_put_it_off() {
    in_namespace(|| async {
        let host = flannel_host();
        let told = patient(object(&host), "2026-01-01T00:00:00Z");
        let (mut server, agent) = start(&host, told.clone());
        beside(agent, async {
            to_swapped(&mut server).await;
        })
        .await;
        let began = Instant::now();
        while !host.is_back() {
            assert!(
                began.elapsed() < Duration::from_secs(SECONDS) + BACK_WITHIN,
                "the old network is not back: {}",
                run("ip link")
            );
            let (server, agent) = start_unreached(&host, told.clone());
            // Shorter than half of its patience.
            beside(agent, tokio::time::sleep(Duration::from_secs(1))).await;
            drop(server);
        }
    });
}

/// The agent and the API server die together, in the middle of a node.
#[test]
#[ignore = "needs root and network namespaces"]
fn an_agent_that_is_started_anew_without_an_api_server_knows_what_it_was_told() {
    in_namespace(|| async {
        let host = flannel_host();
        let told = patient(object(&host), "2026-01-01T00:00:00Z");
        let (mut server, agent) = start(&host, told.clone());
        beside(agent, async {
            to_swapped(&mut server).await;
        })
        .await;
        let (server, agent) = start_unreached(&host, told);
        beside(agent, async {
            // Nothing is gone on with, and there is time to hear of something new.
            let began = Instant::now();
            until_back(&host, began).await;
            assert!(
                began.elapsed() >= Duration::from_millis(SECONDS * 500 - 500),
                "too early"
            );
        })
        .await;
        drop(server);
        let journal = Journal::open(&host.state()).unwrap();
        assert!(journal.fell_back().is_some());
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn another_word_of_the_coordinators_is_a_new_beginning() {
    in_namespace(|| async {
        let host = flannel_host();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            to_swapped(&mut server).await;
            let began = Instant::now();
            let stay = Duration::from_secs(2 * SECONDS);
            while began.elapsed() < stay {
                server.object = patient(server.object.clone(), &Timestamp::now().to_string());
                server.set_goal(Goal::Swapped);
                server.patch(StatusCode::OK).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            assert!(run("ip link").contains("vxlan.calico"), "it gave up too early");
        })
        .await;
    });
}

/// A process that cannot be read, as one in uninterruptible sleep: opening a pipe that nothing is written into does not end.
struct Hangs(crate::path::Process, std::path::PathBuf);

impl Hangs {
    fn start(host: &Host) -> Self {
        let process = crate::path::Process::start(&["sleep", "600"]);
        let pipe = host.folder.path().join(format!("pipe-{}", process.id()));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Between fork and exec it has its parent's name.
        let folder = format!("/proc/{}", process.id());
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::read_to_string(format!("{folder}/comm")).unwrap() != "sleep\n" {
            assert!(Instant::now() < deadline, "it does not start");
            std::thread::yield_now();
        }
        run(&format!("mount --bind {} {folder}/cmdline", pipe.display()));
        Self(process, pipe)
    }

    fn sentence(&self) -> String {
        format!("could not read process {} (sleep) within 2 s", self.0.id())
    }
}

impl Drop for Hangs {
    fn drop(&mut self) {
        // Lets the thread that reads go.
        use std::os::unix::fs::OpenOptionsExt as _;
        let _ = std::fs::OpenOptions::new()
            .write(true)
            .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
            .open(&self.1);
    }
}

/// Whatever the main thread does (listeners, probes, the API), the host goes back in time.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_main_thread_that_stands_still_does_not_hold_up_the_switch() {
    in_namespace(|| async {
        let host = flannel_host();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            to_swapped(&mut server).await;
            assert!(!host.is_back());
            let began = Instant::now();
            // No await: nothing else of this thread runs.
            while !host.is_back() {
                assert!(
                    began.elapsed() < Duration::from_secs(SECONDS) + BACK_WITHIN,
                    "the old network is not back: {}",
                    run("ip link")
                );
                std::thread::sleep(Duration::from_millis(50));
            }
            assert!(began.elapsed() >= Duration::from_secs(SECONDS - 1), "too early");
            server.phase("Flannel").await;
            assert!(server.object["status"]["fellBack"].is_string());
        })
        .await;
    });
}

/// It is named, what needs flanneld to be gone waits, and the way back does not.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_process_that_cannot_be_read_is_named_and_does_not_hold_up_the_switch() {
    in_namespace(|| async {
        let host = flannel_host();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            server.phase("Flannel").await;
            let hangs = Hangs::start(&host);
            let began = Instant::now();
            server.set_goal(Goal::Held);
            while !server.object["status"]["message"]
                .as_str()
                .is_some_and(|message| message.starts_with(&hangs.sentence()))
            {
                server.patch(StatusCode::OK).await;
            }
            assert!(began.elapsed() < Duration::from_secs(10), "named within 10 s");
            assert_eq!(server.object["status"]["phase"], "Flannel");
            assert!(
                host.paths.subnet_environment().exists(),
                "no step without knowing"
            );
            assert_eq!(
                server.object["status"]["facts"]["unreadProcesses"],
                json!([hangs.sentence()])
            );
            // Once it ends, the node goes on.
            drop(hangs);
            server.phase("Held").await;
            server.set_goal(Goal::Swapped);
            server.phase("Swapped").await;
            let hangs = Hangs::start(&host);
            server.phase("Flannel").await;
            assert!(host.is_back());
            let named = &server.object["status"]["facts"]["unreadProcesses"];
            assert_eq!(*named, json!([hangs.sentence()]));
        })
        .await;
    });
}
