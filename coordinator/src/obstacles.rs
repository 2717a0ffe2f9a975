//! Failed writes, by object: an object that cannot be written affects what depends on it, and nothing else in the pass.
//!
//! The first failure is reported at once. After that the object is retried with growing pauses, so that five thousand failing
//! objects do not load the API server.
//!
//! A pass writes for a limited time, so that its status is reported even if thousands of objects are to be written: the next
//! passes write the others.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::decision::{Wait, WaitReason};
use engine::reason::Reason;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::clock;
use crate::failure::Failure;
use crate::summary::WaitReport;

/// Pause after the first failure. It doubles with each further failure.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(30);
/// Factor of the pause for a node that was admitted and released: repeating that costs more than a write.
const REST: i32 = 10;

/// Objects whose last write failed. Lost at a restart: each object is then retried at once.
#[derive(Debug, Default)]
pub struct Obstacles {
    objects: Mutex<BTreeMap<String, Obstacle>>,
    /// Time in which a pass starts writes; `None` for no limit.
    limit: Option<Duration>,
    /// Time of the first write of this pass: reads before it do not count, so that each pass writes
    /// something.
    begun: Mutex<Option<Instant>>,
    /// Objects left to the next pass.
    postponed: AtomicUsize,
    /// The object being written.
    doing: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Obstacle {
    reason: Reason,
    /// The attempt and the message of the API server.
    message: String,
    /// Number of failures; 0 if the object changed since it was read, which is not a failure.
    failures: u32,
    next_try: Timestamp,
    /// Whether this pass needs to write the object.
    is_wanted: bool,
}

impl Obstacles {
    /// Obstacles with this time limit for starting writes in each pass.
    pub fn within(limit: Duration) -> Self {
        Self {
            limit: Some(limit),
            ..Self::default()
        }
    }

    fn begun(&self) -> MutexGuard<'_, Option<Instant>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the object being written.
    pub fn set_current_object(&self, object: Option<&str>) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = object.map(ToOwned::to_owned);
    }

    /// The object being written, or interrupted by the end of the pass; `None` between objects.
    pub fn current_object(&self) -> Option<String> {
        let doing = self.doing.lock().unwrap_or_else(PoisonError::into_inner);
        doing.clone()
    }

    /// Whether the time of this pass is over, so that one more object is left to the next pass. Counts the object as postponed.
    pub fn postpone_if_over(&self) -> bool {
        let spent = self.begun().get_or_insert_with(Instant::now).elapsed();
        let is_over = self.limit.is_some_and(|limit| spent >= limit);
        if is_over {
            self.postponed.fetch_add(1, Ordering::Relaxed);
        }
        is_over
    }

