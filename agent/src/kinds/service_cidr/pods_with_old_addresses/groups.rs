//! Finds the pod of a process from its control groups. Pure.

/// The UID of the pod: the kubelet creates a group `…/kubepods/burstable/pod<UID>/…` with the driver cgroupfs, and
/// `…/kubepods-burstable-pod<UID with _ for ->.slice/…` with systemd. With nested groups, the outermost one is of this host's
/// kubelet. `hidden` is the agent's own pod if its groups do not contain its UID.
///
/// A container mostly has its own control group namespace: groups of other pods are shown relative to its own
/// (`/../../pod<UID>/…`, without `kubepods`), and its own group as `/`.
pub(super) fn pod(groups: &str, hidden: Option<&str>) -> Option<String> {
    let paths = || groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let named = paths().flat_map(|path| path.split('/')).find_map(uid);
    named.or_else(|| {
        let is_below_own = |path: &str| path.starts_with('/') && !path.split('/').any(|part| part == "..");
        hidden.filter(|_| paths().all(is_below_own)).map(str::to_owned)
    })
}

/// The agent's own pod if the agent's groups do not contain its UID; `None` if they do, or if the agent is not in a pod.
pub(super) fn hidden<'pod>(own_groups: &str, own_pod: &'pod str) -> Option<&'pod str> {
    (!own_pod.is_empty() && pod(own_groups, None).is_none()).then_some(own_pod)
}

/// The UID in the name of one group.
fn uid(name: &str) -> Option<String> {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    let (_, uid) = name
        .rsplit_once("pod")
        .filter(|(before, _)| before.is_empty() || before.ends_with('-'))?;
    let uid = uid.replace('_', "-");
    is_uid(&uid).then_some(uid)
}

/// Whether a text is a UID. The UID of a static pod has no dashes: the kubelet derives it from the file.
fn is_uid(text: &str) -> bool {
    let dashes = text.bytes().filter(|byte| *byte == b'-').count();
    matches!((text.len(), dashes), (36, 4) | (32, 0))
        && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const POD: &str = "8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11";
    const OWN: &str = "11111111-1111-1111-1111-111111111111";

    #[rstest]
    #[case::cgroupfs(
        "5:cpu:/replumb/kubepods/burstable/pod8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11/0a1b2c",
        Some(POD)
    )]
    #[case::systemd(
        "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod8d4c4e29_0d4f_4b53_b7ee_1c1c4f0c9b11.slice/cri-containerd-0a.scope",
        Some(POD)
    )]
    #[case::guaranteed(
        "0::/kubepods.slice/kubepods-pod8d4c4e29_0d4f_4b53_b7ee_1c1c4f0c9b11.slice/x",
        Some(POD)
    )]
    #[case::below_another_root(
        "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod8d4c4e29_0d4f_4b53_b7ee_1c1c4f0c9b11.slice/x",
        Some(POD)
    )]
    #[case::a_static_pod(
        "0::/kubepods/pod0123456789abcdef0123456789abcdef/x",
        Some("0123456789abcdef0123456789abcdef")
    )]
    #[case::both_versions(
        "3:name=systemd:/kubepods/pod8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11/x\n0::/",
        Some(POD)
    )]
    // The format of kernel 6.18 for a process in its own control group namespace.
    #[case::a_neighbour("0::/../../pod8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11/other", Some(POD))]
    #[case::of_another_class(
        "0::/../../../besteffort/pod8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11/third",
        Some(POD)
    )]
    #[case::a_neighbour_with_systemd(
        "0::/../../kubepods-burstable-pod8d4c4e29_0d4f_4b53_b7ee_1c1c4f0c9b11.slice/cri-containerd-0a.scope",
        Some(POD)
    )]
    #[case::a_node_within_a_pod(
        "5:cpu:/kubepods/pod8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11/x/kubepods/pod22222222-2222-2222-2222-222222222222/y",
        Some(POD)
    )]
    #[case::a_service_of_the_host("0::/system.slice/kubelet.service", None)]
    #[case::kubepods_alone("0::/kubepods", None)]
    #[case::the_kernel("0::/", None)]
    #[case::a_podman_container("0::/machine.slice/libpod-0123456789abcdef0123456789abcdef.scope", None)]
    #[case::no_uid("0::/kubepods/pod------------------------------------/x", None)]
    #[case::nothing("", None)]
    fn the_pod_of_a_process_is_in_its_groups(#[case] groups: &str, #[case] expected: Option<&str>) {
        assert_eq!(pod(groups, None).as_deref(), expected);
    }

    #[rstest]
    #[case::own_group("0::/", Some(OWN))]
    #[case::below_own_group("0::/init.scope", Some(OWN))]
    #[case::the_kernel("0::/../../../../..", None)]
    #[case::the_host("0::/../../../../../system.slice/kubelet.service", None)]
    #[case::a_neighbour("0::/../../pod8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11/other", Some(POD))]
    fn the_pod_of_a_process_in_a_control_group_namespace(
        #[case] groups: &str,
        #[case] expected: Option<&str>,
    ) {
        let hidden = hidden("0::/\n", OWN);
        assert_eq!(hidden, Some(OWN));
        assert_eq!(pod(groups, hidden).as_deref(), expected);
    }

    #[test]
    fn in_the_hosts_namespace_the_own_pod_is_not_hidden() {
        let own = format!("0::/kubepods/pod{OWN}/agent\n");
        assert_eq!(hidden(&own, OWN), None);
        assert_eq!(hidden("0::/\n", ""), None, "the agent is not in a pod");
        assert_eq!(pod("0::/\n", hidden(&own, OWN)), None);
    }
}
