//! The Go modules that the lab builds: each has a folder in `tests/modules` whose go.mod pins every version.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// One module of `tests/modules`.
#[derive(Debug)]
pub struct Module {
    /// The folder.
    pub folder: &'static str,
    /// The name in messages.
    pub title: &'static str,
    /// The module whose version is the version of the programs.
    pub versioned_by: &'static str,
    /// Build tags.
    pub tags: &'static [&'static str],
    /// Targets of the build: `tool` for the tools that go.mod lists, `.` for the module's own main.
    pub package: &'static str,
    /// Whether the version is set in the programs with the linker flags of Kubernetes.
    pub stamps_version: bool,
    /// Programs whose usual name differs from that of the build: (built as, known as).
    pub renamed: &'static [(&'static str, &'static str)],
    /// The resulting programs, by their usual names.
    pub outputs: &'static [&'static str],
}

/// Flags that change how a package is compiled.
const FLAGS: [&str; 3] = ["-mod=readonly", "-buildvcs=false", "-trimpath"];

/// All modules, the quick ones first: problems of the tool chain show early.
pub static MODULES: [Module; 7] = [
    Module {
        folder: "cni",
        title: "flannel's CNI plugin",
        versioned_by: "github.com/containernetworking/plugins",
        tags: &[],
        package: "tool",
        stamps_version: false,
        renamed: &[],
        outputs: &["flannel"],
    },
    Module {
        folder: "promlint",
        title: "Prometheus' linter for metrics",
        versioned_by: "github.com/prometheus/client_golang",
        tags: &[],
        package: ".",
        stamps_version: false,
        renamed: &[],
        outputs: &["promlint"],
    },
    Module {
        folder: "flannel",
        title: "flanneld",
        versioned_by: "github.com/flannel-io/flannel",
        tags: &[],
        package: ".",
        stamps_version: false,
        renamed: &[("flannel", "flanneld")],
        outputs: &["flanneld"],
    },
    Module {
        folder: "containerd",
        title: "containerd",
        versioned_by: "github.com/containerd/containerd/v2",
        tags: &["no_btrfs", "no_devmapper", "no_zfs"],
        package: "tool",
        stamps_version: false,
        renamed: &[],
        outputs: &["containerd", "containerd-shim-runc-v2", "ctr"],
    },
    Module {
        folder: "coredns",
        title: "CoreDNS",
        versioned_by: "github.com/coredns/coredns",
        tags: &[],
        package: ".",
        stamps_version: false,
        renamed: &[],
        outputs: &["coredns"],
    },
    Module {
        folder: "kwok",
        title: "kwok, which plays kubelets",
        versioned_by: "sigs.k8s.io/kwok",
        tags: &[],
        package: "tool",
        stamps_version: false,
        renamed: &[],
        outputs: &["kwok"],
    },
    Module {
        folder: "kubernetes",
        title: "Kubernetes and etcd",
        versioned_by: "k8s.io/kubernetes",
        tags: &[],
        package: "tool",
        stamps_version: true,
        renamed: &[("server", "etcd")],
        outputs: &[
            "etcd",
            "kube-apiserver",
            "kube-controller-manager",
            "kube-proxy",
            "kube-scheduler",
            "kubectl",
            "kubelet",
        ],
    },
];

impl Module {
    /// The folder with go.mod.
    pub fn path(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("modules")
            .join(self.folder)
    }

    /// The version that go.mod pins.
    pub fn version(&self) -> Result<String> {
        let file = self.path().join("go.mod");
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        required_version(&text, self.versioned_by)
            .map(str::to_owned)
            .with_context(|| format!("{} has no version of {}", file.display(), self.versioned_by))
    }

    /// The arguments of `go`, without `-o` and its value.
    pub fn arguments(&self) -> Result<Vec<String>> {
        let mut linker = "-s -w".to_owned();
        if self.stamps_version {
            // kubectl cannot parse the version of a server that was built without these flags.
            let version = self.version()?;
            let mut numbers = version.trim_start_matches('v').split('.');
            let (major, minor) = (
                numbers.next().unwrap_or_default(),
                numbers.next().unwrap_or_default(),
            );
            let values = [
                ("gitVersion", version.as_str()),
                ("gitMajor", major),
                ("gitMinor", minor),
                ("gitTreeState", "clean"),
            ];
            for (name, value) in values {
                write!(linker, " -X k8s.io/component-base/version.{name}={value}")?;
            }
        }
        let mut arguments: Vec<String> = ["build", "-v"]
            .iter()
            .chain(&FLAGS)
            .map(|flag| (*flag).to_owned())
            .collect();
        arguments.push(format!("-ldflags={linker}"));
        arguments.push(self.tags());
        Ok(arguments)
    }

