//! Telling the `DaemonSet`s of networks apart by what they run, not by what they are called.

use crate::cluster::{Container, DaemonSet};

/// What a shell takes away around a word.
const QUOTES: [char; 3] = ['"', '\'', ';'];

/// Whether the `DaemonSet` runs flannel, and flannel alone.
pub fn looks_like_flannel(set: &DaemonSet) -> bool {
    flanneld(set).is_some() && !looks_like_calico(set)
}

/// Whether the `DaemonSet` runs flannel and Calico in one pod.
pub fn looks_like_canal(set: &DaemonSet) -> bool {
    flanneld(set).is_some() && looks_like_calico(set)
}

/// Whether the `DaemonSet` runs Calico's node agent.
pub fn looks_like_calico(set: &DaemonSet) -> bool {
    set.containers.iter().any(|container| {
        !container.init && (container.name == "calico-node" || runs(container, "calico-node"))
    })
}

/// Whether the `DaemonSet`'s `ConfigMap`s say something about a network.
pub fn is_of_a_network(set: &DaemonSet) -> bool {
    flanneld(set).is_some() || looks_like_calico(set)
}

/// The container that runs flanneld.
pub fn flanneld(set: &DaemonSet) -> Option<&Container> {
    let main = || set.containers.iter().filter(|container| !container.init);
    main()
        .find(|container| runs(container, "flanneld"))
        .or_else(|| main().find(|container| container.name == "kube-flannel"))
        .or_else(|| main().find(|container| repository(&container.image).ends_with("flannel")))
}

/// Value of one of the container's options: `--name=value`, `--name value`, or flanneld's environment variable
/// for it. Arguments win over the environment, the last one over those before it.
pub fn argument(container: &Container, name: &str) -> Option<String> {
    let words = words(container);
    let mut found = None;
    for (index, word) in words.iter().enumerate() {
        let Some(option) = option(word) else { continue };
        match option.split_once('=') {
            Some((key, value)) if key == name => found = Some(value.trim_matches(QUOTES).to_owned()),
            None if option == name => {
                let next = words.get(index + 1).filter(|next| !next.starts_with('-'));
                found = next.map(|next| (*next).to_owned());
            }
            Some(_) | None => {}
        }
    }
    found
        .or_else(|| environment(container, name))
        .filter(|value| !value.is_empty())
}

/// Whether an option without a value is switched on, by argument or environment.
pub fn has_switch(container: &Container, name: &str) -> bool {
    let is_true = |value: &str| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True");
    words(container)
        .iter()
        .rev()
        .filter_map(|word| option(word))
        .find_map(|option| match option.split_once('=') {
            Some((key, value)) => (key == name).then(|| is_true(value)),
            None => (option == name).then_some(true),
        })
        .or_else(|| environment(container, name).map(|value| is_true(&value)))
        .unwrap_or(false)
}

/// flanneld reads `FLANNELD_KUBE_SUBNET_MGR` for `--kube-subnet-mgr`.
fn environment(container: &Container, name: &str) -> Option<String> {
    let variable = format!("FLANNELD_{}", name.replace('-', "_").to_uppercase());
    container.environment.get(&variable).cloned()
}

/// The arguments in single words, as a shell would cut them: some manifests start flanneld by `sh -c`.
fn words(container: &Container) -> Vec<&str> {
    container
        .arguments
        .iter()
        .flat_map(|argument| argument.split_whitespace())
        .map(|word| word.trim_matches(QUOTES))
        .collect()
}

/// An option without its dashes. Go takes one or two.
fn option(word: &str) -> Option<&str> {
    word.strip_prefix("--")
        .or_else(|| word.strip_prefix('-'))
        .filter(|option| !option.is_empty())
}

fn runs(container: &Container, program: &str) -> bool {
    words(container)
        .iter()
        .any(|word| word.rsplit('/').next() == Some(program))
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
    fn flannel_is_what_runs_flanneld(#[case] container: Container, #[case] expected: bool) {
        assert_eq!(looks_like_flannel(&set(vec![container])), expected);
    }

    #[test]
    fn an_init_container_runs_no_network() {
        let init = Container {
            init: true,
            ..container("kube-flannel", "flannel", &["flanneld"])
        };
        assert!(!looks_like_flannel(&set(vec![init])));
    }

    #[test]
    fn canal_is_both_and_neither_alone() {
        let flannel = container("kube-flannel", "flannel:v0.28.4", &["/opt/bin/flanneld"]);
        let calico = container("calico-node", "calico/node:v3.31.7", &[]);
        let both = set(vec![calico.clone(), flannel.clone()]);
        assert!(looks_like_canal(&both) && !looks_like_flannel(&both) && is_of_a_network(&both));
        assert!(looks_like_calico(&set(vec![calico.clone()])) && !looks_like_canal(&set(vec![calico])));
        assert!(!looks_like_canal(&set(vec![flannel])));
        assert!(!is_of_a_network(&set(vec![container("log", "log", &[])])));
    }

    #[rstest]
    #[case::equals(&["--kube-annotation-prefix=a.b"], Some("a.b"))]
    #[case::one_dash(&["-kube-annotation-prefix=a.b"], Some("a.b"))]
    #[case::two_words(&["--kube-annotation-prefix", "a.b", "--ip-masq"], Some("a.b"))]
    #[case::shell(&["sh", "-c", "flanneld --kube-annotation-prefix='a.b' --ip-masq"], Some("a.b"))]
    #[case::last_wins(&["--kube-annotation-prefix=x.y", "--kube-annotation-prefix=a.b"], Some("a.b"))]
    #[case::no_value(&["--kube-annotation-prefix", "--ip-masq"], None)]
    #[case::absent(&["--kube-annotation-prefixes=a.b"], None)]
    fn values_of_options(#[case] arguments: &[&str], #[case] expected: Option<&str>) {
        let found = argument(&container("c", "i", arguments), "kube-annotation-prefix");
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn the_environment_counts_where_no_argument_does() {
        let mut container = container("c", "i", &[]);
        container
            .environment
            .insert("FLANNELD_KUBE_ANNOTATION_PREFIX".to_owned(), "a.b".to_owned());
        container
            .environment
            .insert("FLANNELD_KUBE_SUBNET_MGR".to_owned(), "true".to_owned());
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

    #[rstest]
    #[case(&["--kube-subnet-mgr"], true)]
    #[case(&["-kube-subnet-mgr=1"], true)]
    #[case(&["--kube-subnet-mgr=false"], false)]
    #[case(&["--kube-subnet-mgr", "--kube-subnet-mgr=false"], false)]
    #[case(&["--ip-masq"], false)]
    fn switches(#[case] arguments: &[&str], #[case] expected: bool) {
        assert_eq!(
            has_switch(&container("c", "i", arguments), "kube-subnet-mgr"),
            expected
        );
    }
}
