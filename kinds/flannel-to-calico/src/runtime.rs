//! What a host says about the container runtime's own choice of a pod network: options of its command line and keys of its
//! configuration. Pure.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml_edit::{DocumentMut, Item};

/// Process name of CRI-O.
pub const CRIO: &str = "crio";
/// Process name of the CRI server for Docker.
pub const CRI_DOCKERD: &str = "cri-dockerd";
/// Folder of CRI-O's configuration.
pub const CRIO_FOLDER: &str = "/etc/crio";
/// The file of CRI-O in this folder.
pub const CRIO_FILE: &str = "crio.conf";
/// The subfolder, of which CRI-O reads all files in the order of their names.
pub const CRIO_SUBFOLDER: &str = "crio.conf.d";
/// Most characters kept of a value.
const LONGEST: usize = 256;

/// `Runtime` is what the container runtime of the host sets about the pod network. Runtimes other than CRI-O and cri-dockerd choose the
/// network by the CNI configuration directory alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Runtime {
    /// `program` is the process name of the runtime: `crio` or `cri-dockerd`.
    pub program: String,
    /// `settings` is the list of settings in effect that have a value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<RuntimeSetting>,
    /// `problem` is why the settings could not be read. Unset if they were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// `RuntimeSetting` is a setting of the container runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeSetting {
    /// `name` is the setting. Possible values: `Network`: the name of the CNI network of pods. `ConfigurationDirectory`: the CNI
    /// configuration directory. `CacheDirectory`: the directory below which libcni keeps its records of pods. `Plugin`: the kind of
    /// network plugin.
    pub name: SettingName,
    /// `place` is the file, or the command line.
    pub place: String,
    /// `key` is the key in the file, or the option.
    pub key: String,
    /// `value` is the value.
    pub value: String,
}

/// `SettingName` is what a setting of a container runtime decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SettingName {
    /// The name of the CNI network of pods.
    Network,
    /// The CNI configuration directory.
    ConfigurationDirectory,
    /// The directory below which libcni keeps its records of pods.
    CacheDirectory,
    /// The kind of network plugin.
    Plugin,
}

/// Keys of CRI-O's configuration, in table `crio.network`.
const CRIO_KEYS: [(&str, SettingName); 2] = [
    ("cni_default_network", SettingName::Network),
    ("network_dir", SettingName::ConfigurationDirectory),
];
/// Options of CRI-O for the same.
const CRIO_OPTIONS: [(&str, SettingName); 2] = [
    ("cni-default-network", SettingName::Network),
    ("cni-config-dir", SettingName::ConfigurationDirectory),
];
/// Options of CRI-O for other places of its configuration.
const CRIO_PLACES: [(&str, &str, &str); 2] = [
    ("config", "c", "/etc/crio/crio.conf"),
    ("config-dir", "d", "/etc/crio/crio.conf.d"),
];
/// Options of cri-dockerd.
const DOCKER_OPTIONS: [(&str, SettingName); 3] = [
    ("network-plugin", SettingName::Plugin),
    ("cni-conf-dir", SettingName::ConfigurationDirectory),
    ("cni-cache-dir", SettingName::CacheDirectory),
];

/// A file of CRI-O: its path on the host and its text, or why it cannot be read.
pub type RuntimeFile = (String, Result<String, String>);

impl Runtime {
    /// The settings of CRI-O. `files` are those of [`CRIO_FOLDER`] in the order in which CRI-O reads them, or why they cannot be listed.
    pub fn crio(arguments: &[String], files: &Result<Vec<RuntimeFile>, String>) -> Self {
        let mut runtime = Self::new(CRIO);
        for (long, short, usual) in CRIO_PLACES {
            let place = option(arguments, long).or_else(|| option(arguments, short));
            if let Some(place) = place.filter(|place| place.trim_end_matches('/') != usual) {
                let problem =
                    format!("CRI-O reads {place} (--{long}), and the agent reads {CRIO_FOLDER} only");
                runtime.problem.get_or_insert(problem);
            }
        }
        match files {
            Ok(files) => files.iter().for_each(|file| runtime.add_file(file)),
            Err(problem) => {
                runtime.problem.get_or_insert_with(|| problem.clone());
            }
        }
        runtime.add_options(arguments, &CRIO_OPTIONS);
        runtime
    }

    /// The settings of cri-dockerd, which has no file.
    pub fn cri_dockerd(arguments: &[String]) -> Self {
        let mut runtime = Self::new(CRI_DOCKERD);
        runtime.add_options(arguments, &DOCKER_OPTIONS);
        runtime
    }

    /// A runtime whose command line could not be read.
    pub fn unread(program: &str, problem: String) -> Self {
        Self {
            problem: Some(problem),
            ..Self::new(program)
        }
    }

    /// The setting of this name, if it has a value.
    pub fn setting(&self, name: SettingName) -> Option<&RuntimeSetting> {
        self.settings.iter().find(|setting| setting.name == name)
    }

    fn new(program: &str) -> Self {
        Self {
            program: program.to_owned(),
            settings: Vec::new(),
            problem: None,
        }
    }

    /// A later file overrules an earlier one, also by an empty value.
    fn add_file(&mut self, (path, text): &RuntimeFile) {
        let document = text.as_ref().map_err(Clone::clone).and_then(|text| {
            text.parse::<DocumentMut>()
                .map_err(|error| error.message().to_owned())
        });
        let document = match document {
            Ok(document) => document,
            Err(problem) => {
                self.problem.get_or_insert_with(|| format!("{path}: {problem}"));
                return;
            }
        };
        let network = document.get("crio").and_then(|crio| crio.get("network"));
        for (key, name) in CRIO_KEYS {
            if let Some(item) = network.and_then(|network| network.get(key)) {
                self.set(name, path, &format!("crio.network.{key}"), text_of(item));
            }
        }
    }

