//! Writes that failed, by object: an object that cannot be written costs what was to become of it, and nothing else of the pass.
//!
//! The first failure is told at once. After that the object is tried again with growing pauses, so that five thousand of them are
//! no load on the API server.
//!
//! A pass writes for a limited time, so that its status is told although thousands of objects are to be written: the others are
//! written by the next passes.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::decision::{Wait, WaitReason};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::summary::Held;
use crate::write::WriteError;

/// The pause after the first failure. It doubles with each further one.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(30);
/// So many times as long rests what is taken into work as a whole, and was given back: it costs more than a write.
const REST: i32 = 10;

/// Objects whose last write failed. Lost at a restart: then each is tried at once.
#[derive(Debug, Default)]
pub struct Obstacles {
    objects: Mutex<BTreeMap<String, Obstacle>>,
    /// The time for which a pass begins to write objects; `None`: as long as it takes.
    limit: Option<Duration>,
    /// The first time in this pass that an object was to be written: what is read before takes nothing of that time, so that each pass
    /// writes something.
    begun: Mutex<Option<Instant>>,
    /// Objects that this pass has left to the next one.
    postponed: AtomicUsize,
    /// The object that this pass is at.
    doing: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Obstacle {
    /// Enumerated.
    reason: &'static str,
    /// What was attempted, and the API server's words.
    message: String,
    /// How often it failed; 0 where the object changed since it was read, which is no failure.
    failures: u32,
    next_try: Timestamp,
    /// Whether this pass has wanted to write it.
    is_wanted: bool,
}

impl Obstacles {
    /// Each pass begins to write objects for so long.
    pub fn within(limit: Duration) -> Self {
        Self {
            limit: Some(limit),
            ..Self::default()
        }
    }

    fn begun(&self) -> MutexGuard<'_, Option<Instant>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pass is at this object now.
    pub fn is_at(&self, object: Option<&str>) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = object.map(ToOwned::to_owned);
    }

    /// The object that the pass is at, or was when it was given up; `None` between two.
    pub fn doing(&self) -> Option<String> {
        let doing = self.doing.lock().unwrap_or_else(PoisonError::into_inner);
        doing.clone()
    }

    /// Whether the time of this pass is over, so that one object more is left to the next one. It counts as postponed.
    pub fn postpones(&self) -> bool {
        let spent = self.begun().get_or_insert_with(Instant::now).elapsed();
        let is_over = self.limit.is_some_and(|limit| spent >= limit);
        if is_over {
            self.postponed.fetch_add(1, Ordering::Relaxed);
        }
        is_over
    }

