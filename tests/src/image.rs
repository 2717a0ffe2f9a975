//! The images of the lab: written by the lab itself from programs of this machine, as archives that a container
//! runtime imports. No image is pulled.
//!
//! An [`Image`] is a [`Tree`] of files and a start command. [`Image::archive`] writes it as an OCI layout in a tar
//! file; the same contents always give the same bytes, and an existing archive is not written again.

mod archive;
mod calico;
mod calico_etcd;
mod catalog;
mod hashes;
mod libraries;
mod tar;
mod tree;

pub use archive::Image;
pub use catalog::{Calico, RealCalico, RealControllers, Sources, all, archives};
pub use tree::Tree;
