//! The traffic pod: keeps in touch with the agent of its node, and sends what that says.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::{MissedTickBehavior, interval};

use super::line::{self, Hello, REPORT, Task};
use super::prober::Prober;

/// Pause before the agent is looked for again: it is started anew now and then.
const AGAIN: Duration = Duration::from_millis(500);

/// Sends for as long as the process lives. Without the agent it goes on with what it was told last: what is counted
/// meanwhile is told later.
pub async fn send(folder: &Path, pod_uid: &str) {
    let mut prober = Prober::default();
    let mut complained = false;
    loop {
        match converse(folder, pod_uid, &mut prober, &mut complained).await {
            Ok(()) => tracing::info!("the agent has closed; looking for it again"),
            Err(error) if !complained => {
                complained = true;
                tracing::warn!(%error, folder = %folder.display(), "the agent is not there; looking for it again");
            }
            Err(_) => {}
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn converse(
    folder: &Path,
    pod_uid: &str,
    prober: &mut Prober,
    complained: &mut bool,
) -> io::Result<()> {
    let stream = UnixStream::connect(folder.join(line::SOCKET)).await?;
    let (read, mut write) = stream.into_split();
    let hello = Hello {
        pod_uid: pod_uid.to_owned(),
    };
    line::write(&mut write, &hello).await?;
    *complained = false;
    tracing::info!("in touch with the agent");
    let mut ticks = interval(REPORT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // A line that has begun is read to its end, whatever else happens meanwhile.
    let mut next = Box::pin(read_task(BufReader::new(read)));
    loop {
        tokio::select! {
            (task, rest) = &mut next => {
                let Some(task) = task? else { return Ok(()) };
                tracing::info!(flows = task.flows.len(), "a new task");
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