    /// Number of objects left to the next pass.
    pub fn postponed(&self) -> usize {
        self.postponed.load(Ordering::Relaxed)
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Obstacle>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a pass: an object that it does not need to write is not an obstacle.
    pub fn begin_pass(&self) {
        *self.begun() = None;
        self.set_current_object(None);
        self.postponed.store(0, Ordering::Relaxed);
        for obstacle in self.objects().values_mut() {
            obstacle.is_wanted = false;
        }
    }

    /// Ends the pass, and forgets objects that it did not need to write.
    pub fn end_pass(&self) {
        self.objects().retain(|_, obstacle| obstacle.is_wanted);
    }

    /// Makes every object due at once: the user resumed the migration, or the clock was set.
    pub fn forget(&self) {
        self.objects().clear();
    }

    /// Performs the write if it is due. `object` is its kind and name. Returns `None` without a write: the failure is kept here,
    /// the object changed since it was read and is read again, or the next pass writes it.
    ///
    /// # Errors
    /// The API server is unreachable, which is not a problem of one object.
    pub fn attempt<T, E: Failure>(
        &self,
        object: &str,
        write: impl Future<Output = Result<T, E>>,
    ) -> impl Future<Output = Result<Option<T>, E>> {
        // Writes are large futures, and this one is part of many.
        let write = Box::pin(write);
        async move {
            if self.reason_to_wait(object, clock::now()).is_some() || self.postpone_if_over() {
                return Ok(None);
            }
            self.set_current_object(Some(object));
            let written = write.await;
            self.set_current_object(None);
            match written {
                Ok(made) => {
                    self.clear(object);
                    Ok(Some(made))
                }
                Err(error) => self.note(object, error, clock::now()).map(|_| None),
            }
        }
    }

    /// Why this object is not written now; `None` if it may be tried.
    pub fn reason_to_wait(&self, object: &str, now: Timestamp) -> Option<String> {
        let mut objects = self.objects();
        let obstacle = objects.get_mut(object)?;
        obstacle.is_wanted = true;
        (now < obstacle.next_try).then(|| obstacle.message.clone())
    }

    /// Whether this object is not due yet. Independent of the needs of this pass.
    pub fn is_held(&self, object: &str, now: Timestamp) -> bool {
        let objects = self.objects();
        objects
            .get(object)
            .is_some_and(|obstacle| now < obstacle.next_try)
    }

    /// Number of failures or rests of the object.
    pub fn failures(&self, object: &str) -> u32 {
        failures_of(&self.objects(), object)
    }

    /// Keeps a failure. Returns its message; `None` if the object changed since it was read, which is not a failure.
    ///
    /// # Errors
    /// When the API server is unreachable, which is not a problem of one object.
    pub fn note<E: Failure>(&self, object: &str, error: E, now: Timestamp) -> Result<Option<String>, E> {
        if !error.concerns_one_object() {
            return Err(error);
        }
        let message = error.message();
        let is_failure = !error.is_conflict();
        let mut objects = self.objects();
        let failures = if is_failure {
            failures_of(&objects, object).saturating_add(1)
        } else {
            0
        };
        objects.insert(
            object.to_owned(),
            Obstacle {
                reason: WaitReason::RequestRefused.into(),
                message: message.clone(),
                failures,
                next_try: if is_failure {
                    now + pause(object, failures)
                } else {
                    now
                },
                is_wanted: true,
            },
        );
        Ok(is_failure.then_some(message))
    }

    /// Postpones an object that was admitted and did not progress, for any reason. The pause grows each time.
    pub fn postpone(&self, object: &str, held: &WaitReport, now: Timestamp) {
        let mut objects = self.objects();
        let failures = failures_of(&objects, object).saturating_add(1);
        objects.insert(
            object.to_owned(),
            Obstacle {
                reason: held.reason,
                message: held.message.clone(),
                failures,
                next_try: now + pause(object, failures) * REST,
                is_wanted: true,
            },
        );
    }

    /// Makes every object due at once, as if its pause were over.
    #[cfg(test)]
    pub fn hurry(&self) {
        for obstacle in self.objects().values_mut() {
            obstacle.next_try = Timestamp::UNIX_EPOCH;
        }
    }

    /// Keeps an object that cannot be read, and so cannot be written. Each pass has to repeat the call.
    pub fn hold(&self, object: &str, message: String) {
        let held = Obstacle {
            reason: WaitReason::RequestRefused.into(),
            message,
            failures: 1,
            next_try: clock::now(),
            is_wanted: true,
        };
        self.objects().insert(object.to_owned(), held);
    }

    /// Records a successful write.
    pub fn clear(&self, object: &str) {
        self.objects().remove(object);
    }

    /// Whether this pass has written everything that it needs to write.
    pub fn is_clear(&self) -> bool {
        self.postponed() == 0 && !self.objects().values().any(|obstacle| obstacle.is_wanted)
    }

    /// The message to report: the first object that cannot be written, and the number of others.
    pub fn wait(&self) -> Option<WaitReport> {
        let objects = self.objects();
        let mut refused = objects
            .values()
            .filter(|obstacle| obstacle.is_wanted && obstacle.failures > 0);
        let first = refused.next()?;
        let message = match refused.count() {
            0 => format!("{}; the coordinator retries", first.message),
            1 => format!("{} (and 1 more object); the coordinator retries", first.message),
            others => format!(
                "{} (and {others} more objects); the coordinator retries",
                first.message
            ),
        };
        Some(WaitReport {
            reason: first.reason,
            message,
            needs_user: true,
        })
    }
}

/// The wait for an API server that refuses a request; the message is the server's.
pub fn refusal(message: String) -> Wait {
    Wait {
        reason: WaitReason::RequestRefused,
        message,
        until: None,
    }
}

/// Number of failures of the object.
fn failures_of(objects: &BTreeMap<String, Obstacle>, object: &str) -> u32 {
    objects.get(object).map_or(0, |obstacle| obstacle.failures)
}

/// The pause after this number of failures. It varies by up to a quarter between objects, so that retries are spread.
fn pause(object: &str, failures: u32) -> SignedDuration {
    let doublings = failures.saturating_sub(1).min(10);
    let pause = FIRST_PAUSE
        .checked_mul(1 << doublings)
        .unwrap_or(LONGEST_PAUSE)
        .min(LONGEST_PAUSE);
    let mut hasher = DefaultHasher::new();
    (object, failures).hash(&mut hasher);
    let share = i32::try_from(hasher.finish() % 1000).unwrap_or_default();
    pause - pause * share / 4000
}

#[cfg(test)]
mod tests;
