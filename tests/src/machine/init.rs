//! Process 1: prepares the machine, then keeps the services running until it is killed.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail};

use super::service::Services;
use super::{MachineSpec, Reply, Request, root_file_system};

/// Runs as process 1 of a machine. Only the holder calls it.
pub fn init(file: &Path) -> Result<()> {
    if std::process::id() != 1 {
        bail!("machine-init is process 1 of a lab machine; it cannot be started manually");
    }
    // The machine ends with its holder.
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)
        .context("tie process 1 to its holder")?;
    let spec = MachineSpec::read(file)?;
    let socket = MachineSpec::socket(&spec.directory);
    match std::fs::remove_file(&socket) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("remove the old {}", socket.display())),
    }
    nix::unistd::sethostname(&spec.name).context("set the host name")?;
    run("ip", &["link", "set", "lo", "up"])?;
    let listener = UnixListener::bind(&socket).with_context(|| format!("listen on {}", socket.display()))?;
    root_file_system::enter(&spec)?;
    for (name, value) in &spec.sysctls {
        let path = Path::new("/proc/sys").join(name);
        std::fs::write(&path, value).with_context(|| format!("write {value:?} to {}", path.display()))?;
    }
    println!("machine {} is up", spec.name);

    let services = Services::new("/var/log/lab".into());
    let reaper = Arc::clone(&services);
    thread::Builder::new()
        .name("reaper".into())
        .spawn(move || reaper.reap())
        .context("start the reaper")?;
    for connection in listener.incoming() {
        let services = Arc::clone(&services);
        let connection = connection.context("accept on the control socket")?;
        thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                if let Err(error) = answer(&services, &connection) {
                    println!("control: {error:#}");
                }
            })
            .context("start a thread for a request")?;
    }
    Ok(())
}

fn answer(services: &Arc<Services>, connection: &UnixStream) -> Result<()> {
    let mut line = String::new();
    BufReader::new(connection)
        .read_line(&mut line)
        .context("read the request")?;
    let reply = match serde_json::from_str::<Request>(&line).context("parse the request") {
        Ok(request) => match perform(services, request) {
            Ok(reply) => reply,
            Err(error) => Reply::Failed(format!("{error:#}")),
        },
        Err(error) => Reply::Failed(format!("{error:#}")),
    };
    let mut text = serde_json::to_string(&reply)?;
    text.push('\n');
    let mut out = connection;
    out.write_all(text.as_bytes()).context("send the reply")
}

fn perform(services: &Arc<Services>, request: Request) -> Result<Reply> {
    match request {
        Request::Start(service) => services.start(service).map(|()| Reply::Done),
        Request::Stop {
            name,
            grace_milliseconds,
        } => services
            .stop(&name, std::time::Duration::from_millis(grace_milliseconds))
            .map(|()| Reply::Done),
        Request::Forget { name } => services.forget(&name).map(|()| Reply::Done),
        Request::Status => Ok(Reply::Status(services.status())),
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        bail!(
            "{program} {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
