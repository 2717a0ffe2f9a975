//! A stand-in for Calico, for labs without the real one. One binary, several programs: selected by the name under
//! which it is started (`calico-node`, `calico`, `calico-ipam`, `install`, `start_runit`, `kube-controllers`,
//! `check-status`), or else by the first argument. A file beside it selects the version of Calico ([`version`]). The
//! stand-in is replumb's own, and its output says so. `README.md` lists the played parts and the missing ones.

mod banner;
mod cni;
mod datastore;
mod etcd;
#[cfg(test)]
mod fake_api;
mod felix;
mod host;
mod install;
mod ipam;
mod log;
mod node;
mod version;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    let name = Path::new(&program)
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    if let Some(code) = name.and_then(|name| run(&name, &arguments)) {
        return code;
    }
    // The same programs as first argument, where there are no links.
    if let Some((first, rest)) = arguments.split_first() {
        if let Some(code) = run(first, rest) {
            return code;
        }
        if ["--version", "-v", "version"].contains(&first.as_str()) {
            println!("{}", banner::text());
            return ExitCode::SUCCESS;
        }
    }
    eprintln!(
        "{}\nStart it as calico-node, calico, calico-ipam, install, start_runit, kube-controllers or check-status (by a link or a copy of that name), \
         or give one of these names as the first argument.",
        banner::text()
    );
    ExitCode::FAILURE
}

/// Runs the program of this name, if there is one.
fn run(name: &str, arguments: &[String]) -> Option<ExitCode> {
    match name {
        "calico-node" => Some(node::main(arguments)),
        "calico" => Some(cni::main(arguments, cni::Program::Network)),
        "calico-ipam" => Some(cni::main(arguments, cni::Program::Ipam)),
        "install" | "install-cni" | "install-cni.sh" => Some(install::main()),
        "kube-controllers" => Some(etcd::controllers::main()),
        "check-status" => Some(etcd::status::main(arguments)),
        "start_runit" => Some(node::start_runit()),
        _ => None,
    }
}
