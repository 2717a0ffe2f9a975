//! The dead man's switch on a real host: if the new network does not start or the API server is unreachable, the old one is
//! restored.

use std::time::{Duration, Instant};

use agent::kinds::flannel_to_calico::journal::Journal;
use axum::http::StatusCode;
use flannel_to_calico::phase::Goal;
use jiff::Timestamp;
use rstest::rstest;
use serde_json::{Value, json};

use crate::host::{CALICO_CONFLIST, Host, in_namespace, run};
use crate::in_place::record;
use crate::turn::{Server, beside, object, start, start_without_api_server};

/// Time limit of the fake coordinator.
const SECONDS: u64 = 3;
/// Longest time until the rollback after the time limit has passed, sufficient for a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(15);

fn patient(mut object: Value, from: &str) -> Value {
    object["spec"]["step"] = json!({
        "name": "Swap", "since": from, "message": "", "halted": false,
        "timeLimit": { "seconds": SECONDS, "from": from },
    });
    object
}

async fn until_back(host: &Host, since: Instant) {
    while !host.is_rolled_back() {
        assert!(
            since.elapsed() < Duration::from_secs(SECONDS) + BACK_WITHIN,
            "the old network is not restored: {}",
            run("ip link")
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Moves a host on flannel to phase Swapped, where neither network serves new pods.
async fn to_swapped(server: &mut Server) {
    server.phase("Flannel").await;
    server.set_goal(Goal::Swapped);
    server.phase("Swapped").await;
}

/// The API server gives this answer to every request until the future ends.
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
fn a_new_network_that_does_not_start_is_rolled_back() {
    in_namespace(|| async {
        let host = flannel_host();
        // The kernel reports a link as down only after a moment.
        let all_routes = || run("ip route").replace(" linkdown", "");
        let routes = all_routes();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            to_swapped(&mut server).await;
            let began = Instant::now();
            // calico-node never starts, and the coordinator writes nothing more.
            server.phase("Flannel").await;
            assert!(began.elapsed() >= Duration::from_secs(SECONDS - 1), "too early");
            assert!(host.is_rolled_back());
            let status = &server.object["status"];
            let why = status["flannelToCalico"]["automaticRollback"].as_str().unwrap();
            assert!(why.contains("Swapped") && why.contains("new pods"), "{why}");
            // calico-node may still start: the changes that pods need then are kept until the coordinator knows.
            let kept: Vec<&str> = status["flannelToCalico"]["changes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|line| line.as_str().unwrap().split(' ').next().unwrap())
                .collect();
            assert_eq!(kept, ["UnrouteLegacyPods", "StopAnsweringForPods"]);
            assert!(run("ip route show proto 82").contains("10.244.1.2"));
            server.set_goal(Goal::Flannel);
            while server.object["status"]["flannelToCalico"]["automaticRollback"].is_string()
                || server.object["status"]["flannelToCalico"]["changes"].is_array()
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
fn without_an_api_server_the_host_is_rolled_back_and_reports_later() {
    in_namespace(|| async {
        let host = flannel_host();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            to_swapped(&mut server).await;
            let since = Instant::now();
            let back = until_back(&host, since);
            answering(&mut server, StatusCode::INTERNAL_SERVER_ERROR, back).await;
            server.phase("Flannel").await;
            assert!(server.object["status"]["flannelToCalico"]["automaticRollback"].is_string());
        })
        .await;
    });
}

/// Waits until the old network is restored, while the API server accepts every patch.
async fn until_back_told(server: &mut Server, host: &Host, since: Instant) {
    answering(server, StatusCode::OK, until_back(host, since)).await;
}

/// A change of the host by a user or another program.
type Disturbance = fn(&Host);

/// Unrelated problems of the host do not prevent the rollback.
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
fn unrelated_problems_do_not_prevent_the_rollback(#[case] disturb: Disturbance) {
    in_namespace(move || async move {
        let host = flannel_host();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            to_swapped(&mut server).await;
            let began = Instant::now();
            disturb(&host);
            until_back_told(&mut server, &host, began).await;
        })
        .await;
    });
}

/// A user deletes the NodeMigration, and the recreated one has no goal yet, or is of another kind.
#[rstest]
#[case::without_settings(|spec: &mut Value| {
    spec["flannelToCalico"] = Value::Null;
})]
#[case::with_settings(|_: &mut Value| {})]
#[case::of_another_kind(|spec: &mut Value| {
    spec["flannelToCalico"] = Value::Null;
    spec["podCidr"] = json!({ "from": "10.244.0.0/16", "to": "10.200.0.0/16", "tunnelAddresses": [] });
})]
#[ignore = "needs root and network namespaces"]
fn a_recreated_object_does_not_end_a_rollback(
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
            server.object["spec"]["flannelToCalico"]["goal"] = json!("Hold");
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
            journal.automatic_rollback().is_some(),
            "the coordinator does not know about the rollback"
        );
    });
}