    /// The arguments of `go vet` or `go test` of the whole module. They compile like the build: other flags would
    /// compile every dependency a second time.
    pub fn check(&self, what: &str) -> Vec<String> {
        let mut arguments: Vec<String> = std::iter::once(&what)
            .chain(&FLAGS)
            .map(|flag| (*flag).to_owned())
            .collect();
        arguments.push(self.tags());
        arguments.push("./...".to_owned());
        arguments
    }

    fn tags(&self) -> String {
        format!("-tags={}", self.tags.join(","))
    }

    /// A hash of all inputs of the programs: sources, pinned versions, flags, tool chain.
    pub fn stamp(&self, tool_chain: &str) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(format!("1\n{tool_chain}\n{}\n", self.arguments()?.join("\n")));
        hash.update(format!(
            "{}\n{:?}\n{:?}\n",
            self.package, self.renamed, self.outputs
        ));
        let folder = self.path();
        let mut files = Vec::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let extension = path.extension().unwrap_or_default();
            if !name.ends_with("_test.go") && ["go", "mod", "sum"].iter().any(|known| extension == *known) {
                files.push((name, path));
            }
        }
        files.sort();
        for (name, path) in files {
            let contents = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            hash.update(format!("{name} {:x}\n", Sha256::digest(contents)));
        }
        Ok(format!("{:x}", hash.finalize())[..16].to_owned())
    }
}

/// The version of a module that a go.mod requires.
pub fn required_version<'a>(module_file: &'a str, module: &str) -> Option<&'a str> {
    module_file.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_whitespace();
        (words.next() == Some(module))
            .then(|| words.next())
            .flatten()
            .filter(|version| version.starts_with('v'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_both_forms_of_require() {
        let text = "module m\nrequire a.org/b v1.2.3\nrequire (\n\ta.org/c/v2 v2.0.0 // indirect\n)\nreplace a.org/d => a.org/d v9.9.9\n";
        assert_eq!(required_version(text, "a.org/b"), Some("v1.2.3"));
        assert_eq!(required_version(text, "a.org/c/v2"), Some("v2.0.0"));
        assert_eq!(required_version(text, "a.org/d"), None);
    }

    #[test]
    fn every_module_has_its_own_version_and_stamp() {
        let mut stamps: Vec<String> = MODULES.iter().map(|module| module.stamp("go").unwrap()).collect();
        assert_eq!(
            stamps[0],
            MODULES[0].stamp("go").unwrap(),
            "the same sources give the same stamp"
        );
        assert_ne!(stamps[0], MODULES[0].stamp("another go").unwrap());
        stamps.sort();
        stamps.dedup();
        assert_eq!(stamps.len(), MODULES.len());
        for module in &MODULES {
            assert!(module.version().unwrap().starts_with('v'), "{}", module.folder);
        }
    }

    #[test]
    fn checks_compile_with_the_flags_of_the_build() {
        for module in &MODULES {
            let build = module.arguments().unwrap();
            assert_eq!(
                build[..5],
                ["build", "-v", "-mod=readonly", "-buildvcs=false", "-trimpath"]
            );
            for what in ["vet", "test"] {
                let check = module.check(what);
                let (first, last) = (check.first().unwrap(), check.last().unwrap());
                assert_eq!((first.as_str(), last.as_str()), (what, "./..."));
                // Linker flags change no package.
                let compiled = |flag: &&String| flag.starts_with('-') && !["-v"].contains(&flag.as_str());
                let of_build = build.iter().filter(compiled);
                let of_build: Vec<_> = of_build.filter(|flag| !flag.starts_with("-ldflags=")).collect();
                assert_eq!(check.iter().filter(compiled).collect::<Vec<_>>(), of_build);
            }
        }
    }

    #[test]
    fn kubernetes_programs_have_their_version_in_the_linker_flags() {
        let module = MODULES
            .iter()
            .find(|module| module.folder == "kubernetes")
            .unwrap();
        let version = module.version().unwrap();
        let arguments = module.arguments().unwrap().join(" ");
        assert!(
            arguments.contains(&format!("version.gitVersion={version} ")),
            "{arguments}"
        );
        assert!(arguments.contains("version.gitMajor=1 "), "{arguments}");
    }
}
