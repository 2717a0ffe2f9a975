use proptest::prelude::*;
use rstest::rstest;

use super::*;

const FLANNEL: &str = r#"{"name": "cbr0", "cniVersion": "0.3.1", "plugins": [
    {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
    {"type": "portmap", "capabilities": {"portMappings": true}}]}"#;
const CALICO: &str = r#"{"name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": [
    {"type": "calico", "ipam": {"type": "calico-ipam"}},
    {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}]}"#;

fn read(files: &[(&str, &str)]) -> CniDirectory {
    let files = files
        .iter()
        .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
        .collect();
    CniDirectory::read("/etc/cni/net.d", files)
}

#[test]
fn flannel_alone_wins() {
    let directory = read(&[("10-flannel.conflist", FLANNEL)]);
    let winner = directory.winner().unwrap();
    assert_eq!(winner.plugins, ["flannel", "portmap"]);
    assert_eq!(winner.network.as_deref(), Some("cbr0"));
    assert!(winner.has_plugin("flannel") && !winner.has_plugin("calico"));
}

#[test]
fn calico_wins_over_flannel_in_any_order_of_files() {
    for files in [
        [("10-flannel.conflist", FLANNEL), ("10-calico.conflist", CALICO)],
        [("10-calico.conflist", CALICO), ("10-flannel.conflist", FLANNEL)],
    ] {
        let directory = read(&files);
        assert_eq!(directory.winner().unwrap().name, "10-calico.conflist");
        let of_flannel = directory.files.iter().filter(|file| file.has_plugin("flannel"));
        assert_eq!(of_flannel.count(), 1);
    }
}

#[test]
fn other_endings_are_not_read() {
    let directory = read(&[
        ("00-other.conflist.bak", FLANNEL),
        ("00-other.conf~", FLANNEL),
        ("calico-kubeconfig", "x"),
        ("conflist", FLANNEL),
        ("10-calico.conflist", CALICO),
    ]);
    assert_eq!(directory.files.len(), 1);
}

/// R19: containerd stops at a broken file, so nothing after it wins.
#[test]
fn a_broken_file_leaves_no_winner() {
    let directory = read(&[("00-broken.conf", "{"), ("10-calico.conflist", CALICO)]);
    assert_eq!(directory.winner(), None);
    assert_eq!(directory.broken().unwrap().name, "00-broken.conf");
}

#[test]
fn a_broken_file_after_the_winner_is_ignored() {
    let directory = read(&[("10-calico.conflist", CALICO), ("99-broken.conf", "{")]);
    assert_eq!(directory.winner().unwrap().name, "10-calico.conflist");
    assert_eq!(directory.broken(), None);
    assert!(directory.files[1].error.is_some());
}

#[rstest]
#[case("a.conf", r#"{"name": "n", "type": "bridge"}"#, &["bridge"])]
#[case("a.json", r#"{"Name": "n", "TYPE": "bridge", "ipam": {"type": "host-local"}}"#, &["bridge"])]
#[case("a.conflist", r#"{"name": "n", "plugins": [{"Type": "bridge"}, {"type": "tuning"}]}"#, &["bridge", "tuning"])]
#[case("a.conflist", r#"{"name": "n", "disableCheck": "TRUE", "plugins": [{"type": "bridge"}]}"#, &["bridge"])]
fn a_valid_file_wins(#[case] name: &str, #[case] text: &str, #[case] plugins: &[&str]) {
    let directory = read(&[(name, text)]);
    let winner = directory.winner().unwrap();
    assert_eq!(winner.plugins, plugins);
    assert_eq!(winner.network.as_deref(), Some("n"));
}

