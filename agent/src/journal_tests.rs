use std::fs;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn what_was_begun_and_finished_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    journal
        .begin(&HostStep::DeleteBridge, Before::default(), at(10))
        .unwrap();
    assert_eq!(
        Journal::open(folder.path()).unwrap().open_step(),
        Some(&HostStep::DeleteBridge)
    );
    journal.finish(&HostStep::DeleteBridge, at(12)).unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    assert_eq!(journal.open_step(), None);
    assert_eq!(
        journal.done(),
        [StepDone {
            name: "DeleteBridge".to_owned(),
            started_at: at(10),
            finished_at: at(12)
        }]
    );
}

#[test]
fn a_second_try_keeps_the_first_record() {
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
    // What is there now is not what was there then: both are kept.
    journal
        .begin(&HostStep::DeleteBridge, Before::default(), at(3))
        .unwrap();
    assert_eq!(fs::read_to_string(journal.path()).unwrap().lines().count(), 2);
}

#[test]
fn a_record_that_a_crash_cut_short_is_taken_away() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    journal
        .begin(&HostStep::DeleteBridge, Before::default(), at(1))
        .unwrap();
    let whole = fs::read(journal.path()).unwrap();
    // Every length that a crash can leave behind.
    for length in 0..whole.len() {
        fs::write(journal.path(), &whole[..length]).unwrap();
        let mut again = Journal::open(folder.path()).unwrap();
        assert_eq!(again.open_step(), None, "{length} bytes");
        again
            .begin(&HostStep::RemoveLeases, Before::default(), at(2))
            .unwrap();
        assert_eq!(
            Journal::open(folder.path()).unwrap().open_step(),
            Some(&HostStep::RemoveLeases)
        );
    }
}

#[test]
fn a_broken_record_in_the_middle_is_an_error_that_names_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    journal
        .begin(&HostStep::DeleteBridge, Before::default(), at(1))
        .unwrap();
    let good = fs::read_to_string(journal.path()).unwrap();
    fs::write(journal.path(), format!("{good}{{\n{good}")).unwrap();
    let error = Journal::open(folder.path()).unwrap_err();
    assert_eq!(error.category(), "JournalBroken");
    assert!(error.to_string().contains("line 2"), "{error}");
}

#[test]
fn a_saved_file_can_be_put_back_as_it_was() {
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
fn a_journal_that_cannot_be_written_says_so_and_keeps_what_it_had() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path()).unwrap();
    journal
        .begin(&HostStep::DeleteBridge, Before::default(), at(1))
        .unwrap();
    let kept = fs::read(journal.path()).unwrap();
    // A folder in the file's place: what even root cannot write to.
    fs::remove_file(journal.path()).unwrap();
    fs::create_dir(journal.path()).unwrap();
    let error = journal.finish(&HostStep::DeleteBridge, at(2)).unwrap_err();
    assert_eq!(error.category(), "JournalFile");
    assert_eq!(
        journal.open_step(),
        Some(&HostStep::DeleteBridge),
        "nothing half done"
    );
    fs::remove_dir(journal.path()).unwrap();
    fs::write(journal.path(), kept).unwrap();
    journal.finish(&HostStep::DeleteBridge, at(3)).unwrap();
    assert_eq!(Journal::open(folder.path()).unwrap().done().len(), 1);
}
