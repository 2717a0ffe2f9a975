//! Recognition of the `DaemonSet`s of networks by what they run, not by their names.

use calico::runs_calico_node;
use engine::cluster::{Container, DaemonSet};
use engine::command_line::{self, is_true, runs};
use engine::environment::ValueSource;

/// Whether the `DaemonSet` runs flannel without Calico. A `DaemonSet` with such a name and without `hostNetwork` is a
/// workload of a user.
pub fn looks_like_flannel(set: &DaemonSet) -> bool {
    set.host_network && flanneld(set).is_some() && !runs_calico_node(set)
}

/// Whether the `DaemonSet` runs flannel and Calico in one pod.
pub fn looks_like_canal(set: &DaemonSet) -> bool {
    flanneld(set).is_some() && runs_calico_node(set)
}

/// Whether the `ConfigMap`s of the `DaemonSet` configure flannel or Calico.
pub fn is_of_a_network(set: &DaemonSet) -> bool {
    looks_like_flannel(set) || runs_calico_node(set)
}

/// The container that runs flanneld.
pub fn flanneld(set: &DaemonSet) -> Option<&Container> {
    let main = || set.containers.iter().filter(|container| !container.init);
    main()
        .find(|container| runs(container, "flanneld"))
        .or_else(|| main().find(|container| container.name == "kube-flannel"))
        .or_else(|| main().find(|container| repository(&container.image).ends_with("flannel")))
}

/// The value of an option of flanneld, from its arguments, else from its environment.
pub fn argument(container: &Container, name: &str) -> Option<String> {
    command_line::argument(container, name)
        .or_else(|| environment(container, name))
        .filter(|value| !value.is_empty())
}

/// Whether a switch of flanneld is on, by its arguments, else by its environment.
pub fn has_switch(container: &Container, name: &str) -> bool {
    command_line::switch(container, name)
        .or_else(|| environment(container, name).map(|value| is_true(&value)))
        .unwrap_or(false)
}

/// flanneld reads `FLANNELD_KUBE_SUBNET_MGR` for `--kube-subnet-mgr`.
fn environment(container: &Container, name: &str) -> Option<String> {
    let variable = format!("FLANNELD_{}", name.replace('-', "_").to_uppercase());
    match container.environment.single.get(&variable) {
        Some(ValueSource::Plain(value)) => Some(value.clone()),
        Some(ValueSource::ConfigMapKey { .. } | ValueSource::Elsewhere(_)) | None => None,
    }
}

/// An image reference without its tag and digest.
fn repository(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    let name = image.rfind('/').map_or(0, |slash| slash + 1);
    match image[name..].find(':') {
        Some(colon) => &image[..name + colon],
        None => image,
    }
}

#[cfg(test)]
mod tests {
    use engine::environment::Environment;
    use rstest::rstest;

    use super::*;

    fn container(name: &str, image: &str, arguments: &[&str]) -> Container {
        Container {
            name: name.to_owned(),
            image: image.to_owned(),
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            ..Container::default()
        }
    }

    fn set(containers: Vec<Container>) -> DaemonSet {
        DaemonSet {
            host_network: true,
            containers,
            ..DaemonSet::default()
        }
    }

    #[rstest]
    #[case::by_command(container("net", "registry:5000/mine@sha256:00", &["/opt/bin/flanneld", "--ip-masq"]), true)]
    #[case::by_shell(container("net", "mine", &["sh", "-c", "exec /opt/bin/flanneld --kube-subnet-mgr"]), true)]
    #[case::by_name(container("kube-flannel", "mine", &[]), true)]
    #[case::by_image(container("net", "localhost:5000/flannel-io/flannel:v0.28.4", &[]), true)]
    #[case::mirrored(container("net", "rancher/mirrored-flannelcni-flannel:v0.15.1", &[]), true)]
    #[case::plugin_installer(container("net", "ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1", &["cp"]), false)]
    #[case::other(container("kube-proxy", "registry.k8s.io/kube-proxy:v1.36.3", &["kube-proxy"]), false)]
    fn flannel_is_recognized_by_its_container(#[case] container: Container, #[case] expected: bool) {
        assert_eq!(looks_like_flannel(&set(vec![container])), expected);
    }

    /// A user can choose any name for a container.
    #[test]
    fn a_daemon_set_without_host_network_is_no_network() {
        for name in ["kube-flannel", "calico-node"] {
            let set = DaemonSet {
                host_network: false,
                ..set(vec![container(name, "flannel-io/flannel:v1", &["flanneld"])])
            };
            assert!(!is_of_a_network(&set) && !looks_like_canal(&set), "{name}");
        }
    }

    #[test]
    fn an_init_container_with_flanneld_is_no_network() {
        let init = Container {
            init: true,
            ..container("kube-flannel", "flannel", &["flanneld"])
        };
        assert!(!looks_like_flannel(&set(vec![init])));
    }

    #[test]
    fn flannel_and_calico_in_one_pod_are_canal() {
        let flannel = container("kube-flannel", "flannel:v0.28.4", &["/opt/bin/flanneld"]);
        let calico = container("calico-node", "calico/node:v3.31.7", &[]);
        let both = set(vec![calico.clone(), flannel.clone()]);
        assert!(looks_like_canal(&both) && !looks_like_flannel(&both) && is_of_a_network(&both));
        assert!(runs_calico_node(&set(vec![calico.clone()])) && !looks_like_canal(&set(vec![calico])));
        assert!(!looks_like_canal(&set(vec![flannel])));
        assert!(!is_of_a_network(&set(vec![container("log", "log", &[])])));
    }

    #[test]
    fn an_argument_overrides_the_environment() {
        let mut container = container("c", "i", &[]);
        container.environment = Environment::plain([
            ("FLANNELD_KUBE_ANNOTATION_PREFIX", "a.b"),
            ("FLANNELD_KUBE_SUBNET_MGR", "true"),
        ]);
        assert_eq!(
            argument(&container, "kube-annotation-prefix").as_deref(),
            Some("a.b")
        );
        assert!(has_switch(&container, "kube-subnet-mgr"));
        container.arguments = vec![
            "--kube-annotation-prefix=c.d".to_owned(),
            "--kube-subnet-mgr=false".to_owned(),
        ];
        assert_eq!(
            argument(&container, "kube-annotation-prefix").as_deref(),
            Some("c.d")
        );
        assert!(!has_switch(&container, "kube-subnet-mgr"));
    }
}