#[rstest]
#[case(
    "a.conf",
    r#"{"name": "n", "plugins": [{"type": "bridge"}]}"#,
    "found a list of plugins in a.conf, needed a file name that ends in .conflist"
)]
#[case("a.conf", r#"{"name": "n"}"#, "type: missing, needed a string")]
#[case("a.json", r#"{"name": "n", "type": ""}"#, "type: empty, needed a name")]
#[case("a.conf", r#"{"type": "bridge"}"#, "name: missing, needed a string")]
#[case(
    "a.conf",
    r#"{"name": "n", "type": "bridge", "ipam": "x"}"#,
    "ipam: found a string, needed an object"
)]
#[case("a.conf", "[]", "found a list, needed an object")]
#[case("a.conf", "", "not JSON: EOF while parsing a value at line 1 column 0")]
#[case(
    "a.conflist",
    r#"{"plugins": [{"type": "bridge"}]}"#,
    "name: missing, needed a string"
)]
#[case(
    "a.conflist",
    r#"{"name": 1, "plugins": [{"type": "bridge"}]}"#,
    "name: found a number, needed a string"
)]
#[case(
    "a.conflist",
    r#"{"name": "n"}"#,
    "plugins: missing, needed a list of at least one"
)]
#[case(
    "a.conflist",
    r#"{"name": "n", "plugins": []}"#,
    "plugins: found an empty list, needed at least one"
)]
#[case(
    "a.conflist",
    r#"{"name": "n", "plugins": {}}"#,
    "plugins: found an object, needed a list"
)]
#[case(
    "a.conflist",
    r#"{"name": "n", "plugins": ["bridge"]}"#,
    "plugins[0]: found a string, needed an object"
)]
#[case(
    "a.conflist",
    r#"{"name": "n", "plugins": [{"type": "a"}, {}]}"#,
    "plugins[1].type: missing, needed a string"
)]
#[case(
    "a.conflist",
    r#"{"name": "n", "cniVersion": 1, "plugins": [{"type": "a"}]}"#,
    "cniVersion: found a number, needed a string"
)]
#[case(
    "a.conflist",
    r#"{"name": "n", "disableGC": 1, "plugins": [{"type": "a"}]}"#,
    "disableGC: found 1, needed true or false"
)]
#[case(
    "a.conflist",
    r#"{"NAME": "n", "plugins": [{"type": "a"}]}"#,
    "name: missing, needed a string"
)]
fn a_broken_file_has_an_error(#[case] name: &str, #[case] text: &str, #[case] error: &str) {
    let directory = read(&[(name, text)]);
    assert_eq!(directory.files[0].error.as_deref(), Some(error));
    assert_eq!(directory.winner(), None);
}

#[test]
fn a_file_above_the_size_limit_has_an_error() {
    let directory = read(&[("a.conflist", &" ".repeat(LARGEST_FILE + 1))]);
    assert!(
        directory.files[0]
            .error
            .as_ref()
            .unwrap()
            .contains("needed at most")
    );
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(files in proptest::collection::vec(
        ("[a-z0-9]{0,4}(\\.conf|\\.conflist|\\.json|\\.txt|)", proptest::collection::vec(any::<u8>(), 0..64)), 0..6)
    ) {
        let directory = CniDirectory::read("/etc/cni/net.d", files.clone());
        prop_assert!(directory.files.is_sorted_by(|left, right| left.name <= right.name));
        prop_assert!(directory.files.len() <= files.len());
        for file in &directory.files {
            prop_assert!(file.error.is_some() || (!file.plugins.is_empty() && file.network.is_some()));
        }
    }

    /// A valid conflist that is cut anywhere is an error, never a panic and never a partial chain.
    #[test]
    fn a_cut_conflist_is_broken(end in 0..CALICO.len()) {
        let directory = read(&[("10-calico.conflist", &CALICO[..end])]);
        prop_assert_eq!(directory.winner(), None);
    }
}

/// An unreadable file stops a runtime like a broken one, and its entry has the reason.
#[test]
fn a_file_that_cannot_be_read_is_an_entry_with_its_error() {
    let directory = CniDirectory::of(
        "/etc/cni/net.d",
        [
            (
                "10-loop.conflist".to_owned(),
                Err("too many levels of symbolic links".to_owned()),
            ),
            (
                "20-large.bak".to_owned(),
                Err("not read by any runtime".to_owned()),
            ),
        ],
    );
    assert_eq!(directory.files.len(), 1);
    assert_eq!(
        directory.broken().unwrap().error.as_deref(),
        Some("too many levels of symbolic links")
    );
    assert!(directory.winner().is_none());
}