/// Another program reverts a parameter repeatedly.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_reverted_step_is_no_progress() {
    in_namespace(|| async {
        let host = flannel_host();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            to_swapped(&mut server).await;
            let began = Instant::now();
            let revert = async {
                while !host.is_rolled_back() {
                    run("sysctl -qw net.ipv4.conf.cni0.proxy_arp=0");
                    // Notifies the agent: a change of the parameter causes no event.
                    std::fs::write(host.paths.cni_configuration.join("note"), "").unwrap();
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            };
            tokio::join!(revert, until_back_told(&mut server, &host, began));
        })
        .await;
    });
}

/// Calico's conflist is installed and calico-node runs when the coordinator stops writing: new pods have a network.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_host_served_by_calico_is_not_rolled_back() {
    in_namespace(|| async {
        let host = flannel_host();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            to_swapped(&mut server).await;
            let program = host.folder.path().join("calico-node");
            run(&format!("cp /bin/sleep {}", program.display()));
            let node = crate::path::Process::start(&[&program.display().to_string(), "600"]);
            let conflist = host.paths.cni_configuration.join("10-calico.conflist");
            std::fs::write(&conflist, CALICO_CONFLIST).unwrap();
            // Felix writes this route once it has read all its input.
            run("ip route add blackhole 10.244.1.0/26 proto 80");
            let stay = tokio::time::sleep(Duration::from_secs(3 * SECONDS));
            answering(&mut server, StatusCode::OK, stay).await;
            assert!(conflist.exists() && !host.is_rolled_back(), "{}", run("ip link"));
            // Once calico-node has ended, the host is rolled back.
            drop(node);
            until_back_told(&mut server, &host, Instant::now()).await;
        })
        .await;
    });
}

/// An agent that is killed every second, for example by its memory limit or a liveness probe, still rolls back.
#[test]
#[ignore = "needs root and network namespaces"]
fn repeated_restarts_do_not_prevent_the_rollback() {
    in_namespace(|| async {
        let host = flannel_host();
        let patient_object = patient(object(&host), "2026-01-01T00:00:00Z");
        let (mut server, agent) = start(&host, patient_object.clone());
        beside(agent, async {
            to_swapped(&mut server).await;
        })
        .await;
        let began = Instant::now();
        while !host.is_rolled_back() {
            assert!(
                began.elapsed() < Duration::from_secs(SECONDS) + BACK_WITHIN,
                "the old network is not restored: {}",
                run("ip link")
            );
            let (server, agent) = start_without_api_server(&host, patient_object.clone());
            // Shorter than half of the time limit.
            beside(agent, tokio::time::sleep(Duration::from_secs(1))).await;
            drop(server);
        }
    });
}

