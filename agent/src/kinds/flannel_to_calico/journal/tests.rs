use std::fs;

use super::state::SHOWN_STEPS;
use super::*;
use api::FailureCategory;
use flannel_to_calico::host::{AdoptionSettings, HostSettings, PodAction, PodChange, PodEnd};
use flannel_to_calico::phase::Goal;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// The journal as the next process opens it.
fn reopen(journal: Journal) -> Result<Journal, JournalError> {
    let folder = journal.folder.clone();
    drop(journal);
    Journal::open(&folder)
}

#[test]
fn a_journal_locked_by_another_agent_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let error = Journal::open(folder.path()).unwrap_err();
    assert_eq!(error.category(), FailureCategory::JournalTaken);
    assert!(error.to_string().contains("another agent"), "{error}");
    reopen(journal).unwrap();
}

#[test]
fn a_started_and_a_finished_step_are_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    journal
        .begin(&HostStep::DeleteBridge, Before::default(), at(10))
        .unwrap();
    let mut journal = reopen(journal).unwrap();
    assert_eq!(journal.open_step(), Some(&HostStep::DeleteBridge));
    journal.finish(&HostStep::DeleteBridge, at(12)).unwrap();
    let journal = reopen(journal).unwrap();
    assert_eq!(journal.open_step(), None);
    assert_eq!(
        journal.done(),
        [FinishedStep {
            name: "DeleteBridge".to_owned(),
            started_at: at(10),
            finished_at: at(12)
        }]
    );
}

#[test]
fn a_repeated_start_with_the_same_state_adds_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    let before = Before {
        rules: vec!["first".to_owned()],
        ..Before::default()
    };
    journal
        .begin(&HostStep::DeleteBridge, before.clone(), at(1))
        .unwrap();
    journal.begin(&HostStep::DeleteBridge, before, at(2)).unwrap();
    assert_eq!(fs::read_to_string(journal.path()).unwrap().lines().count(), 1);
    // The state before the step has changed: both records are kept.
    journal
        .begin(&HostStep::DeleteBridge, Before::default(), at(3))
        .unwrap();
    assert_eq!(fs::read_to_string(journal.path()).unwrap().lines().count(), 2);
}

#[test]
fn an_incomplete_last_record_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    journal
        .begin(&HostStep::DeleteBridge, Before::default(), at(1))
        .unwrap();
    let (path, whole) = (journal.path(), fs::read(journal.path()).unwrap());
    drop(journal);
    // Every length that a crash can leave.
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let mut journal = Journal::open(folder.path()).unwrap();
        assert_eq!(journal.open_step(), None, "{length} bytes");
        journal
            .begin(&HostStep::RemoveLeases, Before::default(), at(2))
            .unwrap();
        let journal = reopen(journal).unwrap();
        assert_eq!(journal.open_step(), Some(&HostStep::RemoveLeases));
    }
}

#[test]
fn a_malformed_record_before_the_last_is_an_error_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    journal
        .begin(&HostStep::DeleteBridge, Before::default(), at(1))
        .unwrap();
    let good = fs::read_to_string(journal.path()).unwrap();
    fs::write(journal.path(), format!("{good}{{\n{good}")).unwrap();
    let error = reopen(journal).unwrap_err();
    assert_eq!(error.category(), FailureCategory::JournalBroken);
    assert!(error.to_string().contains("line 2"), "{error}");
}

#[test]
fn a_saved_file_keeps_content_and_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(&folder.path().join("state")).unwrap();
    let path = folder.path().join("10-flannel.conflist");
    fs::write(&path, [0xff, 0x00, b'x']).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let saved = journal.save(&path).unwrap().unwrap();
    assert_eq!(saved.mode, 0o640);
    assert_eq!(fs::read(&saved.copy).unwrap(), [0xff, 0x00, b'x']);
    assert_eq!(journal.save(&folder.path().join("absent")).unwrap(), None);
}

