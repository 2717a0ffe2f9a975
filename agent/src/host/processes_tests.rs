use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use super::*;
use crate::host::clock_tests::takes_less;

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

/// A pipe that nothing is written into: opening it does not end, as reading a process in uninterruptible sleep does not.
fn hangs(path: &Path) {
    // As something else is mounted over it.
    let _ = fs::remove_file(path);
    mkfifo(path, Mode::S_IRWXU).unwrap();
}

fn let_go(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
}

async fn look(eye: &Processes, proc: &TempDir) -> (Vec<&'static str>, Vec<String>) {
    let Running { names, unread } = eye.running(proc.path(), NAMES).await.unwrap();
    (names.into_iter().collect(), unread)
}

#[tokio::test]
async fn a_name_is_known_by_the_command_and_by_what_was_started() {
    let proc = tempfile::tempdir().unwrap();
    process(&proc, 7, "main) S (x", Some(b"/opt/bin/flanneld\0--ip-masq\0"));
    process(&proc, 8, "calico-node", Some(b"runsv\0"));
    process(&proc, 9, "kworker/0:1", Some(b""));
    fs::create_dir(proc.path().join("10")).unwrap();
    let found = look(&Processes::default(), &proc).await;
    assert_eq!(found, (vec!["calico-node", "flanneld"], vec![]));
}

/// A file of the same inode is one of the same network namespace.
#[tokio::test]
async fn processes_of_other_network_namespaces_are_none_of_this_hosts() {
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
    let found = look(&Processes::default(), &proc).await;
    assert_eq!(
        found,
        (vec!["calico-node", "flanneld"], vec![]),
        "one whose namespace is not known counts"
    );
    fs::remove_dir_all(proc.path().join("9")).unwrap();
    let found = look(&Processes::default(), &proc).await;
    assert_eq!(found, (vec!["calico-node"], vec![]));
}

#[tokio::test]
async fn a_process_that_does_not_answer_is_named_and_the_others_are_read() {
    let proc = tempfile::tempdir().unwrap();
    let stuck = process(&proc, 7, "java", None).join("cmdline");
    hangs(&stuck);
    process(&proc, 8, "sh", Some(b"/opt/bin/flanneld\0"));
    let found = (
        vec!["flanneld"],
        vec!["could not read process 7 (java) within 2 s".to_owned()],
    );
    let mut eye = Processes::default();
    takes_less(Duration::from_secs(4), async || {
        eye = Processes::default();
        assert_eq!(look(&eye, &proc).await, found);
    })
    .await;
    // It is not waited for again.
    takes_less(Duration::from_secs(1), async || {
        assert_eq!(look(&eye, &proc).await, found);
    })
    .await;
    let_go(&stuck, "/opt/bin/calico-node\0");
    fs::remove_file(&stuck).unwrap();
    fs::write(&stuck, "/opt/bin/calico-node\0").unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while look(&eye, &proc).await != (vec!["calico-node", "flanneld"], vec![]) {
        assert!(
            Instant::now() < deadline,
            "what it says counts as soon as it answers"
        );
    }
}

#[tokio::test]
async fn a_process_that_was_read_before_is_what_it_was() {
    let proc = tempfile::tempdir().unwrap();
    let known = process(&proc, 7, "main", Some(b"/opt/bin/flanneld\0")).join("cmdline");
    process(&proc, 8, "java", Some(b"java\0"));
    let eye = Processes::default();
    assert_eq!(look(&eye, &proc).await, (vec!["flanneld"], vec![]));
    hangs(&known);
    hangs(&proc.path().join("8/cmdline"));
    assert_eq!(look(&eye, &proc).await, (vec!["flanneld"], vec![]));
    // Another program has begun in the same process, or another process under the same number.
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
    let (names, unread) = look(&eye, &proc).await;
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
async fn what_cannot_be_read_or_understood_is_no_process_without_a_name() {
    let proc = tempfile::tempdir().unwrap();
    let folder = process(&proc, 7, "sh", None);
    fs::create_dir(folder.join("cmdline")).unwrap();
    let other = process(&proc, 8, "sh", None);
    fs::write(other.join("stat"), "nothing").unwrap();
    hangs(&process(&proc, 9, "sh", None).join("stat"));
    let (names, unread) = look(&Processes::default(), &proc).await;
    assert_eq!(names, Vec::<&str>::new());
    assert_eq!(unread.len(), 3, "{unread:?}");
    let told = |words: &str| unread.iter().any(|sentence| sentence.starts_with(words));
    assert!(told("could not read process 7 (sh): "), "{unread:?}");
    assert!(
        told("could not read process 8: its stat is not understood"),
        "{unread:?}"
    );
    assert!(told("could not read process 9 within 2 s"), "{unread:?}");
}

#[test]
fn the_list_of_those_that_could_not_be_read_has_an_end() {
    let sentences = |count: usize| bounded((0..count).map(|number| number.to_string()).collect());
    assert_eq!(sentences(8).len(), 8);
    assert_eq!(sentences(20).len(), 9);
    assert_eq!(sentences(20)[8], "could not read 12 more processes");
}
