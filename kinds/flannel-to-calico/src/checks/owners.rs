//! Checks that no other controller reverts the changes of the migration.

use super::CheckName;
use engine::check::{Check, Finding, Report, Verdict, names, owner};
use engine::cluster::DaemonSet;

/// Label of the objects that the Kubernetes add-on manager manages, with any value.
const ADDON_MANAGER_LABEL: &str = "addonmanager.kubernetes.io/mode";

/// Checks the `DaemonSet`s that the migration changes. Other checks name a missing `DaemonSet`.
pub(super) fn check(sets: &[Option<&DaemonSet>]) -> Vec<Check> {
    let sets: Vec<&DaemonSet> = sets.iter().copied().flatten().collect();
    let keys: Vec<String> = sets.iter().map(|set| set.key()).collect();
    let mut addon = Report::new(CheckName::AddonManager);
    let mut reconciler = Report::new(CheckName::Reconciler);
    for set in &sets {
        if let Some(mode) = set.labels.get(ADDON_MANAGER_LABEL) {
            addon.fail(
                "DaemonSet",
                set.key(),
                Finding::new(
                    "",
                    format!("label {ADDON_MANAGER_LABEL}={mode}"),
                    "no such label",
                    "the add-on manager would revert changes to the DaemonSet: move its manifest out of the add-on \
                     manager's directory on the control plane, then remove the label",
                ),
            );
        }
        for (mark, controller) in owner::controllers(&set.labels, &set.annotations, &set.managers) {
            reconciler.fail(
                "DaemonSet",
                set.key(),
                Finding::new(
                    "",
                    format!("{mark}: managed by {controller}"),
                    "no controller that reverts changes to the DaemonSet",
                    format!("suspend {controller} for this DaemonSet until the migration is over"),
                ),
            );
        }
        if let Some(release) = helm_release(set) {
            reconciler.add(
                Verdict::Warn,
                "DaemonSet",
                set.key(),
                Finding::new(
                    "",
                    format!("installed by Helm release {release}"),
                    "no `helm upgrade` or `helm rollback` of it while the migration runs",
                    "do not change the release during the migration; after it, flannel's release can be uninstalled",
                ),
            );
        }
    }
    let object = format!("DaemonSets {}", names(&keys));
    [
        addon.finish(&object, "no label of the add-on manager"),
        reconciler.finish(object, "no label, annotation or field manager of a controller"),
    ]
    .concat()
}

fn helm_release(set: &DaemonSet) -> Option<String> {
    let release = set.annotations.get("meta.helm.sh/release-name")?;
    let namespace = set
        .annotations
        .get("meta.helm.sh/release-namespace")
        .unwrap_or(&set.namespace);
    Some(format!("{namespace}/{release}"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::fixture::{self, verdicts};
    use super::*;
    use engine::check::Verdict::{Fail, Pass, Warn};

    fn judge(change: impl FnOnce(&mut DaemonSet)) -> Vec<Check> {
        let mut set = fixture::flannel();
        change(&mut set);
        check(&[Some(&set), None])
    }

    fn mark(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn a_daemon_set_of_kubectl_apply_passes() {
        let checks = judge(|set| set.managers = vec!["kubectl-client-side-apply (Update)".to_owned()]);
        assert_eq!(verdicts(&checks), [("AddonManager", Pass), ("Reconciler", Pass)]);
    }

    #[rstest]
    #[case("Reconcile")]
    #[case("EnsureExists")]
    #[case("")]
    fn any_label_value_of_the_add_on_manager_fails(#[case] mode: &str) {
        let checks = judge(|set| set.labels.extend([mark("addonmanager.kubernetes.io/mode", mode)]));
        assert_eq!(verdicts(&checks), [("AddonManager", Fail), ("Reconciler", Pass)]);
        assert_eq!(checks[0].object, "DaemonSet kube-flannel/kube-flannel-ds");
        assert_eq!(
            checks[0].found,
            format!("label addonmanager.kubernetes.io/mode={mode}")
        );
    }

    #[rstest]
    #[case::argo_annotation(|set: &mut DaemonSet| set.annotations.extend([mark("argocd.argoproj.io/tracking-id", "x")]), "Argo CD")]
    #[case::argo_manager(|set: &mut DaemonSet| set.managers.push("argocd-controller (Apply)".to_owned()), "Argo CD")]
    #[case::flux(|set: &mut DaemonSet| set.labels.extend([mark("kustomize.toolkit.fluxcd.io/name", "net")]), "Flux (Kustomization)")]
    #[case::flux_manager(|set: &mut DaemonSet| set.managers.push("kustomize-controller (Apply)".to_owned()), "Flux (Kustomization)")]
    #[case::rke2(|set: &mut DaemonSet| set.annotations.extend([mark("objectset.rio.cattle.io/id", "x")]), "the deploy controller of k3s, RKE2 or Fleet")]
    #[case::operator(|set: &mut DaemonSet| set.labels.extend([mark("app.kubernetes.io/managed-by", "tigera-operator")]), "the Tigera operator")]
    fn a_controller_that_reverts_changes_fails(#[case] change: fn(&mut DaemonSet), #[case] controller: &str) {
        let checks = judge(change);
        assert_eq!(verdicts(&checks), [("AddonManager", Pass), ("Reconciler", Fail)]);
        assert!(
            checks[1].found.ends_with(&format!("managed by {controller}")),
            "{}",
            checks[1].found
        );
    }

    #[test]
    fn one_controller_is_named_once() {
        let checks = judge(|set| {
            set.annotations
                .extend([mark("argocd.argoproj.io/tracking-id", "x")]);
            set.managers.push("argocd-controller (Apply)".to_owned());
        });
        assert_eq!(verdicts(&checks), [("AddonManager", Pass), ("Reconciler", Fail)]);
    }

    #[test]
    fn a_helm_release_only_warns() {
        let checks = judge(|set| set.annotations.extend([mark("meta.helm.sh/release-name", "net")]));
        assert_eq!(verdicts(&checks), [("AddonManager", Pass), ("Reconciler", Warn)]);
        assert!(checks[1].found.ends_with("kube-flannel/net"));
    }
}