    /// The number of objects that this pass has left to the next one.
    pub fn postponed(&self) -> usize {
        self.postponed.load(Ordering::Relaxed)
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Obstacle>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a pass: what it does not want to write is no obstacle to it.
    pub fn begin_pass(&self) {
        *self.begun() = None;
        self.is_at(None);
        self.postponed.store(0, Ordering::Relaxed);
        for obstacle in self.objects().values_mut() {
            obstacle.is_wanted = false;
        }
    }

    /// Ends the pass, and forgets what it did not want to write.
    pub fn end_pass(&self) {
        self.objects().retain(|_, obstacle| obstacle.is_wanted);
    }

    /// Every object is tried at once: a person has said that the migration goes on, or the clock was set.
    pub fn forget(&self) {
        self.objects().clear();
    }

    /// Makes the write, if it is time. `object` is its kind and name. `None` where it was not made: the failure is kept here, the
    /// object changed since it was read and is looked at again, or the next pass makes the write.
    ///
    /// # Errors
    /// When the API server is out of reach, which is no one object's.
    pub fn attempt<T>(
        &self,
        object: &str,
        write: impl Future<Output = Result<T, WriteError>>,
    ) -> impl Future<Output = Result<Option<T>, WriteError>> {
        // Writes are large futures, and this one is part of many.
        let write = Box::pin(write);
        async move {
            if self.holds(object, Timestamp::now()).is_some() || self.postpones() {
                return Ok(None);
            }
            self.is_at(Some(object));
            let written = write.await;
            self.is_at(None);
            match written {
                Ok(made) => {
                    self.clear(object);
                    Ok(Some(made))
                }
                Err(error) => self.note(object, error, Timestamp::now()).map(|_| None),
            }
        }
    }

    /// Why this object is not written now; `None` when it may be tried.
    pub fn holds(&self, object: &str, now: Timestamp) -> Option<String> {
        let mut objects = self.objects();
        let obstacle = objects.get_mut(object)?;
        obstacle.is_wanted = true;
        (now < obstacle.next_try).then(|| obstacle.message.clone())
    }

    /// Whether it is not time to write this object. Says nothing of whether this pass wants to.
    pub fn is_held(&self, object: &str, now: Timestamp) -> bool {
        let objects = self.objects();
        objects
            .get(object)
            .is_some_and(|obstacle| now < obstacle.next_try)
    }

    /// How often the object has failed, or has rested.
    pub fn failures(&self, object: &str) -> u32 {
        failures_of(&self.objects(), object)
    }

    /// Keeps a failure. Returns its words; `None` where the object changed since it was read, which is no failure.
    ///
    /// # Errors
    /// When the API server is out of reach, which is no one object's.
    pub fn note(
        &self,
        object: &str,
        error: WriteError,
        now: Timestamp,
    ) -> Result<Option<String>, WriteError> {
        if !error.is_of_the_object() {
            return Err(error);
        }
        let message = error.words();
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
                reason: WaitReason::RequestRefused.as_str(),
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

    /// Lets an object rest that was taken into work and did not go on, for whatever reason. The pause grows with each time.
    pub fn rest(&self, object: &str, held: &Held, now: Timestamp) {
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

    /// Every object may be tried at once, as if its pause were over.
    #[cfg(test)]
    pub fn hurry(&self) {
        for obstacle in self.objects().values_mut() {
            obstacle.next_try = Timestamp::UNIX_EPOCH;
        }
    }

    /// Keeps an object that cannot be read, and so not be written either. It is held as long as each pass says so.
    pub fn hold(&self, object: &str, message: String) {
        let held = Obstacle {
            reason: WaitReason::RequestRefused.as_str(),
            message,
            failures: 1,
            next_try: Timestamp::now(),
            is_wanted: true,
        };
        self.objects().insert(object.to_owned(), held);
    }

    /// The object was written.
    pub fn clear(&self, object: &str) {
        self.objects().remove(object);
    }

    /// Whether everything that this pass wanted to write is written.
    pub fn is_clear(&self) -> bool {
        self.postponed() == 0 && !self.objects().values().any(|obstacle| obstacle.is_wanted)
    }

    /// What has to be told: how many objects cannot be written, and the first of them.
    pub fn wait(&self) -> Option<Held> {
        let objects = self.objects();
        let mut refused = objects
            .values()
            .filter(|obstacle| obstacle.is_wanted && obstacle.failures > 0);
        let first = refused.next()?;
        let message = match refused.count() {
            0 => format!("{}; it is tried again", first.message),
            1 => format!("{} (and 1 more object); they are tried again", first.message),
            others => format!(
                "{} (and {others} more objects); they are tried again",
                first.message
            ),
        };
        Some(Held {
            reason: first.reason,
            message,
            needs_a_person: true,
        })
    }
}

/// The wait for an API server that refuses; the message has its words.
pub fn refusal(message: String) -> Wait {
    Wait {
        reason: WaitReason::RequestRefused,
        message,
        until: None,
    }
}

/// How often the object failed so far.
fn failures_of(objects: &BTreeMap<String, Obstacle>, object: &str) -> u32 {
    objects.get(object).map_or(0, |obstacle| obstacle.failures)
}

/// The pause after so many failures. It differs by up to a quarter from object to object, so that they do not come all at once.
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
mod tests {
    use super::*;

    fn refusal() -> WriteError {
        let status = kube::core::Status::failure("denied by policy", "Forbidden").with_code(403);
        WriteError::of("labelling", "Node a", kube::Error::Api(Box::new(status)))
    }

    fn conflict() -> WriteError {
        let status = kube::core::Status::failure("it changed", "Conflict").with_code(409);
        WriteError::of("labelling", "Node a", kube::Error::Api(Box::new(status)))
    }

    fn unreachable() -> WriteError {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        WriteError::of("labelling", "Node a", kube::Error::Service(Box::new(refused)))
    }

    fn timeout() -> WriteError {
        let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
        WriteError::of("labelling", "Node a", kube::Error::Service(Box::new(late)))
    }

    #[tokio::test]
    async fn a_refused_object_waits_and_keeps_its_words() {
        let obstacles = Obstacles::default();
        let made = obstacles.attempt::<()>("Node a", async { Err(refusal()) }).await;
        assert!(made.unwrap().is_none());
        let now = Timestamp::now();
        assert_eq!(
            obstacles.holds("Node a", now).as_deref(),
            Some("labelling Node a: denied by policy")
        );
        let not_made = obstacles.attempt("Node a", async { Ok(()) }).await;
        assert!(not_made.unwrap().is_none(), "it is not time yet");
        assert_eq!(obstacles.holds("Node b", now), None, "another object is free");
        let wait = obstacles.wait().unwrap();
        assert_eq!(
            wait.message,
            "labelling Node a: denied by policy; it is tried again"
        );
    }

    #[tokio::test]
    async fn who_is_written_is_no_obstacle_any_more() {
        let obstacles = Obstacles::default();
        let earlier = Timestamp::now() - SignedDuration::from_mins(1);
        assert!(obstacles.note("Node a", refusal(), earlier).unwrap().is_some());
        assert!(
            obstacles
                .attempt("Node a", async { Ok(()) })
                .await
                .unwrap()
                .is_some()
        );
        assert!(obstacles.wait().is_none());
    }

    #[test]
    fn a_conflict_is_no_failure_and_an_api_server_that_is_away_is_no_objects() {
        let obstacles = Obstacles::default();
        let now = Timestamp::now();
        assert_eq!(obstacles.note("Node c", conflict(), now).unwrap(), None);
        assert_eq!(obstacles.holds("Node c", now), None, "it is tried at once");
        assert!(!obstacles.is_clear(), "it is not written");
        assert!(obstacles.note("Node a", unreachable(), now).is_err());
        assert!(obstacles.wait().is_none());
        // An admission webhook that hangs is behind one object's write.
        assert!(obstacles.note("Node a", timeout(), now).unwrap().is_some());
    }

    #[test]
    fn an_object_that_rests_keeps_its_reason_and_rests_longer_each_time() {
        let obstacles = Obstacles::default();
        let held = Held {
            reason: WaitReason::AgentSilent.as_str(),
            message: "no agent is Ready on node a".to_owned(),
            needs_a_person: true,
        };
        let now = Timestamp::now();
        let at = |seconds| now + SignedDuration::from_secs(seconds);
        obstacles.rest("first step of Node a", &held, now);
        let told = obstacles.wait().unwrap();
        assert_eq!(told.reason, "AgentSilent");
        assert_eq!(told.message, "no agent is Ready on node a; it is tried again");
        assert!(obstacles.holds("first step of Node a", at(7)).is_some());
        assert_eq!(obstacles.holds("first step of Node a", at(10)), None);
        obstacles.rest("first step of Node a", &held, at(10));
        assert!(obstacles.holds("first step of Node a", at(24)).is_some());
        assert_eq!(obstacles.holds("first step of Node a", at(30)), None);
    }

    #[test]
    fn what_a_pass_does_not_want_to_write_is_forgotten() {
        let obstacles = Obstacles::default();
        let now = Timestamp::now();
        for object in ["Node a", "Node b"] {
            obstacles.note(object, refusal(), now).unwrap();
        }
        assert!(obstacles.wait().unwrap().message.contains("(and 1 more object)"));
        obstacles.begin_pass();
        obstacles.holds("Node b", now);
        obstacles.end_pass();
        let wait = obstacles.wait().unwrap();
        assert!(!wait.message.contains("more object"), "{}", wait.message);
        assert_eq!(obstacles.holds("Node a", now), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_writes_for_a_limited_time_and_the_next_one_goes_on() {
        let obstacles = Obstacles::within(Duration::from_millis(200));
        for _ in 0..2 {
            obstacles.begin_pass();
            // What a pass reads may take longer than its writes: it writes all the same.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let first = obstacles
                .attempt("Node a", async {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    Ok(())
                })
                .await;
            assert!(first.unwrap().is_some(), "what has begun is finished");
            assert!(obstacles.is_clear());
            for node in ["Node b", "Node c"] {
                let later = obstacles.attempt(node, async { Ok(()) }).await;
                assert!(later.unwrap().is_none());
            }
            assert_eq!(obstacles.postponed(), 2);
            assert!(!obstacles.is_clear() && obstacles.wait().is_none(), "no failure");
            obstacles.end_pass();
        }
        obstacles.begin_pass();
        let made = obstacles.attempt("Node b", async { Ok(()) }).await;
        assert!(made.unwrap().is_some() && obstacles.is_clear());
    }

    #[test]
    fn pauses_grow_to_their_limit_and_differ() {
        let seconds = |failures| pause("Node a", failures).as_secs_f64();
        for (failures, longest) in [(1, 1.0), (2, 2.0), (3, 4.0), (6, 30.0), (1000, 30.0)] {
            let found = seconds(failures);
            assert!(found <= longest && found >= longest * 0.75, "{failures}: {found}");
        }
        let different: std::collections::BTreeSet<i128> = (0..100)
            .map(|node| pause(&format!("Node {node}"), 5).as_nanos())
            .collect();
        assert!(different.len() > 90);
    }
}
