//! Many connections of the host to a Service, most of them over, as of a node whose pods ask a name server all the time.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flannel_to_calico::phase::Goal;

use crate::adopt::{adopt, mixed, new_host};
use crate::drive;
use crate::host::{in_namespace, run};
use crate::pods::Pod;

const SERVICE: &str = "10.96.0.12:53";
const PORT: u16 = 5353;
/// Entries of connection tracking.
const CONNECTIONS: usize = 20_000;
/// Every so many connections, one continues.
const SAMPLED_EVERY: usize = 50;
/// A question without an answer for this time is lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Rules as kube-proxy writes them: each server with the same probability.
fn add_service(servers: &[Pod]) {
    let nat = |rule: &str| run(&format!("iptables -w 10 -t nat {rule}"));
    nat("-N KUBE-MARK-MASQ");
    nat("-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000");
    nat("-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully");
    nat("-N SERVICE");
    nat("-A OUTPUT -d 10.96.0.12 -p udp --dport 53 -j SERVICE");
    nat("-A SERVICE -j KUBE-MARK-MASQ");
    for (number, server) in servers.iter().enumerate() {
        let every = servers.len() - number;
        let to = SocketAddr::new(server.addresses[0], PORT);
        nat(&format!(
            "-A SERVICE -p udp -m statistic --mode nth --every {every} --packet 0 -j DNAT --to-destination {to}"
        ));
    }
    // The host chooses its own address by the route, before the translation.
    run("ip link add service0 type veth peer name service1");
    run("ip address add 192.0.2.1/24 dev service0");
    run("ip link set service1 up");
    run("ip link set service0 up");
    run("ip route add 10.96.0.0/16 via 192.0.2.2");
    run("ip neighbour add 192.0.2.2 lladdr 02:00:00:00:00:99 dev service0");
}

/// Answers each question with the number of the server.
fn serve(number: u8, stop: &AtomicBool) {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut bytes = [0; 8];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((_, from)) = socket.recv_from(&mut bytes) {
            socket.send_to(&[number], from).unwrap();
        }
    }
}

/// The number of the server that answers.
fn ask(socket: &UdpSocket) -> io::Result<u8> {
    let mut answer = [0];
    socket.send(b"question")?;
    loop {
        match socket.recv(&mut answer) {
            Ok(_) => return Ok(answer[0]),
            // A child process of another test has ended.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Begins the connections, and returns those that continue, each with its server.
fn begin() -> Vec<(UdpSocket, u8)> {
    let mut kept = Vec::new();
    for number in 0..CONNECTIONS {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.set_read_timeout(Some(ANSWER_TIMEOUT)).unwrap();
        socket.connect(SERVICE).unwrap();
        let server = ask(&socket).unwrap();
        if number % SAMPLED_EVERY == 0 {
            kept.push((socket, server));
        }
    }
    kept
}

/// The kernel would end each connection with the route of its pod, and the next question would begin another one, to any server.
fn assert_same_servers(kept: &[(UdpSocket, u8)], when: &str) {
    let others: Vec<String> = kept
        .iter()
        .filter_map(|(socket, server)| match ask(socket) {
            Ok(now) if now == *server => None,
            now => Some(format!("{server}: {now:?}")),
        })
        .collect();
    assert!(
        others.is_empty(),
        "{when}: {} of {}: {others:?}",
        others.len(),
        kept.len()
    );
}

#[test]
#[ignore = "needs root and network namespaces"]
fn many_connections_keep_their_servers() {
    in_namespace(|| async {
        let (host, pods) = mixed(new_host(false)).await;
        add_service(&pods[..3]);
        let stop = Arc::new(AtomicBool::new(false));
        let servers: Vec<_> = (0..)
            .zip(&pods[..3])
            .map(|(number, pod)| {
                let stop = Arc::clone(&stop);
                pod.thread(move || serve(number, &stop))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        let kept = begin();
        let begun = Instant::now();
        adopt(&host, &pods[..3]).await;
        eprintln!("adoption with {CONNECTIONS} connections: {:?}", begun.elapsed());
        assert_same_servers(&kept, "adoption");
        run("ip link delete calinew");
        let begun = Instant::now();
        assert_eq!(drive(&host, Goal::Flannel).await, None);
        eprintln!("return with {CONNECTIONS} connections: {:?}", begun.elapsed());
        assert_same_servers(&kept, "return");
        stop.store(true, Ordering::Relaxed);
        for server in servers {
            server.join().unwrap();
        }
    });
}
