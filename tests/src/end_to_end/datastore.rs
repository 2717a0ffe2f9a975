//! The conversion of Calico's data from etcd v2 to etcd v3, with a real etcd and without a cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::Tally;
use crate::cluster::authority::Authority;
use crate::cluster::wait::{Observation, until};
use crate::datastore::etcd::{Etcd, Options};
use crate::datastore::proxy::{Moment, Strike};
use crate::datastore::sample;
use crate::datastore::tool::Tool;
use crate::datastore::trial::{COMPLETE, Trial, strikes};

/// Number of keys of v2 in most cases.
const KEYS: usize = 200;
/// Keys per transaction: few, for many writes.
const BATCH: usize = 10;
const VERSION: &str = "/calico/v1/config/CalicoVersion";
const READY: &str = "/calico/v1/Ready";
const START: [&str; 5] = ["start", "--yes", "--no-hold", "--settle", "0s"];
/// Limit of one process, and of one wait.
const LIMIT: Duration = Duration::from_mins(2);

/// The programs and the folder of the cases.
pub struct Bench {
    /// An etcd with both APIs.
    pub old: PathBuf,
    /// An etcd without the v2 API.
    pub new: PathBuf,
    /// `kubectl-replumb`.
    pub program: PathBuf,
    /// The folder of all files.
    pub folder: PathBuf,
}

/// Every case.
pub async fn datastore(bench: &Bench) -> Tally {
    let mut tally = Tally::default();
    let Some(etcd) = tally.count("an etcd with both APIs", bench.etcd("etcd", Some(true)).await) else {
        return tally;
    };
    tally.count(
        "a conversion killed at each write continues with the same result, and can be aborted",
        verify_kills(bench, &etcd).await,
    );
    tally.count(
        "of two processes at the same time, one is refused and told about the other",
        verify_lock(bench, &etcd).await,
    );
    tally.count(
        "a pause that lasts too long is aborted",
        verify_pause_limit(bench, &etcd).await,
    );
    tally.count(
        "a holding process ends with the conversion, and a process that was stopped for too long writes nothing",
        verify_held_and_stopped(bench, &etcd).await,
    );
    tally.count("refusals change nothing", verify_refusals(bench, &etcd).await);
    tally.count(
        "the previous data of v3 is restored",
        verify_restored(bench, &etcd).await,
    );
    tally.count(
        "v3 stays closed until the controllers have written their objects",
        verify_waits_for_controllers(bench, &etcd).await,
    );
    tally.count(
        "two etcds that require client certificates",
        verify_certificates(bench).await,
    );
    tally
}

impl Bench {
    async fn etcd(&self, name: &str, v2: Option<bool>) -> Result<Etcd> {
        let program = if v2.is_some() { &self.old } else { &self.new };
        let options = Options {
            program: program.clone(),
            v2,
            tls: None,
        };
        Etcd::start(&self.folder.join(name), &options).await
    }

    fn tool(&self, v2: &str, v3: &str) -> Tool {
        Tool::new(&self.program, v2, v3, &self.folder.join("output"))
    }
}

async fn seed(etcd: &Etcd) -> Result<()> {
    etcd.seed(&sample::store(KEYS)).await
}

async fn verify_kills(bench: &Bench, etcd: &Etcd) -> Result<()> {
    let trial = Trial::new(etcd, &bench.program, &bench.folder, sample::store(KEYS), BATCH);
    let undisturbed = trial.undisturbed().await?;
    ensure!(undisturbed.writes > 20, "{undisturbed:?}");
    for strike in strikes(undisturbed.writes, 0) {
        let what = || format!("killed at {strike:?} of {} writes", undisturbed.writes);
        trial.killed(strike, &undisturbed).await.with_context(what)?;
        trial.kill_and_abort(strike).await.with_context(what)?;
        let late = Strike {
            moment: Moment::Late,
            ..strike
        };
        if strike.moment == Moment::Before {
            trial.kill_and_abort(late).await.with_context(what)?;
        }
    }
    // Three writes open v3: the announcement, the flag, the record.
    for strike in strikes(3, 0) {
        let what = || format!("complete killed at {strike:?}");
        trial.kill_complete(strike).await.with_context(what)?;
    }
    Ok(())
}

