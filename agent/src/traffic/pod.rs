//! The traffic pod: stays connected to the agent of its node, and sends the probes of the agent's task.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::{MissedTickBehavior, interval};

use super::line::{self, Hello, REPORT, Task};
use super::prober::Prober;

/// Pause before the pod connects to the agent again: the agent restarts now and then.
const RECONNECT: Duration = Duration::from_millis(500);

/// Sends until the process ends. Without the agent the pod continues with its last task, and reports the counts later.
pub async fn send(folder: &Path, pod_uid: &str) {
    let mut prober = Prober::default();
    let mut is_logged = false;
    loop {
        match converse(folder, pod_uid, &mut prober, &mut is_logged).await {
            Ok(()) => tracing::info!("the agent closed the connection; reconnecting"),
            Err(error) if !is_logged => {
                is_logged = true;
                tracing::warn!(%error, folder = %folder.display(), "connecting to the agent failed; retrying");
            }
            Err(_) => {}
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn converse(folder: &Path, pod_uid: &str, prober: &mut Prober, is_logged: &mut bool) -> io::Result<()> {
    let stream = UnixStream::connect(folder.join(line::SOCKET)).await?;
    let (read, mut write) = stream.into_split();
    let hello = Hello {
        pod_uid: pod_uid.to_owned(),
    };
    line::write(&mut write, &hello).await?;
    *is_logged = false;
    tracing::info!("connected to the agent");
    let mut ticks = interval(REPORT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // A started line is read to its end, also while reports are sent.
    let mut next = Box::pin(read_task(BufReader::new(read)));
    loop {
        tokio::select! {
            (task, rest) = &mut next => {
                let Some(task) = task? else { return Ok(()) };
                tracing::info!(flows = task.flows.len(), "task received");
                prober.set(&task);
                next = Box::pin(read_task(rest));
            }
            _ = ticks.tick() => line::write(&mut write, &prober.counts()).await?,
        }
    }
}

type Lines = BufReader<OwnedReadHalf>;

async fn read_task(mut lines: Lines) -> (io::Result<Option<Task>>, Lines) {
    let task = line::read(&mut lines).await;
    (task, lines)
}
