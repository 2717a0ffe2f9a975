//! Controllers that reconcile an object continuously, recognized by their labels, annotations and field managers.

use std::collections::BTreeMap;

/// Labels and annotations that controllers set on objects that they reconcile: key, controller.
const MARKS: [(&str, &str); 10] = [
    ("addon.kops.k8s.io/name", "kops"),
    ("k8s-addon", "kops"),
    ("argocd.argoproj.io/tracking-id", "Argo CD"),
    ("argocd.argoproj.io/instance", "Argo CD"),
    ("kustomize.toolkit.fluxcd.io/name", "Flux (Kustomization)"),
    ("helm.toolkit.fluxcd.io/name", "Flux (HelmRelease)"),
    (
        "objectset.rio.cattle.io/id",
        "the deploy controller of k3s, RKE2 or Fleet",
    ),
    ("config.k8s.io/owning-inventory", "kpt or Config Sync"),
    ("configmanagement.gke.io/managed", "Config Sync"),
    ("kapp.k14s.io/app", "kapp-controller"),
];

/// Field managers of such controllers: start of the name, controller.
const MANAGERS: [(&str, &str); 6] = [
    ("argocd", "Argo CD"),
    ("kustomize-controller", "Flux (Kustomization)"),
    ("helm-controller", "Flux (HelmRelease)"),
    ("fleetagent", "Fleet"),
    ("configsync", "Config Sync"),
    ("tigera-operator", "the Tigera operator"),
];

/// Controllers that reconcile an object with these labels, annotations and field managers, each once: the evidence, and the name
/// of the controller.
pub fn controllers(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    managers: &[String],
) -> Vec<(String, &'static str)> {
    let mut found: BTreeMap<&'static str, String> = BTreeMap::new();
    for (key, controller) in MARKS {
        if labels.contains_key(key) || annotations.contains_key(key) {
            found.entry(controller).or_insert_with(|| key.to_owned());
        }
    }
    for manager in managers {
        let known = MANAGERS.iter().find(|(start, _)| manager.starts_with(start));
        if let Some((_, controller)) = known {
            found
                .entry(controller)
                .or_insert_with(|| format!("field manager {manager}"));
        }
    }
    if labels
        .get("app.kubernetes.io/managed-by")
        .is_some_and(|by| by == "tigera-operator")
    {
        found
            .entry("the Tigera operator")
            .or_insert_with(|| "app.kubernetes.io/managed-by".to_owned());
    }
    found
        .into_iter()
        .map(|(controller, mark)| (mark, controller))
        .collect()
}