async fn verify_lock(bench: &Bench, etcd: &Etcd) -> Result<()> {
    seed(etcd).await?;
    let tool = bench.tool(&etcd.url(), &etcd.url());
    let start = ["start", "--yes", "--no-hold", "--settle", "3s"];
    let (one, other) = tokio::join!(tool.run(&start), tool.run(&start));
    let mut both = [one?, other?];
    both.sort_by_key(|output| output.code);
    let [winner, loser] = both;
    ensure!(winner.code == Some(0), "{}", winner.all());
    ensure!(loser.code == Some(1), "{}", loser.all());
    let named = "another process is working on these stores: kubectl replumb datastore";
    ensure!(loser.notes.contains(named), "{}", loser.all());
    Ok(())
}

async fn verify_pause_limit(bench: &Bench, etcd: &Etcd) -> Result<()> {
    seed(etcd).await?;
    let tool = bench.tool(&etcd.url(), &etcd.url());
    let held = tool
        .run(&["start", "--yes", "--settle", "0s", "--pause-limit", "5s"])
        .await?;
    ensure!(held.code == Some(1), "{}", held.all());
    ensure!(
        held.notes.contains("the conversion was aborted"),
        "{}",
        held.all()
    );
    let verify_aborted = async |what: &str| -> Result<()> {
        let status = tool.status().await?;
        ensure!(
            status["worksWith"] == "V2" && status["record"]["phase"] == "Aborted",
            "{what}: {status}"
        );
        let remaining = etcd.dump_v3("/calico/").await?;
        ensure!(remaining.is_empty(), "{what}: remaining in v3: {remaining:?}");
        Ok(())
    };
    verify_aborted("held").await?;
    // A process that was killed during the pause, and starts again late; and one that was killed during `complete`.
    for phase in ["Paused", "Written", "Verified", "Completing"] {
        seed(etcd).await?;
        let paused = tool.run(&START).await?;
        ensure!(paused.code == Some(0), "{}", paused.all());
        edit_record(etcd, |record| {
            record["phase"] = json!(phase);
            record["abortAt"] = json!("2026-01-01T00:00:00Z");
        })
        .await?;
        let status = tool.status().await?;
        ensure!(status["isOverdue"] == true, "{phase}: {status}");
        let verb: &[&str] = if phase == "Completing" {
            &["abort", "--yes"]
        } else {
            &START
        };
        let late = tool.run(verb).await?;
        let needed = if phase == "Completing" {
            "phase Aborted"
        } else {
            "the pause had to end by"
        };
        ensure!(late.all().contains(needed), "{phase}: {}", late.all());
        verify_aborted(phase).await?;
    }
    Ok(())
}

/// Changes the record of the conversion.
async fn edit_record(etcd: &Etcd, edit: impl FnOnce(&mut Value)) -> Result<()> {
    const RECORD: &str = "/replumb/calico-datastore/run";
    let all = etcd.dump_v3(RECORD).await?;
    let text = all.get(RECORD).context("etcd has no record")?;
    let mut record: Value = serde_json::from_str(text).context("parse the record")?;
    edit(&mut record);
    etcd.put_v3(RECORD, &record.to_string()).await
}