#[test]
fn a_failed_write_is_an_error_and_keeps_the_open_step() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    journal
        .begin(&HostStep::DeleteBridge, Before::default(), at(1))
        .unwrap();
    let kept = fs::read(journal.path()).unwrap();
    // A folder in place of the file: even root cannot write to it.
    fs::remove_file(journal.path()).unwrap();
    fs::create_dir(journal.path()).unwrap();
    let error = journal.finish(&HostStep::DeleteBridge, at(2)).unwrap_err();
    assert_eq!(error.category(), FailureCategory::JournalFile);
    assert_eq!(
        journal.open_step(),
        Some(&HostStep::DeleteBridge),
        "a failed write changes nothing"
    );
    fs::remove_dir(journal.path()).unwrap();
    fs::write(journal.path(), kept).unwrap();
    journal.finish(&HostStep::DeleteBridge, at(3)).unwrap();
    assert_eq!(reopen(journal).unwrap().done().len(), 1);
}

fn texts(pairs: &[(&str, &str)]) -> Before {
    Before {
        texts: pairs
            .iter()
            .map(|(path, text)| (path.into(), (*text).to_owned()))
            .collect(),
        ..Before::default()
    }
}

#[test]
fn a_change_stands_until_it_is_undone() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    let change = HostStep::AnswerForPods;
    journal
        .begin(
            &change,
            texts(&[("proxy_delay", "80"), ("proxy_arp", "0")]),
            at(1),
        )
        .unwrap();
    // The change is announced and may have been performed: it stands.
    let mut journal = reopen(journal).unwrap();
    assert_eq!(journal.remembered().unreverted, std::slice::from_ref(&change));
    // The change was performed in part. The state before its first start is kept.
    journal
        .begin(&change, texts(&[("proxy_delay", "0"), ("proxy_arp", "0")]), at(2))
        .unwrap();
    journal.finish(&change, at(3)).unwrap();
    let mut journal = reopen(journal).unwrap();
    assert_eq!(journal.remembered().unreverted, [change]);
    let undo = HostStep::StopAnsweringForPods;
    let before = journal.before_change(&undo).unwrap();
    assert_eq!(before, texts(&[("proxy_delay", "80"), ("proxy_arp", "0")]));
    journal.begin(&undo, Before::default(), at(4)).unwrap();
    assert_eq!(
        journal.remembered().unreverted.len(),
        1,
        "the change is not undone yet"
    );
    journal.finish(&undo, at(5)).unwrap();
    assert_eq!(reopen(journal).unwrap().remembered(), JournalState::default());
}

#[test]
fn steps_without_undo_do_not_stand_and_pod_routes_stand_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    for step in [
        HostStep::ForgetLegacyPod("16cc".to_owned()),
        HostStep::RouteLegacyPods(vec!["10.244.1.2".parse().unwrap()]),
        HostStep::RouteLegacyPods(vec!["10.244.1.3".parse().unwrap()]),
    ] {
        journal.begin(&step, Before::default(), at(1)).unwrap();
        journal.finish(&step, at(2)).unwrap();
    }
    assert_eq!(journal.remembered().unreverted.len(), 1);
}

#[test]
fn a_malformed_last_record_is_removed_and_one_of_a_later_agent_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    let step = HostStep::WithdrawSubnetEnvironment;
    journal.begin(&step, Before::default(), at(1)).unwrap();
    let good = fs::read_to_string(journal.path()).unwrap();
    for incomplete in ["\0\0\0\0\n", "{\"version\":1,\"seq\n"] {
        fs::write(journal.path(), format!("{good}{incomplete}")).unwrap();
        journal = reopen(journal).unwrap();
        assert_eq!(journal.open_step(), Some(&step));
        assert_eq!(fs::read_to_string(journal.path()).unwrap(), good);
    }
    let later = "{\"version\":2,\"anything\":true}\n";
    fs::write(journal.path(), format!("{good}{later}")).unwrap();
    let path = journal.path();
    let error = reopen(journal).unwrap_err().to_string();
    assert!(
        error.contains("version 2") && error.contains("later agent"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(path).unwrap(), format!("{good}{later}"));
}

