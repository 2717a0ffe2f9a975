//! Answers on Felix's health port: `/readiness` and `/liveness`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Maximum time without a pass before the loop counts as dead, as in Felix.
const ALIVE: Duration = Duration::from_secs(90);

/// State of Felix.
#[derive(Debug)]
pub struct Health {
    started: Instant,
    ready: AtomicBool,
    last_pass: AtomicU64,
}

impl Health {
    /// Not ready, and alive.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            ready: AtomicBool::new(false),
            last_pass: AtomicU64::new(0),
        })
    }

    /// A pass has ended: Felix is in sync with the datastore, even if the kernel has refused some changes. The real
    /// Felix is also ready without its tunnel device.
    pub fn passed(&self) {
        self.last_pass
            .store(self.started.elapsed().as_secs(), Ordering::Relaxed);
        self.ready.store(true, Ordering::Relaxed);
    }

    /// Still alive, and not ready.
    pub fn alive(&self) {
        self.last_pass
            .store(self.started.elapsed().as_secs(), Ordering::Relaxed);
        self.ready.store(false, Ordering::Relaxed);
    }

    fn answer(&self, path: &str) -> &'static str {
        let age = self
            .started
            .elapsed()
            .as_secs()
            .saturating_sub(self.last_pass.load(Ordering::Relaxed));
        let good = match path {
            "/readiness" => self.ready.load(Ordering::Relaxed),
            "/liveness" => age < ALIVE.as_secs(),
            _ => return "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        };
        if good {
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        } else {
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        }
    }
}

/// Opens the port and answers in a separate task.
pub async fn serve(health: Arc<Health>, (host, port): (String, u16)) -> Result<()> {
    let listener = TcpListener::bind((host.as_str(), port))
        .await
        .with_context(|| format!("listen for health questions on {host}:{port}"))?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let health = Arc::clone(&health);
            tokio::spawn(async move {
                // A client that does not read the answer is no problem for Felix.
                let _ = tokio::time::timeout(Duration::from_secs(5), reply(stream, &health)).await;
            });
        }
    });
    Ok(())
}

async fn reply(mut stream: TcpStream, health: &Health) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|window| window == b"\r\n\r\n") && request.len() < 8192 {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => request.extend_from_slice(&buffer[..count]),
        }
    }
    let text = String::from_utf8_lossy(&request);
    let path = text.split_whitespace().nth(1).unwrap_or_default();
    stream.write_all(health.answer(path).as_bytes()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_after_a_pass() {
        let health = Health::new();
        assert!(health.answer("/readiness").starts_with("HTTP/1.1 503"));
        assert!(health.answer("/liveness").starts_with("HTTP/1.1 200"));
        health.passed();
        assert!(health.answer("/readiness").starts_with("HTTP/1.1 200"));
        health.alive();
        assert!(health.answer("/readiness").starts_with("HTTP/1.1 503"));
        assert!(health.answer("/liveness").starts_with("HTTP/1.1 200"));
        assert!(health.answer("/").starts_with("HTTP/1.1 404"));
    }
}