/// A `complete` elsewhere ends the holding process, and a process that was stopped until its lock expired writes nothing.
async fn verify_held_and_stopped(bench: &Bench, etcd: &Etcd) -> Result<()> {
    seed(etcd).await?;
    let tool = bench.tool(&etcd.url(), &etcd.url());
    let holding = tool.spawn(&["start", "--yes", "--settle", "0s"])?;
    until_status(&tool, &|status| {
        status["record"]["phase"] == "Verified" && status["atWork"].is_null()
    })
    .await?;
    let complete = tool.run(&COMPLETE).await?;
    ensure!(complete.code == Some(0), "{}", complete.all());
    let held = tokio::time::timeout(LIMIT, holding.wait_with_output())
        .await
        .context("the holding process does not end")??;
    ensure!(
        held.status.success(),
        "held: {}",
        String::from_utf8_lossy(&held.stderr)
    );

    seed(etcd).await?;
    let before = etcd.indices_v2().await?;
    let stopped = tool.spawn(&["start", "--yes", "--no-hold", "--settle", "60s"])?;
    let process = Pid::from_raw(i32::try_from(stopped.id().context("the process has ended")?)?);
    until_status(&tool, &|status| status["record"]["phase"] == "Paused").await?;
    kill(process, Signal::SIGSTOP)?;
    until_status(&tool, &|status| status["atWork"].is_null()).await?;
    let abort = tool.run(&["abort", "--yes"]).await?;
    ensure!(abort.code == Some(0), "{}", abort.all());
    let aborted = etcd.dump_v3("/").await?;
    kill(process, Signal::SIGCONT)?;
    let late = tokio::time::timeout(LIMIT, stopped.wait_with_output())
        .await
        .context("the stopped process does not end")??;
    ensure!(
        !late.status.success(),
        "the stopped process has continued: {}",
        String::from_utf8_lossy(&late.stderr)
    );
    ensure!(
        etcd.dump_v3("/").await? == aborted,
        "the stopped process has written to v3"
    );
    let after = etcd.indices_v2().await?;
    let others = |all: &BTreeMap<String, u64>| all.iter().filter(|pair| pair.0 != READY).count();
    ensure!(
        others(&before) == others(&after),
        "the stopped process has written to v2"
    );
    ensure!(
        etcd.dump_v2().await?.get(READY).map(String::as_str) == Some("true"),
        "v2 is not open"
    );
    Ok(())
}

async fn until_status(tool: &Tool, is_reached: &(dyn Fn(&Value) -> bool + Sync)) -> Result<()> {
    until(
        "the conversion has reached a state",
        LIMIT,
        &tool.folder,
        async || {
            let status = tool.status().await?;
            Ok(if is_reached(&status) {
                Observation::Done(())
            } else {
                Observation::NotYet(status.to_string())
            })
        },
    )
    .await
}

/// Runs a command that must be refused with these words, and checks that nothing was written.
async fn refuse(etcds: &[&Etcd], tool: &Tool, arguments: &[&str], words: &str) -> Result<()> {
    let read = async || -> Result<_> {
        let mut all = Vec::new();
        for etcd in etcds {
            let v2 = if etcd.has_v2() {
                Some(etcd.indices_v2().await?)
            } else {
                None
            };
            all.push((v2, etcd.dump_v3("/").await?));
        }
        Ok(all)
    };
    let before = read().await?;
    let output = tool.run(arguments).await?;
    ensure!(
        output.code != Some(0),
        "{arguments:?} was not refused: {}",
        output.all()
    );
    ensure!(
        output.notes.contains(words),
        "the refusal of {arguments:?} does not contain {words:?}: {}",
        output.all()
    );
    ensure!(
        read().await? == before,
        "{arguments:?} has written something: {}",
        output.all()
    );
    Ok(())
}

