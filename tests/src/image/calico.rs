//! The two images of Calico: the real one, or its stand-in.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Tree;
use super::archive::Image;
use super::catalog::{Sources, filter_tools};

/// Starts calico-node's parts and starts them again when they end, as the real image's supervisor does.
const START: &str = include_str!("calico-node.sh");
/// What the real image brings besides Calico's own plugins.
pub(super) const PLUGINS: [&str; 5] = ["bandwidth", "host-local", "loopback", "portmap", "tuning"];

/// Where Calico comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Calico {
    /// The lab's own stand-in: one program that plays all parts.
    StandIn(PathBuf),
    /// Two releases of Calico with etcd, played by the stand-in: for a conversion from one to the other.
    WithEtcd(PathBuf),
    /// The real one.
    Real {
        /// The program `calico-node`.
        node: PathBuf,
        /// The program `calico`: CNI and IPAM plugin.
        plugin: PathBuf,
        /// The program `install` of the CNI image: the real one, or the stand-in, which can do that, too.
        install: PathBuf,
    },
}

impl Calico {
    /// How images and reports name it.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::StandIn(_) | Self::WithEtcd(_) => "a stand-in for Calico",
            Self::Real { .. } => "Calico",
        }
    }

    fn node_program(&self) -> &Path {
        match self {
            Self::StandIn(program) | Self::WithEtcd(program) => program,
            Self::Real { node, .. } => node,
        }
    }
}

pub(super) fn node(sources: &Sources, calico: &Calico) -> Result<Image> {
    let mut tree = Tree::default();
    tree.program("usr/bin/calico-node", calico.node_program())?;
    filter_tools(&mut tree)?;
    tree.busybox()?;
    match calico {
        // It plays the supervisor as well when it is started under this name.
        Calico::StandIn(_) | Calico::WithEtcd(_) => tree.link("usr/sbin/start_runit", "/usr/bin/calico-node"),
        Calico::Real { .. } => tree.bytes("usr/sbin/start_runit", 0o755, START.as_bytes()),
    }
    Ok(Image {
        name: sources.names.calico_node.clone(),
        tree,
        entrypoint: vec!["/usr/sbin/start_runit".to_owned()],
        environment: vec![
            // A Felix that was built without cgo cannot call libbpf, and ends if it tries.
            ("FELIX_DebugSkipCTLBCleanup".to_owned(), "true".to_owned()),
            ("FELIX_XDPENABLED".to_owned(), "false".to_owned()),
        ],
        description: format!("{}: node, packed by the replumb lab", calico.describe()),
    })
}

pub(super) fn cni(sources: &Sources, calico: &Calico) -> Result<Image> {
    let mut tree = Tree::default();
    tree.busybox()?;
    match calico {
        Calico::Real { plugin, install, .. } => {
            tree.program("opt/cni/bin/calico", plugin)?;
            tree.program("opt/cni/bin/calico-ipam", plugin)?;
            tree.program("opt/cni/bin/install", install)?;
        }
        // One program by three names: every node imports it.
        Calico::StandIn(program) | Calico::WithEtcd(program) => {
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