/// Agent and API server fail together, during the migration of a node.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_restarted_agent_without_an_api_server_rolls_back() {
    in_namespace(|| async {
        let host = flannel_host();
        let patient_object = patient(object(&host), "2026-01-01T00:00:00Z");
        let (mut server, agent) = start(&host, patient_object.clone());
        beside(agent, async {
            to_swapped(&mut server).await;
        })
        .await;
        let (server, agent) = start_without_api_server(&host, patient_object);
        beside(agent, async {
            // No step continues, and the agent first waits for a new spec.
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
        assert!(journal.automatic_rollback().is_some());
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_new_time_limit_of_the_coordinator_restarts_the_clock() {
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
            assert!(run("ip link").contains("vxlan.calico"), "rolled back too early");
        })
        .await;
    });
}

/// A process that cannot be read, like one in uninterruptible sleep: opening a pipe without a writer blocks.
struct Hangs(crate::path::Process, std::path::PathBuf);

impl Hangs {
    fn start(host: &Host) -> Self {
        let process = crate::path::Process::start(&["sleep", "600"]);
        let pipe = host.folder.path().join(format!("pipe-{}", process.id()));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Between fork and exec the process has its parent's name.
        let folder = format!("/proc/{}", process.id());
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::read_to_string(format!("{folder}/comm")).unwrap() != "sleep\n" {
            assert!(Instant::now() < deadline, "sleep has not started");
            std::thread::yield_now();
        }
        run(&format!("mount --bind {} {folder}/cmdline", pipe.display()));
        Self(process, pipe)
    }

    fn reason(&self) -> String {
        format!("could not read process {} (sleep) within 2 s", self.0.id())
    }
}

impl Drop for Hangs {
    fn drop(&mut self) {
        // Unblocks the reading thread.
        use std::os::unix::fs::OpenOptionsExt as _;
        let _ = std::fs::OpenOptions::new()
            .write(true)
            .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
            .open(&self.1);
    }
}

/// Whatever the main thread does (listeners, probes, API requests), the host is rolled back in time.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_blocked_main_thread_does_not_delay_the_rollback() {
    in_namespace(|| async {
        let host = flannel_host();
        let (mut server, agent) = start(&host, patient(object(&host), "2026-01-01T00:00:00Z"));
        beside(agent, async {
            to_swapped(&mut server).await;
            assert!(!host.is_rolled_back());
            let began = Instant::now();
            // No await: nothing else of this thread runs.
            while !host.is_rolled_back() {
                assert!(
                    began.elapsed() < Duration::from_secs(SECONDS) + BACK_WITHIN,
                    "the old network is not restored: {}",
                    run("ip link")
                );
                std::thread::sleep(Duration::from_millis(50));
            }
            assert!(began.elapsed() >= Duration::from_secs(SECONDS - 1), "too early");
            server.phase("Flannel").await;
            assert!(server.object["status"]["flannelToCalico"]["automaticRollback"].is_string());
        })
        .await;
    });
}

/// The process is named; steps that need the end of flanneld wait, and the rollback does not.
#[test]
#[ignore = "needs root and network namespaces"]
fn an_unreadable_process_is_named_and_does_not_delay_the_rollback() {
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
                .is_some_and(|message| message.starts_with(&hangs.reason()))
            {
                server.patch(StatusCode::OK).await;
            }
            assert!(began.elapsed() < Duration::from_secs(10), "named within 10 s");
            assert_eq!(server.object["status"]["flannelToCalico"]["phase"], "Flannel");
            assert!(
                host.paths.subnet_environment().exists(),
                "no step while flanneld may run"
            );
            assert_eq!(
                server.object["status"]["flannelToCalico"]["facts"]["unreadProcesses"],
                json!([hangs.reason()])
            );
            // Once the process ends, the node continues.
            drop(hangs);
            server.phase("Held").await;
            server.set_goal(Goal::Swapped);
            server.phase("Swapped").await;
            let hangs = Hangs::start(&host);
            server.phase("Flannel").await;
            assert!(host.is_rolled_back());
            let named = &server.object["status"]["flannelToCalico"]["facts"]["unreadProcesses"];
            assert_eq!(*named, json!([hangs.reason()]));
        })
        .await;
    });
}