async fn verify_refusals(bench: &Bench, etcd: &Etcd) -> Result<()> {
    let start = START;
    let without = bench.etcd("without-v2", Some(false)).await?;
    let newest = bench.etcd("newest", None).await?;
    let url = etcd.url();
    seed(etcd).await?;
    let wrong = bench.tool("http://127.0.0.1:1", &url);
    refuse(&[etcd], &wrong, &start, "http://127.0.0.1:1: ").await?;
    let none = bench.tool(&without.url(), &url);
    refuse(
        &[etcd, &without],
        &none,
        &start,
        "start etcd with --enable-v2=true",
    )
    .await?;
    let gone = bench.tool(&newest.url(), &url);
    refuse(
        &[etcd, &newest],
        &gone,
        &start,
        "etcd 3.6 and later have no v2 API",
    )
    .await?;
    let tool = bench.tool(&url, &url);
    for (version, words) in [
        ("v2.6.4", "needed v2.6.5 or later"),
        ("master", "needed a version like v2.6.12"),
    ] {
        etcd.put_v2(VERSION, version).await?;
        refuse(&[etcd], &tool, &start, words).await?;
    }
    etcd.put_v2(VERSION, "v2.6.12").await?;
    refuse(&[etcd], &tool, &COMPLETE, "would work with a store without data").await?;
    etcd.put_v3("/calico/resources/v3/projectcalico.org/nodes/a", "{}")
        .await?;
    refuse(&[etcd], &tool, &start, "keys of unknown origin below /calico/: 1").await?;
    seed(etcd).await?;
    etcd.put_v2("/calico/v1/policy/tier/default/policy/torn", "{\"selector\": ")
        .await?;
    refuse(
        &[etcd],
        &tool,
        &start,
        "values of etcd v2 that cannot be converted: 1,",
    )
    .await?;
    let asked = bench.tool(&url, &url);
    seed(etcd).await?;
    refuse(&[etcd], &asked, &["start"], "standard input is not a terminal").await
}

/// Keys that controllers of v3 wrote in an earlier attempt.
const STALE: [&str; 2] = [
    "/calico/resources/v3/projectcalico.org/profiles/kns.default",
    "/calico/resources/v3/projectcalico.org/networkpolicies/default/knp.default.gone",
];

async fn verify_restored(bench: &Bench, etcd: &Etcd) -> Result<()> {
    seed(etcd).await?;
    let tool = bench.tool(&etcd.url(), &etcd.url());
    for (key, value) in [
        (
            "/calico/resources/v3/projectcalico.org/ippools/10-0-0-0-8",
            "{\"kind\": \"IPPool\", \"mine\": true}",
        ),
        ("/calico/resources/v3/projectcalico.org/nodes/stray", "no JSON"),
        (STALE[0], "{\"kind\": \"Profile\"}"),
        (STALE[1], "{\"kind\": \"NetworkPolicy\"}"),
    ] {
        etcd.put_v3(key, value).await?;
    }
    let before = etcd.dump_v3("/calico/").await?;
    let done = async |arguments: &[&str]| -> Result<()> {
        let output = tool.run(arguments).await?;
        ensure!(output.code == Some(0), "{arguments:?}: {}", output.all());
        Ok(())
    };
    let start = [
        "start",
        "--yes",
        "--no-hold",
        "--settle",
        "0s",
        "--ignore-v3-data",
    ];
    done(&start).await?;
    let written = etcd.dump_v3("/calico/").await?;
    ensure!(
        written.len() > before.len() && !written.iter().all(|pair| before.contains_key(pair.0)),
        "{written:?}"
    );
    ensure!(STALE.iter().all(|key| !written.contains_key(*key)), "{written:?}");
    refuse(&[etcd], &tool, &["complete", "--yes"], "1 profile (kns.default)").await?;
    done(&["abort", "--yes"]).await?;
    ensure!(
        etcd.dump_v3("/calico/").await? == before,
        "v3 has other data than before"
    );
    done(&start).await?;
    done(&COMPLETE).await?;
    let refused = tool.run(&["abort", "--yes"]).await?;
    ensure!(refused.code == Some(2), "{}", refused.all());
    done(&["abort", "--yes", "--after-completion"]).await?;
    let status = tool.status().await?;
    ensure!(status["worksWith"] == "V2", "{status}");
    ensure!(
        etcd.dump_v3("/calico/").await? == before,
        "after the completion v3 has other data than before"
    );
    let kept = etcd.dump_v3("/replumb/calico-datastore/before").await?;
    ensure!(kept.is_empty(), "the saved data of v3 still exists: {kept:?}");
    Ok(())
}

