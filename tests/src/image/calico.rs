//! The two images of Calico: real or stand-in.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Tree;
use super::archive::Image;
use super::catalog::{Sources, filter_tools};

/// Starts calico-node's parts and restarts them when they end, as the real image's supervisor does.
pub(super) const START: &str = include_str!("calico-node.sh");
/// A setting for a Felix that was built without cgo: such a Felix cannot call libbpf, and would end.
pub(super) const WITHOUT_CGO: [(&str, &str); 2] = [
    ("FELIX_DebugSkipCTLBCleanup", "true"),
    ("FELIX_XDPENABLED", "false"),
];
/// The additional programs in the real image.
pub(super) const PLUGINS: [&str; 5] = ["bandwidth", "host-local", "loopback", "portmap", "tuning"];

/// The source of Calico.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Calico {
    /// The lab's own stand-in: one program that plays all parts.
    StandIn(PathBuf),
    /// Two releases of Calico with etcd, for a conversion from one to the other.
    WithEtcd {
        /// Plays v2.6, and v3 or the missing parts of the real v3.
        stand_in: PathBuf,
        /// The real v3, if used.
        real: Option<RealCalico>,
    },
    /// The real one.
    Real(RealCalico),
}

/// Programs of the real Calico.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RealCalico {
    /// The program `calico-node`.
    pub node: PathBuf,
    /// The program `calico`: CNI and IPAM plugin.
    pub plugin: PathBuf,
    /// The program `install` of the CNI image: real or stand-in, which does the same.
    pub install: PathBuf,
    /// The programs of its controllers, if they were built: only a Calico with etcd needs them.
    pub controllers: Option<RealControllers>,
}

/// Programs of the image of Calico's controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RealControllers {
    /// The program `kube-controllers`.
    pub controllers: PathBuf,
    /// The program `check-status`: their readiness probe.
    pub status: PathBuf,
}

impl Calico {
    /// The name in images and reports.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::StandIn(_) | Self::WithEtcd { .. } => "a stand-in for Calico",
            Self::Real(_) => "Calico",
        }
    }

    fn node_program(&self) -> &Path {
        match self {
            Self::StandIn(program)
            | Self::WithEtcd {
                stand_in: program, ..
            } => program,
            Self::Real(real) => &real.node,
        }
    }
}

/// The version tag in images.
pub(super) fn variables(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

pub(super) fn node(sources: &Sources, calico: &Calico) -> Result<Image> {
    let mut tree = Tree::default();
    tree.program("usr/bin/calico-node", calico.node_program())?;
    filter_tools(&mut tree)?;
    tree.busybox()?;
    match calico {
        // Started under this name, the program plays the supervisor, too.
        Calico::StandIn(_) | Calico::WithEtcd { .. } => {
            tree.link("usr/sbin/start_runit", "/usr/bin/calico-node");
        }
        Calico::Real(_) => tree.bytes("usr/sbin/start_runit", 0o755, START.as_bytes()),
    }
    Ok(Image {
        name: sources.names.calico_node.clone(),
        tree,
        entrypoint: vec!["/usr/sbin/start_runit".to_owned()],
        environment: variables(&WITHOUT_CGO),
        description: format!("{}: node, packed by the replumb lab", calico.describe()),
    })
}

pub(super) fn cni(sources: &Sources, calico: &Calico) -> Result<Image> {
    let mut tree = Tree::default();
    tree.busybox()?;
    match calico {
        Calico::Real(real) => {
            tree.program("opt/cni/bin/calico", &real.plugin)?;
            tree.program("opt/cni/bin/calico-ipam", &real.plugin)?;
            tree.program("opt/cni/bin/install", &real.install)?;
        }
        // One program under three names: every node imports the image.
        Calico::StandIn(program)
        | Calico::WithEtcd {
            stand_in: program, ..
        } => {
            tree.program("opt/cni/bin/calico", program)?;
            for name in ["calico-ipam", "install"] {
                tree.link(&format!("opt/cni/bin/{name}"), "/opt/cni/bin/calico");
            }
        }
    }
    for name in PLUGINS {
        tree.program(&format!("opt/cni/bin/{name}"), &sources.plugins.join(name))?;
    }
    tree.file("opt/cni/bin/flannel", 0o755, &sources.binaries.join("flannel"))?;
    Ok(Image {
        name: sources.names.calico_cni.clone(),
        tree,
        entrypoint: Vec::new(),
        environment: Vec::new(),
        description: format!("{}: CNI plugins, packed by the replumb lab", calico.describe()),
    })
}