#[test]
fn a_long_journal_is_compacted_to_standing_changes() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    let change = HostStep::WithdrawSubnetEnvironment;
    let kept = texts(&[("subnet.env", "FLANNEL_MTU=1450")]);
    journal.begin(&change, kept.clone(), at(1)).unwrap();
    journal.finish(&change, at(2)).unwrap();
    let long = texts(&[("record", &"x".repeat(20_000))]);
    for pod in 0..200 {
        let step = HostStep::ForgetLegacyPod(format!("sandbox-{pod}"));
        journal.begin(&step, long.clone(), at(3)).unwrap();
        journal.finish(&step, at(4)).unwrap();
        assert!(fs::metadata(journal.path()).unwrap().len() < LARGE_FILE + 30_000);
    }
    let journal = reopen(journal).unwrap();
    assert_eq!(journal.remembered().unreverted, [change]);
    let undo = HostStep::RestoreSubnetEnvironment;
    assert_eq!(journal.before_change(&undo), Some(kept));
    assert_eq!(journal.done().len(), SHOWN_STEPS);
}

fn answering(pods: &[&str]) -> PodChange {
    let end = |name: &&str| PodEnd {
        sandbox: (*name).to_owned(),
        link: format!("veth{name}"),
        calico_link: format!("cali{name}"),
        mac: "0a:58:0a:f4:01:02".to_owned(),
        addresses: vec!["10.244.1.2".parse().unwrap()],
    };
    PodChange {
        action: PodAction::Answer,
        pods: pods.iter().map(end).collect(),
    }
}

#[test]
fn a_change_of_two_pods_stands_for_the_other_one_once_one_has_returned() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    let both = HostStep::ChangePods(answering(&["1", "2"]));
    journal
        .begin(
            &both,
            texts(&[("veth1/delay", "80"), ("veth2/delay", "81")]),
            at(1),
        )
        .unwrap();
    // A crash in the middle: the second pod is left, and its parameter has been changed.
    let second = HostStep::ChangePods(answering(&["2"]));
    journal
        .begin(&second, texts(&[("veth2/delay", "0")]), at(2))
        .unwrap();
    journal.finish(&second, at(3)).unwrap();
    let mut journal = reopen(journal).unwrap();
    let back = HostStep::RevertPods(answering(&["2"]));
    let before = journal.before_change(&back).unwrap();
    assert_eq!(before, texts(&[("veth1/delay", "80"), ("veth2/delay", "81")]));
    journal.begin(&back, Before::default(), at(4)).unwrap();
    journal.finish(&back, at(5)).unwrap();
    let journal = reopen(journal).unwrap();
    let first = HostStep::ChangePods(answering(&["1"]));
    assert_eq!(journal.remembered().unreverted, [first]);
    assert_eq!(journal.before_change(&back), None);
}

#[test]
fn pods_that_are_not_taken_are_remembered_until_a_resume_or_their_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    let orders = |resumed_at: Option<i64>| Orders {
        goal: Goal::Calico,
        settings: HostSettings {
            vni: 1,
            port: 8472,
            mtu: 1450,
            cni_configuration_directory: "/etc/cni/net.d".to_owned(),
            block_size: 26,
            node_range_length: 24,
            ipv6: None,
            adopt_pods: true,
            write_firewall_twins: true,
            adoption: AdoptionSettings {
                resumed_at: resumed_at.map(at),
                ..AdoptionSettings::default()
            },
        },
        time_limit: None,
    };
    let sandboxes =
        |names: &[&str]| -> BTreeSet<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    journal.record_goal(orders(None), at(1)).unwrap();
    journal.record_not_taken(sandboxes(&["s1", "s2"]), at(2)).unwrap();
    let length = fs::metadata(journal.path()).unwrap().len();
    journal.record_not_taken(sandboxes(&["s1"]), at(3)).unwrap();
    assert_eq!(fs::metadata(journal.path()).unwrap().len(), length, "nothing new");
    // Another order is no resume.
    let mut other = orders(None);
    other.goal = Goal::Mixed;
    journal.record_goal(other, at(4)).unwrap();
    journal
        .finish(&HostStep::ForgetLegacyPod("s2".to_owned()), at(5))
        .unwrap();
    let summary = Record::new(9, at(6), journal.state.summary());
    let path = journal.path();
    fs::write(&path, summary.line().unwrap()).unwrap();
    let mut journal = reopen(journal).unwrap();
    assert_eq!(journal.remembered().not_taken, sandboxes(&["s1"]));
    journal.record_goal(orders(Some(7)), at(7)).unwrap();
    assert_eq!(journal.remembered().not_taken, BTreeSet::new());
}
