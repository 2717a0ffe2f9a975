use rstest::rstest;

use super::*;

fn tree(keys: &[&str]) -> Tree {
    Tree::of(
        keys.iter()
            .map(|key| ((*key).to_owned(), "x".to_owned()))
            .collect(),
    )
}

#[test]
fn a_tree_has_the_directories_of_its_keys() {
    let tree = tree(&["/calico/v1/host/a/metadata", "/calico/v1/Ready"]);
    let directories: Vec<&str> = tree.directories.iter().map(String::as_str).collect();
    assert_eq!(
        directories,
        ["/calico", "/calico/v1", "/calico/v1/host", "/calico/v1/host/a"]
    );
}

#[test]
fn an_empty_directory_is_a_child() {
    let mut tree = tree(&["/calico/v1/host/b/metadata", "/calico/v1/hostile/x"]);
    tree.directories.insert("/calico/v1/host/a".to_owned());
    let children: Vec<&str> = tree.children("/calico/v1/host").into_iter().collect();
    assert_eq!(children, ["a", "b"]);
}

#[test]
fn a_longer_name_comes_after_the_children_of_the_shorter_one() {
    let tree = tree(&[
        "/calico/v1/host/a-1/config/X",
        "/calico/v1/host/a.b/config/X",
        "/calico/v1/host/a/config/X",
    ]);
    let hosts: Vec<&str> = tree
        .matching("/calico/v1/host/*/config/**")
        .iter()
        .map(|entry| entry.parts[0])
        .collect();
    assert_eq!(hosts, ["a", "a-1", "a.b"]);
}

#[test]
fn a_name_with_a_leading_underscore_is_not_listed() {
    let tree = tree(&["/calico/v1/host/_a/endpoint/b", "/calico/v1/host/a/endpoint/_b"]);
    assert_eq!(tree.matching("/calico/v1/host/*/endpoint/*"), []);
    let hosts: Vec<&str> = tree.children("/calico/v1/host").into_iter().collect();
    assert_eq!(hosts, ["a"]);
    assert_eq!(tree.hidden().count(), 2);
}

#[test]
fn a_directory_where_a_value_should_be_reads_as_empty() {
    let tree = tree(&["/calico/bgp/v1/global/node_mesh/x"]);
    assert_eq!(tree.read("/calico/bgp/v1/global/node_mesh"), Some(""));
    assert_eq!(tree.read("/calico/bgp/v1/global/as_num"), None);
}

#[rstest]
#[case("/calico/v1/host/*/endpoint/*", "/calico/v1/host/h/endpoint/e", Some(vec!["h", "e"]))]
#[case("/calico/v1/host/*/endpoint/*", "/calico/v1/host/h/endpoint/e/f", None)]
#[case("/calico/v1/host/*/endpoint/*", "/calico/v1/host/h/endpoint", None)]
#[case("/calico/v1/config/**", "/calico/v1/config/a/b", Some(vec!["a/b"]))]
#[case("/calico/v1/config/**", "/calico/v1/config", None)]
#[case("/calico/bgp/v1/global/peer_v?/*", "/calico/bgp/v1/global/peer_v4/1.2.3.4", Some(vec!["1.2.3.4"]))]
#[case(
    "/calico/bgp/v1/global/peer_v?/*",
    "/calico/bgp/v1/global/peer_v46/1.2.3.4",
    None
)]
#[case(
    "/calico/bgp/v1/global/peer_v?/*",
    "/calico/bgp/v1/global/peer_v/1.2.3.4",
    None
)]
fn a_pattern_captures_its_wildcards(
    #[case] pattern: &str,
    #[case] path: &str,
    #[case] parts: Option<Vec<&str>>,
) {
    assert_eq!(captures(path, pattern), parts);
    let tree = tree(&[path]);
    let found = tree.matching(pattern).into_iter().next().map(|entry| entry.parts);
    assert_eq!(found, parts);
}

#[rstest]
#[case(None, None)]
#[case(Some("true"), Some(true))]
#[case(Some("false"), Some(false))]
#[case(Some("True"), Some(false))]
fn only_true_is_ready(#[case] value: Option<&str>, #[case] ready: Option<bool>) {
    let values = value.map(|value| (READY.to_owned(), value.to_owned()));
    assert_eq!(Tree::of(values.into_iter().collect()).ready(), ready);
}