    fn add_options(&mut self, arguments: &[String], options: &[(&str, SettingName)]) {
        let place = format!("command line of {}", self.program);
        for (key, name) in options {
            if let Some(value) = option(arguments, key) {
                self.set(*name, &place, &format!("--{key}"), value);
            }
        }
    }

    fn set(&mut self, name: SettingName, place: &str, key: &str, value: &str) {
        self.settings.retain(|setting| setting.name != name);
        if !value.is_empty() {
            let value = value.chars().take(LONGEST).collect();
            let (place, key) = (place.to_owned(), key.to_owned());
            self.settings.push(RuntimeSetting {
                name,
                place,
                key,
                value,
            });
        }
    }
}

/// The text of a value. CRI-O does not start with a value of another type.
fn text_of(item: &Item) -> &str {
    item.as_str().unwrap_or_default()
}

/// The value of an option: `--name=value` or `--name value`, with one dash or two. The last one counts.
fn option<'arguments>(arguments: &'arguments [String], name: &str) -> Option<&'arguments str> {
    let mut found = None;
    let mut words = arguments.iter().peekable();
    while let Some(word) = words.next() {
        let Some(word) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            continue;
        };
        match word.split_once('=') {
            Some((key, value)) if key == name => found = Some(value),
            None if word == name => found = words.peek().map(|next| next.as_str()),
            Some(_) | None => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn files(texts: &[&str]) -> Vec<RuntimeFile> {
        let file = |(index, text): (usize, &&str)| (format!("/etc/crio/{index}"), Ok((*text).to_owned()));
        texts.iter().enumerate().map(file).collect()
    }

    fn network(runtime: &Runtime) -> Option<(&str, &str, &str)> {
        let found = runtime.setting(SettingName::Network)?;
        Some((&found.place, &found.key, &found.value))
    }

    /// openshift/microshift#711.
    #[test]
    fn the_network_of_a_file_is_named_with_its_key() {
        let text = "[crio]\n[crio.network]\n# chosen\ncni_default_network = \"cbr0\"\nplugin_dirs = [\"/opt/cni/bin\"]\n";
        let found = Runtime::crio(&words("/usr/bin/crio"), &Ok(files(&[text])));
        let key = "crio.network.cni_default_network";
        assert_eq!(network(&found), Some(("/etc/crio/0", key, "cbr0")));
        assert_eq!(found.problem, None);
    }

    #[rstest]
    #[case::a_later_file(&["[crio.network]\ncni_default_network='a'", "[crio.network]\ncni_default_network='b'"], "crio", Some("b"))]
    #[case::a_later_file_without(&["[crio.network]\ncni_default_network='a'", "[crio.runtime]\nx=1"], "crio", Some("a"))]
    #[case::an_empty_value(&["[crio.network]\ncni_default_network='a'", "[crio.network]\ncni_default_network=''"], "crio", None)]
    #[case::dotted_keys(&["crio.network.cni_default_network = \"a\""], "crio", Some("a"))]
    #[case::an_option(&["[crio.network]\ncni_default_network='a'"], "crio --cni-default-network=c", Some("c"))]
    #[case::an_option_of_two_words(&[], "crio --cni-default-network c --log x", Some("c"))]
    #[case::a_comment(&["[crio.network]\n# cni_default_network = \"a\""], "crio", None)]
    #[case::another_table(&["[crio]\ncni_default_network = \"a\""], "crio", None)]
    #[case::no_file(&[], "crio", None)]
    fn the_last_value_counts(#[case] texts: &[&str], #[case] line: &str, #[case] expected: Option<&str>) {
        let found = Runtime::crio(&words(line), &Ok(files(texts)));
        assert_eq!(network(&found).map(|(.., value)| value), expected);
        assert_eq!(found.problem, None);
    }

    #[rstest]
    #[case::malformed(Ok(files(&["[crio.network\n"])), "crio", "/etc/crio/0")]
    #[case::unreadable(Ok(vec![("/etc/crio/crio.conf".to_owned(), Err("denied".to_owned()))]), "crio", "/etc/crio/crio.conf: denied")]
    #[case::no_folder(Err("not mounted".to_owned()), "crio", "not mounted")]
    #[case::another_file(Ok(files(&[])), "crio --config /opt/crio.conf", "/opt/crio.conf")]
    #[case::another_folder(Ok(files(&[])), "crio -d=/opt/crio.d", "/opt/crio.d")]
    fn what_cannot_be_read_is_a_problem(
        #[case] files: Result<Vec<RuntimeFile>, String>,
        #[case] line: &str,
        #[case] words_of_problem: &str,
    ) {
        let problem = Runtime::crio(&words(line), &files).problem.unwrap();
        assert!(problem.contains(words_of_problem), "{problem}");
    }

    #[test]
    fn the_usual_places_are_no_problem() {
        let line = words("crio --config=/etc/crio/crio.conf --config-dir /etc/crio/crio.conf.d/");
        assert_eq!(Runtime::crio(&line, &Ok(files(&[]))).problem, None);
    }

    #[test]
    fn options_of_cri_dockerd_are_read() {
        let line =
            words("cri-dockerd --network-plugin=cni --cni-cache-dir /data/cni --cni-conf-dir=/etc/cni/net.d");
        let found = Runtime::cri_dockerd(&line);
        let value = |name| found.setting(name).map(|setting| setting.value.as_str());
        assert_eq!(value(SettingName::Plugin), Some("cni"));
        assert_eq!(value(SettingName::CacheDirectory), Some("/data/cni"));
        assert_eq!(value(SettingName::ConfigurationDirectory), Some("/etc/cni/net.d"));
        assert_eq!(value(SettingName::Network), None);
    }
}
