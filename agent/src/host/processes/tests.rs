use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use super::*;
use crate::host::fixture::assert_takes_less;

const NAMES: &[&str] = &["flanneld", "calico-node"];

fn process(proc: &TempDir, number: u32, command: &str, command_line: Option<&[u8]>) -> PathBuf {
    let folder = proc.path().join(number.to_string());
    fs::create_dir(&folder).unwrap();
    let stat = format!("{number} ({command}) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n");
    fs::write(folder.join("stat"), stat).unwrap();
    if let Some(line) = command_line {
        fs::write(folder.join("cmdline"), line).unwrap();
    }
    folder
}

/// A pipe without a writer: opening it blocks, like reading a process in uninterruptible sleep.
fn hangs(path: &Path) {
    // Replaces the file, like another mount over it.
    let _ = fs::remove_file(path);
    mkfifo(path, Mode::S_IRWXU).unwrap();
}

fn let_go(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
}

async fn read(processes: &Processes, proc: &TempDir) -> (Vec<&'static str>, Vec<String>) {
    let Running { names, unread } = processes.running(proc.path(), NAMES).await.unwrap();
    (names.into_keys().collect(), unread)
}

#[tokio::test]
async fn a_process_is_found_by_its_command_and_by_its_first_argument() {
    let proc = tempfile::tempdir().unwrap();
    process(&proc, 7, "main) S (x", Some(b"/opt/bin/flanneld\0--ip-masq\0"));
    process(&proc, 8, "calico-node", Some(b"runsv\0"));
    process(&proc, 9, "kworker/0:1", Some(b""));
    fs::create_dir(proc.path().join("10")).unwrap();
    let found = read(&Processes::default(), &proc).await;
    assert_eq!(found, (vec!["calico-node", "flanneld"], vec![]));
}

/// A file with the same inode represents the same network namespace.
#[tokio::test]
async fn processes_of_other_network_namespaces_are_ignored() {
    let proc = tempfile::tempdir().unwrap();
    let net = |folder: &str| proc.path().join(folder).join("net");
    for folder in ["thread-self", "other"] {
        fs::create_dir_all(net(folder)).unwrap();
        fs::write(net(folder).join("dev"), "").unwrap();
    }
    for (number, command, like) in [
        (7, "flanneld", Some("other")),
        (8, "calico-node", Some("thread-self")),
        (9, "sh", None),
    ] {
        let folder = process(&proc, number, command, Some(b"/opt/bin/flanneld\0"));
        if let Some(like) = like {
            fs::create_dir(folder.join("net")).unwrap();
            fs::hard_link(net(like).join("dev"), folder.join("net/dev")).unwrap();
        }
    }
    let found = read(&Processes::default(), &proc).await;
    assert_eq!(
        found,
        (vec!["calico-node", "flanneld"], vec![]),
        "a process whose namespace is unknown counts"
    );
    fs::remove_dir_all(proc.path().join("9")).unwrap();
    let found = read(&Processes::default(), &proc).await;
    assert_eq!(found, (vec!["calico-node"], vec![]));
}

#[tokio::test]
async fn a_stuck_process_is_named_and_the_others_are_read() {
    let proc = tempfile::tempdir().unwrap();
    let stuck = process(&proc, 7, "java", None).join("cmdline");
    hangs(&stuck);
    process(&proc, 8, "sh", Some(b"/opt/bin/flanneld\0"));
    let found = (
        vec!["flanneld"],
        vec!["could not read process 7 (java) within 2 s".to_owned()],
    );
    let mut processes = Processes::default();
    assert_takes_less(Duration::from_secs(4), async || {
        processes = Processes::default();
        assert_eq!(read(&processes, &proc).await, found);
    })
    .await;
    // The second read does not wait.
    assert_takes_less(Duration::from_secs(1), async || {
        assert_eq!(read(&processes, &proc).await, found);
    })
    .await;
    let_go(&stuck, "/opt/bin/calico-node\0");
    fs::remove_file(&stuck).unwrap();
    fs::write(&stuck, "/opt/bin/calico-node\0").unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while read(&processes, &proc).await != (vec!["calico-node", "flanneld"], vec![]) {
        assert!(
            Instant::now() < deadline,
            "the answer counts as soon as it is read"
        );
    }
}

#[tokio::test]
async fn a_stuck_process_keeps_its_last_known_name() {
    let proc = tempfile::tempdir().unwrap();
    let known = process(&proc, 7, "main", Some(b"/opt/bin/flanneld\0")).join("cmdline");
    process(&proc, 8, "java", Some(b"java\0"));
    let processes = Processes::default();
    assert_eq!(read(&processes, &proc).await, (vec!["flanneld"], vec![]));
    hangs(&known);
    hangs(&proc.path().join("8/cmdline"));
    assert_eq!(read(&processes, &proc).await, (vec!["flanneld"], vec![]));
    // The same process executes another program, or another process has the same number.
    fs::write(
        proc.path().join("8/stat"),
        "8 (sh) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n",
    )
    .unwrap();
    fs::write(
        proc.path().join("7/stat"),
        "7 (main) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4712 0 0\n",
    )
    .unwrap();
    let (names, unread) = read(&processes, &proc).await;
    assert_eq!(names, Vec::<&str>::new());
    assert_eq!(
        unread,
        [
            "could not read process 7 (main) within 2 s",
            "could not read process 8 (sh) within 2 s"
        ]
    );
}

#[tokio::test]
async fn unreadable_and_malformed_processes_are_reported() {
    let proc = tempfile::tempdir().unwrap();
    let folder = process(&proc, 7, "sh", None);
    fs::create_dir(folder.join("cmdline")).unwrap();
    let other = process(&proc, 8, "sh", None);
    fs::write(other.join("stat"), "nothing").unwrap();
    hangs(&process(&proc, 9, "sh", None).join("stat"));
    let (names, unread) = read(&Processes::default(), &proc).await;
    assert_eq!(names, Vec::<&str>::new());
    assert_eq!(unread.len(), 3, "{unread:?}");
    let reported = |start: &str| unread.iter().any(|text| text.starts_with(start));
    assert!(reported("could not read process 7 (sh): "), "{unread:?}");
    assert!(
        reported("could not read process 8: stat is malformed"),
        "{unread:?}"
    );
    assert!(reported("could not read process 9 within 2 s"), "{unread:?}");
}

#[test]
fn the_list_of_unreadable_processes_is_bounded() {
    let texts = |count: usize| bounded((0..count).map(|number| number.to_string()).collect());
    assert_eq!(texts(8).len(), 8);
    assert_eq!(texts(20).len(), 9);
    assert_eq!(texts(20)[8], "further processes that could not be read: 12");
}

#[tokio::test]
async fn the_command_line_of_a_process_is_read_word_by_word() {
    let folder = tempfile::tempdir().unwrap();
    let process = folder.path().join("7");
    std::fs::create_dir(&process).unwrap();
    std::fs::write(
        process.join("cmdline"),
        b"/usr/bin/crio\0--cni-default-network\0cbr0\0",
    )
    .unwrap();
    let processes = Processes::default();
    let words = processes.arguments(folder.path(), 7).await.unwrap();
    assert_eq!(words, ["/usr/bin/crio", "--cni-default-network", "cbr0"]);
    std::fs::write(process.join("cmdline"), b"").unwrap();
    let ended = processes.arguments(folder.path(), 7).await.unwrap_err();
    assert!(ended.contains("process 7 has ended"), "{ended}");
    let missing = processes.arguments(folder.path(), 8).await.unwrap_err();
    assert!(missing.contains("process 8"), "{missing}");
}
