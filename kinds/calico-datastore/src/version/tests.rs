use rstest::rstest;

use super::*;

#[rstest]
#[case("v2.6.5", (2, 6, 5))]
#[case("2.6.12", (2, 6, 12))]
#[case("v2.6.5-rc1", (2, 6, 5))]
#[case("v2.6.5-15-gabcdef", (2, 6, 5))]
#[case("v2.7.0+build.1", (2, 7, 0))]
#[case("v2.6.5-", (2, 6, 5))]
fn a_supported_version_is_accepted(#[case] text: &str, #[case] version: (i64, i64, i64)) {
    let found = gate(Some(text)).unwrap();
    assert_eq!((found.major, found.minor, found.patch), version);
}

#[rstest]
#[case("v2.6.4")]
#[case("v2.6.4-rc1")]
#[case("1.9.9")]
#[case("v0.0.0")]
fn an_older_version_is_refused(#[case] text: &str) {
    let found = text.to_owned();
    assert_eq!(gate(Some(text)), Err(VersionRefused::TooOld { found }));
}

#[rstest]
#[case("master")]
#[case("")]
#[case("v3.0")]
#[case("1.2.3.4.5")]
#[case("vv2.6.5")]
#[case("v2.6.x")]
#[case("v2.6.5-rc_1")]
#[case("v2.6.5-rc..1")]
#[case(" v2.6.5")]
fn an_invalid_version_is_refused(#[case] text: &str) {
    let found = text.to_owned();
    assert_eq!(gate(Some(text)), Err(VersionRefused::Unreadable { found }));
}

#[test]
fn a_version_of_v3_or_a_missing_version_in_v2_is_refused() {
    let found = "v3.0.0".to_owned();
    assert_eq!(gate(Some("v3.0.0")), Err(VersionRefused::NewModel { found }));
    assert_eq!(gate(None), Err(VersionRefused::Missing));
}

#[rstest]
#[case::fresh(None, Some("v2.6.12"), Some(Need::Needed))]
#[case::copied(Some("v2.6.12"), Some("v2.6.12"), Some(Need::Needed))]
#[case::blank(Some(""), Some("v2.6.12"), Some(Need::Needed))]
#[case::done(Some("v3.1.0"), Some("v2.6.12"), Some(Need::NotNeeded))]
#[case::done_and_cleared(Some("v3.1.0"), None, Some(Need::NotNeeded))]
#[case::nothing_at_all(None, None, Some(Need::NotNeeded))]
#[case::blank_and_nothing(Some(""), None, Some(Need::NotNeeded))]
#[case::unreadable(Some("master"), Some("v2.6.12"), None)]
#[case::old(None, Some("v2.6.4"), None)]
#[case::new_in_the_old_store(None, Some("v3.1.0"), None)]
fn the_need_follows_from_both_versions(
    #[case] v3: Option<&str>,
    #[case] v2: Option<&str>,
    #[case] need: Option<Need>,
) {
    assert_eq!(needed(v3, v2).ok(), need);
}

#[test]
fn a_refused_version_is_named_with_its_fix() {
    let refused = gate(Some("v2.6.4")).unwrap_err().to_string();
    assert!(
        refused.contains("\"v2.6.4\"") && refused.contains("upgrade Calico"),
        "{refused}"
    );
}