/// This test plays the controllers of v3.
async fn verify_waits_for_controllers(bench: &Bench, etcd: &Etcd) -> Result<()> {
    let mut store = sample::store(KEYS);
    store.insert(
        "/calico/v1/policy/tier/default/policy/knp.default.default.deny".to_owned(),
        "{\"selector\": \"calico/k8s_ns == 'default'\"}".to_owned(),
    );
    etcd.seed(&store).await?;
    let tool = bench.tool(&etcd.url(), &etcd.url());
    let started = tool.run(&START).await?;
    ensure!(started.code == Some(0), "{}", started.all());
    let complete = ["complete", "--yes"];
    let resources = "/calico/resources/v3/projectcalico.org";
    for (words, key) in [
        (
            "1 profile (kns.default), 1 policy of Kubernetes (default/deny)",
            "profiles/kns.default",
        ),
        (
            "not yet 1 policy of Kubernetes (default/deny)",
            "networkpolicies/default/knp.default.deny",
        ),
    ] {
        refuse(&[etcd], &tool, &complete, words).await?;
        etcd.put_v3(&format!("{resources}/{key}"), "{}").await?;
    }
    let completed = tool.run(&complete).await?;
    ensure!(completed.code == Some(0), "{}", completed.all());
    let status = tool.status().await?;
    ensure!(status["worksWith"] == "V3", "{status}");
    Ok(())
}

async fn verify_certificates(bench: &Bench) -> Result<()> {
    let loopback = [std::net::Ipv4Addr::LOCALHOST.into()];
    let authority = Authority::create(&bench.folder.join("pki"))?;
    let pki = authority.folder().to_owned();
    authority
        .server_and_client("etcd", &loopback)?
        .write(&pki, "etcd")?;
    authority.client("calico", None)?.write(&pki, "calico")?;
    let stranger = Authority::create(&bench.folder.join("other-pki"))?;
    stranger
        .client("stranger", None)?
        .write(stranger.folder(), "stranger")?;
    // Filled before it requires certificates.
    let plain = bench.etcd("old-with-tls", Some(true)).await?;
    seed(&plain).await?;
    drop(plain);
    let with_tls = async |name: &str, program: &Path, v2| {
        let options = Options {
            program: program.to_owned(),
            v2,
            tls: Some([pki.join("ca.crt"), pki.join("etcd.crt"), pki.join("etcd.key")]),
        };
        Etcd::start(&bench.folder.join(name), &options).await
    };
    let old = with_tls("old-with-tls", &bench.old, Some(true)).await?;
    let new = with_tls("new-with-tls", &bench.new, None).await?;
    let path = |folder: &Path, name: &str| folder.join(name).display().to_string();
    let with = |folder: &Path, name: &str| {
        let mut tool = bench.tool(&old.url(), &new.url());
        for prefix in ["APIV1_", ""] {
            for (variable, file) in [
                ("ETCD_CA_CERT_FILE", path(&pki, "ca.crt")),
                ("ETCD_CERT_FILE", path(folder, &format!("{name}.crt"))),
                ("ETCD_KEY_FILE", path(folder, &format!("{name}.key"))),
            ] {
                tool.environment.push((format!("{prefix}{variable}"), file));
            }
        }
        tool
    };
    let unknown = with(stranger.folder(), "stranger").run(&START).await?;
    ensure!(
        unknown.code == Some(1),
        "a certificate of another authority: {}",
        unknown.all()
    );
    let anonymous = bench.tool(&old.url(), &new.url()).run(&START).await?;
    ensure!(
        anonymous.notes.contains("ETCD_CA_CERT_FILE"),
        "no certificate: {}",
        anonymous.all()
    );
    let tool = with(&pki, "calico");
    let status = tool.status().await?;
    ensure!(
        status["worksWith"] == "V2" && status["keysV3"] == 0,
        "before: {status}"
    );
    for arguments in [&START[..], &COMPLETE] {
        let output = tool.run(arguments).await?;
        ensure!(output.code == Some(0), "{arguments:?}: {}", output.all());
    }
    let status = tool.status().await?;
    ensure!(status["worksWith"] == "V3", "{status}");
    if status["keysV3"].as_u64().is_none_or(|keys| keys < 100) {
        bail!("too few keys in v3: {status}");
    }
    Ok(())
}
